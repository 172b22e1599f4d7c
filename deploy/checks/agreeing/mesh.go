package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/node"
)

const (
	voters = 5
	// commonModel is what all engines serve; keptModel only those of the agents that are never lost, under which requests
	// are routed to the same engines with a quorum and without.
	commonModel = "sim-model"
	keptModel   = "kept-model"
	kept        = 2 // agents, from the first on
)

// testMesh is five agents that decide together, each a process with an engine beside it.
type testMesh struct {
	h      *check.Harness
	ctx    context.Context // of the processes
	cancel context.CancelFunc
	agents []*agent
	writes int
}

type agent struct {
	name, http, quic, gossip, debug, engineAddr string
	proc, engine                                *check.Process
}

func startMesh(ctx context.Context, h *check.Harness) (_ *testMesh, err error) {
	m := &testMesh{h: h}
	m.ctx, m.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	args := []string{h.Bin, "cert", "--dir", m.file("certs"), "--mesh-id", "checks"}
	for i := range voters {
		a := &agent{name: fmt.Sprint("a", i+1)}
		for _, addr := range []*string{&a.http, &a.quic, &a.gossip, &a.debug, &a.engineAddr} {
			if *addr, err = h.Ports.Addr(ctx); err != nil {
				return nil, err
			}
		}
		m.agents, args = append(m.agents, a), append(args, a.name)
	}
	if _, err := (check.Command{Dir: h.Dir, Args: args}).Run(ctx); err != nil {
		return nil, err
	}
	for i, a := range m.agents {
		if err := errors.Join(m.startEngine(a, i < kept), m.startAgent(a)); err != nil {
			return nil, err
		}
	}
	return m, m.awaitOneState(time.Minute)
}

func (m *testMesh) file(name string) string { return filepath.Join(m.h.Dir, name) }

func (m *testMesh) startEngine(a *agent, kept bool) (err error) {
	args := []string{"simengine", "--listen", a.engineAddr, "--model", commonModel, "--answer-tokens", "8", "--speed", "4"}
	if kept {
		args = append(args, "--alias", keptModel)
	}
	a.engine, err = m.h.Start(m.ctx, m.h.Dir, "engine-"+a.name, args...)
	return err
}

// startAgent starts an agent, for the first time or again on the folder that it left.
func (m *testMesh) startAgent(a *agent) (err error) {
	args := []string{
		"agent", "--mesh-id", "checks", "--name", a.name, "--certs", m.file("certs"), "--engine", "http://" + a.engineAddr,
		"--http", a.http, "--quic-bind", a.quic, "--gossip-bind", a.gossip, "--debug", a.debug,
		"--data", m.file("data-" + a.name), "--bootstrap-expect", fmt.Sprint(voters),
	}
	for _, seed := range m.agents {
		args = append(args, "--join", seed.quic)
	}
	a.proc, err = m.h.Start(m.ctx, m.h.Dir, "agent-"+a.name, args...)
	return err
}

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

var debugClient = &http.Client{Timeout: 5 * time.Second}

func (a *agent) status(ctx context.Context) (s node.Status, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.debug+"/debug/mesh.json", nil)
	if err != nil {
		return s, err
	}
	resp, err := debugClient.Do(r)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("status of %s: %s", a.name, resp.Status)
	}
	return s, json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&s)
}

// awaitOneState waits until all agents are ready, vote, know all engines and have the same state.
func (m *testMesh) awaitOneState(limit time.Duration) error {
	why := ""
	err := check.Await(m.ctx, limit, "one state on all agents", func() bool { why = m.differs(); return why == "" })
	if err != nil {
		return fmt.Errorf("%w: %s", err, why)
	}
	return nil
}

// differs says what is not yet the same on all agents; "" when all is.
func (m *testMesh) differs() string {
	var first *node.Status
	for _, a := range m.agents {
		if words, ended := a.proc.Ended(); ended {
			return a.name + " has ended: " + words
		}
		s, err := a.status(m.ctx)
		if err != nil {
			return err.Error()
		}
		if why := lacks(&s); why != "" {
			return a.name + ": " + why
		}
		if first == nil {
			first = &s
		}
		if one, other := stateOf(first), stateOf(&s); one != other {
			return fmt.Sprintf("%s has %s, %s has %s", first.Agent, one, s.Agent, other)
		}
	}
	return ""
}

func lacks(s *node.Status) string {
	g := &s.Agreed
	here := 0
	for _, x := range g.Members {
		if x.Voter && x.Here {
			here++
		}
	}
	usable := 0
	for _, e := range s.Engines {
		if (e.State == "own" || e.State == "fresh") && e.LoadAge >= 0 {
			usable++
		}
	}
	switch {
	case !s.Ready:
		return "not ready"
	case !g.Quorum || here < voters:
		return fmt.Sprintf("leader %q, %d voters reached", g.Leader, here)
	case len(g.Faults) > 0:
		return fmt.Sprintf("faults %v", g.Faults)
	case usable < voters:
		return fmt.Sprintf("%d engines can be used", usable)
	}
	return ""
}

// stateOf names the state that an agent holds by index and hash.
func stateOf(s *node.Status) string {
	return fmt.Sprintf("%d/%d %s", s.Agreed.Epoch, s.Agreed.Index, s.Agreed.Hash)
}

// states returns the states that agents hold, each once.
func (m *testMesh) states(ctx context.Context) ([]string, error) {
	var all []string
	for _, a := range m.agents {
		s, err := a.status(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, stateOf(&s))
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// without counts the agents that route by another policy than that of an index.
func (m *testMesh) without(ctx context.Context, index uint64) (n int, err error) {
	for _, a := range m.agents {
		s, err := a.status(ctx)
		if err != nil {
			return n, err
		}
		if s.Agreed.Policy.Index != index {
			n++
		}
	}
	return n, nil
}

// leader returns the agent that leads, as the first agent knows it.
func (m *testMesh) leader() (*agent, error) {
	s, err := m.agents[0].status(m.ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(m.agents, func(a *agent) bool { return a.name == s.Agreed.Leader })
	if i < 0 {
		return nil, fmt.Errorf("no agent is the leader %q", s.Agreed.Leader)
	}
	return m.agents[i], nil
}

// write puts a policy of its own into force by an agent, as an operator does, and returns its index.
func (m *testMesh) write(ctx context.Context, a *agent) (index uint64, err error) {
	m.writes++
	file := m.file("policy.yaml")
	text := fmt.Sprintf("classes: [{name: write%d}]\n", m.writes)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return 0, err
	}
	out, err := check.Command{Dir: m.h.Dir, Args: []string{m.h.Bin, "policy", "apply", "--force", "--addr", a.debug, file}}.Run(ctx)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(strings.TrimSpace(out), "in force: policy of index %d", &index)
	return index, err
}
