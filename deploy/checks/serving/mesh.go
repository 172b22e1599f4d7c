package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// model is what the simulated engines serve.
const model = "sim-model"

// testMesh is a mesh of processes on this machine, put together as the README shows it: an engine and an agent with a
// config file for each name, certificates from kvmesh cert.
type testMesh struct {
	h      *harness
	ctx    context.Context // of its processes
	cancel context.CancelFunc
	dir    string
	agents []*agent
}

// agent is one agent and the engine beside it.
type agent struct {
	name       string
	http       string // host:port
	quic       string
	debug      string
	engineAddr string
	proc       *check.Process
	engine     *check.Process
}

// engineID is how the mesh calls the engine beside a.
func (a *agent) engineID() string { return a.name + "/" + engineName }

const engineName = "sim"

// startMesh starts agents with the given names and waits until each of them knows all engines.
func startMesh(ctx context.Context, h *harness, names []string, engineFlags ...string) (_ *testMesh, err error) {
	m := &testMesh{h: h}
	m.ctx, m.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.dir, err = os.MkdirTemp(h.Dir, "mesh-"); err != nil {
		return nil, err
	}
	certs := filepath.Join(m.dir, "certs")
	makeCerts := check.Command{Dir: m.dir, Args: append([]string{h.Bin, "cert", "--dir", certs, "--mesh-id", "checks"}, names...)}
	if _, err := makeCerts.Run(ctx); err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := m.addAgent(name); err != nil {
			return nil, err
		}
	}
	for _, a := range m.agents {
		if err := m.startEngine(a, engineFlags); err != nil {
			return nil, err
		}
		if err := errors.Join(m.writeConfig(a), m.startAgent(a)); err != nil {
			return nil, err
		}
	}
	return m, m.awaitWhole()
}

func (m *testMesh) addAgent(name string) error {
	a := &agent{name: name}
	for _, addr := range []*string{&a.http, &a.quic, &a.debug, &a.engineAddr} {
		var err error
		if *addr, err = m.h.Ports.Addr(m.ctx); err != nil {
			return err
		}
	}
	m.agents = append(m.agents, a)
	return nil
}

func (m *testMesh) startEngine(a *agent, flags []string) (err error) {
	args := append([]string{"simengine", "--listen", a.engineAddr, "--model", model}, flags...)
	a.engine, err = m.h.Start(m.ctx, m.dir, "engine-"+a.name, args...)
	return err
}

// writeConfig writes the agent's config file. Gossip packets go to a free port of its own.
func (m *testMesh) writeConfig(a *agent) error {
	gossip, err := m.h.Ports.Addr(m.ctx)
	if err != nil {
		return err
	}
	var seeds []string
	for _, peer := range m.agents {
		seeds = append(seeds, "  - "+peer.quic)
	}
	lines := []string{
		"mesh-id: checks", "name: " + a.name, "certs: " + filepath.Join(m.dir, "certs"),
		"http: " + a.http, "quic-bind: " + a.quic, "gossip-bind: " + gossip, "debug: " + a.debug,
		"engine:", fmt.Sprintf("  - %s=http://%s", engineName, a.engineAddr),
		"join:", strings.Join(seeds, "\n"), "",
	}
	return os.WriteFile(m.config(a), []byte(strings.Join(lines, "\n")), 0o600)
}

func (m *testMesh) config(a *agent) string { return filepath.Join(m.dir, a.name+".yaml") }

// startAgent starts an agent, for the first time or again.
func (m *testMesh) startAgent(a *agent) (err error) {
	a.proc, err = m.h.Start(m.ctx, m.dir, "agent-"+a.name, "agent", "--config", m.config(a))
	return err
}

// awaitWhole waits until every agent knows every engine and its load. It does not wait for a process that has ended.
func (m *testMesh) awaitWhole() error {
	var lacking []string
	err := check.Await(m.ctx, 20*time.Second, "every agent to know every engine", func() bool {
		lacking = m.lacking()
		return len(lacking) == 0 || len(m.ended()) > 0
	})
	missing := append(m.ended(), lacking...)
	if err == nil && len(missing) > 0 {
		err = errors.New("the mesh cannot become whole")
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(missing, "; "))
	}
	return nil
}

// ended names the processes that have ended, each with the end of its log.
func (m *testMesh) ended() []string {
	var out []string
	for _, a := range m.agents {
		for _, p := range []*check.Process{a.engine, a.proc} {
			if words, ended := p.Ended(); ended {
				out = append(out, fmt.Sprintf("%s has ended, its log with %q", p.Name, words))
			}
		}
	}
	return out
}

// lacking says what each agent does not know yet; nothing when the mesh is whole.
func (m *testMesh) lacking() []string {
	var out []string
	for _, a := range m.agents {
		s, err := meshStatus(m.ctx, a)
		if err != nil {
			out = append(out, fmt.Sprintf("agent %s does not answer: %v", a.name, err))
			continue
		}
		if lacks := m.lacksOf(s); len(lacks) > 0 {
			out = append(out, fmt.Sprintf("agent %s: %s", a.name, strings.Join(lacks, ", ")))
		}
	}
	return out
}

// lacksOf says what is missing in an agent's picture of the mesh.
func (m *testMesh) lacksOf(s statusPage) []string {
	var out []string
	if !s.Ready {
		out = append(out, "is not ready")
	}
	for _, other := range m.agents {
		id := other.engineID()
		e, known := s.engine(id)
		switch {
		case !known:
			out = append(out, "does not know "+id)
		case e.LoadAge < 0 || len(e.Models) == 0 || (e.State != "own" && e.State != "fresh"):
			out = append(out, fmt.Sprintf("sees %s as %q, of models %v, its load %.1f s old", id, e.State, e.Models, e.LoadAge))
		}
	}
	if len(s.Engines) > len(m.agents) {
		out = append(out, fmt.Sprintf("knows %d engines of %d", len(s.Engines), len(m.agents)))
	}
	return out
}

// close ends the processes of this mesh.
func (m *testMesh) close() {
	m.cancel()
	for _, a := range m.agents {
		for _, p := range []*check.Process{a.proc, a.engine} {
			if p != nil {
				p.Kill()
			}
		}
	}
}
