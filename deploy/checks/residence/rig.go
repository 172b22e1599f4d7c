package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// rig is a mesh of processes on this machine: agents, each with one engine beside it. The engine of a rig may be a real
// one, which somebody else started.
type rig struct {
	h      *check.Harness
	ctx    context.Context // of its processes
	cancel context.CancelFunc
	dir    string
	nodes  []*node
	client *http.Client
}

// node is an agent and the engine beside it.
type node struct {
	name       string
	http       string // host:port
	quic       string
	gossip     string
	debug      string
	engineAddr string        // host:port
	command    check.Command // that started the engine
	engine     *check.Process
	agent      *check.Process
}

// plan says what rig to start.
type plan struct {
	agents   int
	engine   settings // the addresses are the rig's
	events   bool     // KV events
	replay   bool     // and their replay
	option   string   // of the agent's engine flag
	pinned   bool     // agents run on the first CPU, engines on the second
	external string   // host:port of an engine that runs already; "" for simulated ones
}

const engineName = "sim"

// startRig starts processes and waits until the agents know each other's engines.
func startRig(ctx context.Context, h *check.Harness, p plan) (_ *rig, err error) {
	r := &rig{h: h, client: newClient()}
	r.ctx, r.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.dir, err = os.MkdirTemp(h.Dir, "rig-"); err != nil {
		return nil, err
	}
	for i := range max(p.agents, 1) {
		if err := r.addNode(string(rune('a'+i)), p); err != nil {
			return nil, err
		}
	}
	if err := r.makeCerts(); err != nil {
		return nil, err
	}
	for _, n := range r.nodes {
		if err := r.startAgent(n, p); err != nil {
			return nil, err
		}
	}
	return r, r.awaitReady()
}

func (r *rig) addNode(name string, p plan) error {
	n := &node{name: name, engineAddr: p.external}
	if err := r.addresses(&n.http, &n.quic, &n.gossip, &n.debug); err != nil {
		return err
	}
	r.nodes = append(r.nodes, n)
	if p.external != "" {
		return nil
	}
	if err := r.addresses(&n.engineAddr); err != nil {
		return err
	}
	return r.startEngine(n, p)
}

func (r *rig) addresses(to ...*string) (err error) {
	for _, addr := range to {
		if *addr, err = r.h.Ports.Addr(r.ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) startEngine(n *node, p plan) error {
	s := p.engine
	s.Listen = n.engineAddr
	var events, replay string
	if err := r.addresses(&events, &replay); err != nil {
		return err
	}
	if p.events {
		s.Events = "tcp://" + events
		if p.replay {
			s.Replay = "tcp://" + replay
		}
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.command = check.Command{Args: p.pin(1, self, engineCommand, string(text)), Log: filepath.Join(r.dir, "engine-"+n.name+".log")}
	n.engine, err = r.h.StartCommand(r.ctx, n.command, "engine-"+n.name)
	return err
}

// replaceEngine ends the engine's process and starts another at the same addresses.
func (r *rig) replaceEngine(n *node) (err error) {
	n.engine.Kill()
	if n.engine, err = r.h.StartCommand(r.ctx, n.command, "engine-"+n.name); err != nil {
		return err
	}
	return check.Await(r.ctx, 10*time.Second, "another engine", func() bool {
		_, err := r.get("http://" + n.engineAddr + "/health")
		return err == nil
	})
}

// pin returns a command that runs on one CPU, where the plan says so and the machine can.
func (p *plan) pin(cpu int, args ...string) []string {
	taskset, err := exec.LookPath("taskset")
	if !p.pinned || err != nil || runtime.NumCPU() < 2 {
		return args
	}
	return append([]string{taskset, "-c", strconv.Itoa(cpu)}, args...)
}

// makeCerts makes certificates for more than one agent.
func (r *rig) makeCerts() error {
	if len(r.nodes) == 1 {
		return nil
	}
	args := []string{r.h.Bin, "cert", "--dir", filepath.Join(r.dir, "certs"), "--mesh-id", "checks"}
	for _, n := range r.nodes {
		args = append(args, n.name)
	}
	_, err := check.Command{Dir: r.dir, Args: args}.Run(r.ctx)
	return err
}

func (r *rig) startAgent(n *node, p plan) (err error) {
	args := p.pin(0, r.h.Bin, "agent", "--mesh-id", "checks", "--name", n.name,
		"--http", n.http, "--quic-bind", n.quic, "--gossip-bind", n.gossip, "--debug", n.debug,
		"--engine", strings.TrimSpace(fmt.Sprintf("%s=http://%s %s", engineName, n.engineAddr, p.option)))
	if len(r.nodes) > 1 {
		args = append(args, "--certs", filepath.Join(r.dir, "certs"))
		for _, peer := range r.nodes {
			args = append(args, "--join", peer.quic)
		}
	}
	c := check.Command{Dir: r.dir, Args: args, Log: filepath.Join(r.dir, "agent-"+n.name+".log")}
	n.agent, err = r.h.StartCommand(r.ctx, c, "agent-"+n.name)
	return err
}

// awaitReady waits until every agent is ready and knows every engine with its model. It does not wait for what has ended.
func (r *rig) awaitReady() error {
	var ended string
	err := check.Await(r.ctx, 20*time.Second, "agents that know all engines", func() bool {
		ended = r.ended()
		return ended != "" || r.ready()
	})
	if err == nil && ended != "" {
		err = errors.New(ended)
	}
	return err
}

func (r *rig) ready() bool {
	for _, n := range r.nodes {
		s, err := r.status(n)
		if err != nil || !s.Ready || len(s.Engines) < len(r.nodes) {
			return false
		}
		for _, e := range s.Engines {
			if len(e.Models) == 0 {
				return false
			}
		}
	}
	return true
}

// ended names a process that has ended, with the end of its log; "" for none.
func (r *rig) ended() string {
	for _, n := range r.nodes {
		for _, p := range []*check.Process{n.engine, n.agent} {
			if p == nil {
				continue
			}
			if words, ended := p.Ended(); ended {
				return fmt.Sprintf("%s has ended: %s", p.Name, words)
			}
		}
	}
	return ""
}

// close ends the processes of this rig.
func (r *rig) close() {
	r.cancel()
	for _, n := range r.nodes {
		for _, p := range []*check.Process{n.agent, n.engine} {
			if p != nil {
				p.Kill()
			}
		}
	}
	r.client.CloseIdleConnections()
}
