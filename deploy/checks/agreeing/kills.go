package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/node"
)

const (
	// writePause keeps what is written while an agent is away within the history that agents keep.
	writePause = 100 * time.Millisecond
	// startBound is within what time a killed agent must be ready and have what was acknowledged before its death.
	startBound = 30 * time.Second
)

// killing kills agents of a mesh by chance while an operator writes.
type killing struct {
	m *testMesh

	mu           sync.Mutex
	acknowledged map[uint64]int // number of the write, by index
	last         uint64         // index
	checked      map[uint64]bool
	lost         map[uint64]bool
	failed       []error // starts
	slowest      time.Duration
}

// checkKills kills whole agents, as mesh/agreed's tests do with a voter alone.
func checkKills(ctx context.Context, h *check.Harness) error {
	m, err := startMesh(ctx, h)
	if err != nil {
		return err
	}
	defer m.Close()
	k := &killing{m: m, acknowledged: map[uint64]int{}, checked: map[uint64]bool{}, lost: map[uint64]bool{}}
	kills := size(h, 200, 5)
	writing, stop := context.WithCancel(ctx)
	written := make(chan struct{})
	go func() { defer close(written); k.write(writing) }()
	done := h.Working("kills")
	for range kills {
		if err = k.kill(ctx); err != nil {
			break
		}
	}
	done()
	stop()
	<-written
	err = errors.Join(err, m.awaitOneState(time.Minute))
	for _, a := range m.Agents {
		err = errors.Join(err, k.lookAt(ctx, a, k.last))
	}
	f := h.Figures
	f.Zero("agents_killed_starts_failed", float64(len(k.failed)), "of %d kills of one of five agents; %v", kills, errors.Join(k.failed...))
	f.AtMost("agents_killed_ready_s", k.slowest.Seconds(), startBound.Seconds(), "the longest from an agent's start until it is ready with all that was acknowledged before")
	f.Zero("agents_killed_writes_lost", float64(len(k.lost)), "of %d acknowledged, %d of them looked for", len(k.acknowledged), len(k.checked))
	f.AtLeast("agents_killed_writes_looked_for", float64(len(k.checked)), float64(kills), "of %d acknowledged", len(k.acknowledged))
	return err
}

// write writes at an agent by chance, again and again. What is not acknowledged may be in force or not.
func (k *killing) write(ctx context.Context) {
	for ctx.Err() == nil {
		index, err := k.m.write(ctx, k.m.Agents[rand.IntN(voters)])
		if err == nil {
			k.mu.Lock()
			k.acknowledged[index], k.last = k.m.writes, max(k.last, index)
			k.mu.Unlock()
		}
		select {
		case <-time.After(writePause):
		case <-ctx.Done():
		}
	}
}

// kill kills an agent, starts it again, and looks for what was acknowledged.
func (k *killing) kill(ctx context.Context) error {
	a := k.m.Agents[rand.IntN(voters)]
	time.Sleep(rand.N(3 * writePause))
	a.Process.Kill()
	k.mu.Lock()
	last := k.last
	k.mu.Unlock()
	begin := time.Now()
	if err := k.m.StartAgent(a); err != nil {
		return err
	}
	err := check.Await(ctx, startBound, a.Name+" to be ready again", func() bool {
		s, err := a.Status(ctx)
		if _, ended := a.Process.Ended(); ended {
			return true
		}
		return err == nil && s.Ready && s.Agreed.Policy.Index >= last
	})
	if words, ended := a.Process.Ended(); ended {
		err = errors.New(a.Name + " has ended: " + words)
	}
	if err != nil {
		k.failed = append(k.failed, err)
		return err
	}
	k.slowest = max(k.slowest, time.Since(begin))
	return k.lookAt(ctx, a, last)
}

// lookAt compares an agent's history of policies, which must go on to index last, with what was acknowledged.
func (k *killing) lookAt(ctx context.Context, a *agent, last uint64) error {
	var p node.PolicyAnswer
	if err := a.Debugged(ctx, "/debug/policy", &p); err != nil {
		return err
	}
	if len(p.History) == 0 {
		return errors.New(a.Name + " has no history")
	}
	texts := map[uint64]string{}
	for _, old := range p.History {
		texts[old.Index] = old.Text
	}
	newest, oldest := p.History[0].Index, p.History[len(p.History)-1].Index
	k.mu.Lock()
	defer k.mu.Unlock()
	for index, number := range k.acknowledged {
		if index < oldest || index > max(newest, last) {
			continue // gone by, or not here yet
		}
		k.checked[index] = true
		if texts[index] != policyText(number) {
			k.lost[index] = true
		}
	}
	return nil
}
