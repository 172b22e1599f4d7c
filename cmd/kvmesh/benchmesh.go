package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvmesh/kvmesh/mesh"
)

// benchMesh is the agents of a bench, each a process.
type benchMesh struct {
	dir    string // certificates and logs
	agents []*benchProcess
}

// benchProcess is one agent. It ends when its standard input does.
type benchProcess struct {
	name  string
	log   string // file
	cmd   *exec.Cmd
	stdin io.Closer
	in    *json.Encoder
	out   *json.Decoder
}

// startBenchMesh starts so many agents and waits until each knows all.
func startBenchMesh(ctx context.Context, n int) (m *benchMesh, err error) {
	m = &benchMesh{}
	if m.dir, err = os.MkdirTemp("", "kvmesh-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.stop())
		}
	}()
	if err := m.certify(n); err != nil {
		return nil, err
	}
	var seed string
	for i := range n {
		p, err := m.startAgent(ctx, i, n, seed)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			if err := p.out.Decode(&seed); err != nil {
				return nil, p.explain(err)
			}
		}
	}
	return m, m.each(func(i int, p *benchProcess) error {
		if i > 0 {
			var addr string
			if err := p.out.Decode(&addr); err != nil {
				return err
			}
		}
		return p.out.Decode(&benchMark{})
	})
}

const benchMeshID = "bench"

func benchName(i int) string { return fmt.Sprintf("agent%03d", i) }

// certify makes certificates for n agents, and the gossip key.
func (m *benchMesh) certify(n int) error {
	ca, err := mesh.EphemeralAuthority(benchMeshID)
	if err != nil {
		return err
	}
	for i := range n {
		id, err := ca.Issue(benchName(i), 24*time.Hour)
		if err != nil {
			return err
		}
		if err := id.Write(m.dir); err != nil {
			return err
		}
	}
	return mesh.WriteGossipKeys(filepath.Join(m.dir, mesh.GossipKeyFile), mesh.NewGossipKey())
}

func (m *benchMesh) startAgent(ctx context.Context, i, n int, seed string) (*benchProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &benchProcess{name: benchName(i), log: filepath.Join(m.dir, benchName(i)+".log"), cmd: exec.CommandContext(ctx, self, "bench", "agent")}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.Stderr, p.stdin, p.in, p.out = log, stdin, json.NewEncoder(stdin), json.NewDecoder(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	m.agents = append(m.agents, p)
	c := benchConfig{Certs: m.dir, MeshID: benchMeshID, Name: p.name, Agents: n, Seed: uint64(i + 1)}
	if seed != "" {
		c.Join = []string{seed}
	}
	return p, p.in.Encode(c)
}

// each calls f for all agents at once.
func (m *benchMesh) each(f func(i int, p *benchProcess) error) error {
	var g errgroup.Group
	for i, p := range m.agents {
		g.Go(func() error { return p.explain(f(i, p)) })
	}
	return g.Wait()
}

// explain adds to a failure how the agent's log ends.
func (p *benchProcess) explain(err error) error {
	if err == nil {
		return nil
	}
	const most = 500
	log, _ := os.ReadFile(p.log)
	words := strings.TrimSpace(string(log[max(0, len(log)-most):]))
	return fmt.Errorf("%s: %w: %s", p.name, err, words)
}

// mark gives all agents an order, and returns their counters of the moment.
func (m *benchMesh) mark(o benchOrder) ([]benchMark, error) {
	marks := make([]benchMark, len(m.agents))
	return marks, m.each(func(i int, p *benchProcess) error {
		if err := p.in.Encode(o); err != nil {
			return err
		}
		return p.out.Decode(&marks[i])
	})
}

// measure lets the agents do something for a while.
func (m *benchMesh) measure(ctx context.Context, p benchPhase, bar *benchBar) (r benchRun, err error) {
	r.order = p.order
	settling := p.order
	settling.Sample = false
	early, err := m.mark(settling)
	if err == nil {
		err = bar.sleep(ctx, benchPause)
	}
	if err == nil {
		r.begin, err = m.mark(p.order)
	}
	if err == nil {
		err = bar.sleep(ctx, p.long)
	}
	if err == nil {
		r.end, err = m.mark(benchOrder{})
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", p.name, err)
	}
	r.versions = map[string][]benchVersion{}
	for i, p := range m.agents {
		for _, marks := range [][]benchMark{early, r.begin, r.end} {
			r.versions[p.name] = append(r.versions[p.name], marks[i].Versions...)
		}
	}
	return r, nil
}

// benchFarewell is how long agents have to stop by themselves.
const benchFarewell = 15 * time.Second

// stop ends the agents and waits for their end.
func (m *benchMesh) stop() error {
	for _, p := range m.agents {
		_ = p.stdin.Close()
	}
	late := time.AfterFunc(benchFarewell, func() {
		for _, p := range m.agents {
			_ = p.cmd.Process.Kill()
		}
	})
	defer late.Stop()
	err := m.each(func(_ int, p *benchProcess) error { return p.cmd.Wait() })
	return errors.Join(err, os.RemoveAll(m.dir))
}
