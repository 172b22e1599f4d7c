package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
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
	proc       *process
	engine     *process
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
	if m.dir, err = os.MkdirTemp(h.dir, "mesh-"); err != nil {
		return nil, err
	}
	certs := filepath.Join(m.dir, "certs")
	makeCerts := command{dir: m.dir, args: append([]string{h.bin, "cert", "--dir", certs, "--mesh-id", "checks"}, names...)}
	if _, err := makeCerts.run(ctx); err != nil {
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
		if *addr, err = freeAddr(m.ctx); err != nil {
			return err
		}
	}
	m.agents = append(m.agents, a)
	return nil
}

func (m *testMesh) startEngine(a *agent, flags []string) (err error) {
	args := append([]string{"simengine", "--listen", a.engineAddr, "--model", model}, flags...)
	a.engine, err = m.h.start(m.ctx, m.dir, "engine-"+a.name, args...)
	return err
}

// writeConfig writes the agent's config file. Gossip packets go to a free port of its own.
func (m *testMesh) writeConfig(a *agent) error {
	gossip, err := freeAddr(m.ctx)
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
	a.proc, err = m.h.start(m.ctx, m.dir, "agent-"+a.name, "agent", "--config", m.config(a))
	return err
}

// awaitWhole waits until every agent knows every engine and its load.
func (m *testMesh) awaitWhole() error {
	return await(m.ctx, 20*time.Second, "every agent to know every engine", func() bool {
		return !slices.ContainsFunc(m.agents, func(a *agent) bool { return !m.whole(a) })
	})
}

func (m *testMesh) whole(a *agent) bool {
	s, err := meshStatus(m.ctx, a)
	if err != nil || !s.Ready || len(s.Engines) != len(m.agents) {
		return false
	}
	return !slices.ContainsFunc(s.Engines, func(e engineStatus) bool {
		return e.LoadAge < 0 || len(e.Models) == 0 || (e.State != "own" && e.State != "fresh")
	})
}

// close ends the processes of this mesh.
func (m *testMesh) close() {
	m.cancel()
	for _, a := range m.agents {
		for _, p := range []*process{a.proc, a.engine} {
			if p != nil {
				p.kill()
			}
		}
	}
}
