package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
	"github.com/kvmesh/kvmesh/internal/node"
)

const (
	voters = 5
	// commonModel is what all engines serve; keptModel only those of the agents that are never lost, under which requests
	// are routed to the same engines with a quorum and without.
	commonModel = lab.Model
	keptModel   = "kept-model"
	kept        = 2 // agents, from the first on
)

// testMesh is five agents that decide together, each a process with an engine beside it.
type testMesh struct {
	*lab.Mesh
	h      *check.Harness
	ctx    context.Context // of the processes
	writes int
}

type agent = lab.Agent

func startMesh(ctx context.Context, h *check.Harness) (*testMesh, error) {
	var names []string
	for i := range voters {
		names = append(names, fmt.Sprint("a", i+1))
	}
	data, err := os.MkdirTemp(h.Dir, "data-")
	if err != nil {
		return nil, err
	}
	mesh, err := lab.Start(ctx, h, lab.Config{
		Names: names,
		EngineFlags: func(name string) []string {
			flags := []string{"--answer-tokens", "8", "--speed", "4"}
			if slices.Index(names, name) < kept {
				flags = append(flags, "--alias", keptModel)
			}
			return flags
		},
		AgentFlags: func(name string) []string {
			return []string{"--data", filepath.Join(data, name), "--bootstrap-expect", fmt.Sprint(voters)}
		},
	})
	if err != nil {
		return nil, err
	}
	m := &testMesh{Mesh: mesh, h: h, ctx: ctx}
	if err := m.awaitOneState(time.Minute); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
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
	for _, a := range m.Agents {
		if words, ended := a.Process.Ended(); ended {
			return a.Name + " has ended: " + words
		}
		s, err := a.Status(m.ctx)
		if err != nil {
			return err.Error()
		}
		if why := lacks(&s); why != "" {
			return a.Name + ": " + why
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
	for _, a := range m.Agents {
		s, err := a.Status(ctx)
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
	for _, a := range m.Agents {
		s, err := a.Status(ctx)
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
	s, err := m.Agents[0].Status(m.ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(m.Agents, func(a *agent) bool { return a.Name == s.Agreed.Leader })
	if i < 0 {
		return nil, fmt.Errorf("no agent is the leader %q", s.Agreed.Leader)
	}
	return m.Agents[i], nil
}

// policyText is the policy of the nth write.
func policyText(n int) string { return fmt.Sprintf("classes: [{name: write%d}]\n", n) }

// write puts a policy of its own into force by an agent, as an operator does, and returns its index.
func (m *testMesh) write(ctx context.Context, a *agent) (index uint64, err error) {
	m.writes++
	file := filepath.Join(m.h.Dir, "policy.yaml")
	if err := os.WriteFile(file, []byte(policyText(m.writes)), 0o600); err != nil {
		return 0, err
	}
	out, err := check.Command{Dir: m.h.Dir, Args: []string{m.h.Bin, "policy", "apply", "--force", "--addr", a.Debug, file}}.Run(ctx)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(strings.TrimSpace(out), "in force: policy of index %d", &index)
	return index, err
}
