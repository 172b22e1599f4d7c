// Package lab puts meshes together for the programs of deploy/checks: agents and simulated engines, each a process of its
// own with certificates from kvmesh cert, that can be killed, stopped and started again one by one. It is for those
// programs alone. A Mesh and its agents are for one goroutine, but for what only asks an agent.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/node"
)

const (
	// Model is what the simulated engines serve.
	Model = "sim-model"
	// engineName is how each agent calls the engine beside it.
	engineName = "sim"

	meshID = "checks"
	// startLimit is within what time a mesh must be whole.
	startLimit = time.Minute
)

// Config is what a mesh is made of.
type Config struct {
	Names []string // of the agents; each has one engine
	// EngineFlags and AgentFlags are further flags of kvmesh simengine and kvmesh agent; nil for none.
	EngineFlags   func(name string) []string
	AgentFlags    func(name string) []string
	EngineOptions string // of the agents' flag engine, as "max-running=8"; "" for none
	Policy        string // YAML that every agent starts with; "" for none
	Net           *Net   // on whose hosts the agents are, in order; nil for loopback
}

// Mesh is agents, an engine beside each.
type Mesh struct {
	Agents []*Agent

	h      *check.Harness
	config Config
	ctx    context.Context // of the processes
	cancel context.CancelFunc
	dir    string
}

// Start starts a mesh, and waits until each agent knows all engines. The caller closes it.
func Start(ctx context.Context, h *check.Harness, c Config) (_ *Mesh, err error) {
	m := &Mesh{h: h, config: c}
	m.ctx, m.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	if err := m.prepare(); err != nil {
		return nil, err
	}
	for _, a := range m.Agents {
		if err := errors.Join(m.StartEngine(a), m.StartAgent(a)); err != nil {
			return nil, err
		}
	}
	return m, m.AwaitWhole(startLimit)
}

// prepare makes addresses and files.
func (m *Mesh) prepare() (err error) {
	if m.dir, err = os.MkdirTemp(m.h.Dir, "mesh-"); err != nil {
		return err
	}
	for i, name := range m.config.Names {
		a := &Agent{Name: name, host: i + 1}
		for j, addr := range []*string{&a.HTTP, &a.QUIC, &a.Gossip, &a.Debug, &a.Engine} {
			if *addr, err = m.addr(a.host, j); err != nil {
				return err
			}
		}
		m.Agents = append(m.Agents, a)
	}
	files := []struct{ name, text string }{{"policy.yaml", m.config.Policy}, {"token", debugToken}}
	for _, f := range files {
		if err := os.WriteFile(m.file(f.name), []byte(f.text), 0o600); err != nil {
			return err
		}
	}
	args := append([]string{m.h.Bin, "cert", "--dir", m.file("certs"), "--mesh-id", meshID}, m.config.Names...)
	_, err = check.Command{Dir: m.dir, Args: args}.Run(m.ctx)
	return err
}

// firstPort is the first of the ports that each host of a Net uses.
const firstPort = 7080

func (m *Mesh) addr(host, i int) (string, error) {
	if m.config.Net == nil {
		return m.h.Ports.Addr(m.ctx)
	}
	return fmt.Sprintf("%s:%d", m.config.Net.Addr(host), firstPort+i), nil
}

// start starts kvmesh beside a.
func (m *Mesh) start(a *Agent, name string, args ...string) (*check.Process, error) {
	args = append([]string{m.h.Bin}, args...)
	if m.config.Net != nil {
		args = m.config.Net.Command(a.host, args...)
	}
	name += "-" + a.Name
	return m.h.StartCommand(m.ctx, check.Command{Dir: m.h.Root, Args: args, Log: m.file(name + ".log")}, name)
}

func (m *Mesh) file(name string) string { return filepath.Join(m.dir, name) }

// StartEngine starts the engine beside a, for the first time or again.
func (m *Mesh) StartEngine(a *Agent) (err error) {
	args := []string{"simengine", "--listen", a.Engine, "--model", Model}
	if m.config.EngineFlags != nil {
		args = append(args, m.config.EngineFlags(a.Name)...)
	}
	a.EngineProcess, err = m.start(a, "engine", args...)
	return err
}

// StartAgent starts an agent, for the first time or again.
func (m *Mesh) StartAgent(a *Agent) (err error) {
	args := []string{
		"agent", "--mesh-id", meshID, "--name", a.Name, "--certs", m.file("certs"), "--engine", strings.TrimSpace(engineName + "=http://" + a.Engine + " " + m.config.EngineOptions),
		"--http", a.HTTP, "--quic-bind", a.QUIC, "--gossip-bind", a.Gossip, "--debug", a.Debug,
	}
	for _, seed := range m.Agents {
		args = append(args, "--join", seed.QUIC)
	}
	if m.config.Net != nil {
		args = append(args, "--debug-token-file", m.file("token"))
	}
	if m.config.Policy != "" {
		args = append(args, "--policy", m.file("policy.yaml"))
	}
	if m.config.AgentFlags != nil {
		args = append(args, m.config.AgentFlags(a.Name)...)
	}
	a.Process, err = m.start(a, "agent", args...)
	return err
}

// Close ends the processes of the mesh.
func (m *Mesh) Close() {
	m.cancel()
	for _, a := range m.Agents {
		for _, p := range []*check.Process{a.Process, a.EngineProcess} {
			if p != nil {
				p.Kill()
			}
		}
	}
}

// AwaitWhole waits until every agent is ready and can use every engine. It does not wait for a process that has ended.
func (m *Mesh) AwaitWhole(limit time.Duration) error {
	var lacking, ended []string
	err := check.Await(m.ctx, limit, "every agent to know every engine", func() bool {
		lacking, ended = m.lacking(), m.ended()
		return len(lacking) == 0 || len(ended) > 0
	})
	if err == nil && len(ended) > 0 {
		err = errors.New("the mesh cannot become whole")
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(append(ended, lacking...), "; "))
	}
	return nil
}

// ended names the processes that have ended, each with the end of its log.
func (m *Mesh) ended() []string {
	var out []string
	for _, a := range m.Agents {
		for _, p := range []*check.Process{a.EngineProcess, a.Process} {
			if words, ended := p.Ended(); ended {
				out = append(out, fmt.Sprintf("%s has ended, its log with %q", p.Name, words))
			}
		}
	}
	return out
}

// lacking says what each agent does not know yet; nothing when the mesh is whole.
func (m *Mesh) lacking() []string {
	var out []string
	for _, a := range m.Agents {
		s, err := a.Status(m.ctx)
		if err != nil {
			out = append(out, fmt.Sprintf("agent %s does not answer: %v", a.Name, err))
			continue
		}
		if lacks := m.lacksOf(&s); len(lacks) > 0 {
			out = append(out, fmt.Sprintf("agent %s: %s", a.Name, strings.Join(lacks, ", ")))
		}
	}
	return out
}

// lacksOf says what is missing in an agent's picture of the mesh.
func (m *Mesh) lacksOf(s *node.Status) []string {
	var out []string
	if !s.Ready {
		out = append(out, "is not ready")
	}
	known := map[string]*node.EngineStatus{}
	for i := range s.Engines {
		known[string(s.Engines[i].Engine)] = &s.Engines[i]
	}
	for _, other := range m.Agents {
		e := known[other.EngineID()]
		switch {
		case e == nil:
			out = append(out, "does not know "+other.EngineID())
		case e.LoadAge < 0 || len(e.Models) == 0 || e.State != "own" && e.State != "fresh":
			out = append(out, fmt.Sprintf("sees %s as %q, of models %v, its load %.1f s old", e.Engine, e.State, e.Models, e.LoadAge))
		}
	}
	if len(s.Engines) > len(m.Agents) {
		out = append(out, fmt.Sprintf("knows %d engines of %d", len(s.Engines), len(m.Agents)))
	}
	return out
}
