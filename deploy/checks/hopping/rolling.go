package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

const (
	rollingClients = 40 // of each kind
	rollingThink   = 300 * time.Millisecond
	rollingBalance = time.Second // a balancer's period of looking
	rollingCalm    = 3 * time.Second
	// rollingEngine has answers of about two seconds: many are under way when an agent is told to stop.
	rollingEngine = "100"
	mostRolling   = 200 // tokens of an answer: more than any has
)

// checkRolling restarts every agent of a mesh under load, one after the other, as an upgrade does: each is told to stop, has
// ended, is started again and ready, before the next. No client may see an error. Half of the clients are behind a balancer
// that looks at readyz once a second; the others know nothing but a list of addresses, in turn. Both keep their connections, and
// try the next agent when a connection is refused, as every balancer and most clients do; nothing else is tried again.
func checkRolling(ctx context.Context, h *check.Harness) error {
	names, flags := []string{"a", "b", "c", "d", "e", "f", "g", "h"}, []string{"--drain-timeout", "60s"}
	restarts := len(names)
	if h.Short {
		restarts = 1
		names, flags = names[:3], append(flags, "--drain-grace", "2s")
	}
	m, err := lab.Start(ctx, h, lab.Config{
		Names: names, EngineFlags: func(string) []string { return []string{"--answer-tokens", rollingEngine} },
		AgentFlags: func(string) []string { return flags },
	})
	if err != nil {
		return err
	}
	defer m.Close()
	r := &rolling{h: h, mesh: m, ready: make([]atomic.Bool, len(names)), ending: make(chan struct{})}
	r.look(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.balance(ctx) })
	balanced, plain := r.clients(ctx, &wg, true), r.clients(ctx, &wg, false)
	err = r.roll(ctx, m.Agents[:restarts])
	close(r.ending)
	wg.Wait()
	if err != nil {
		return err
	}
	for name, g := range map[string]*rollingGroup{"balanced": balanced, "plain": plain} {
		h.Figures.Zero("rolling_errors_"+name, float64(len(g.failed)), "of %d answers through %d agents, %d of which were restarted one by one; %d connections refused and tried elsewhere; %s",
			g.asked, len(names), restarts, g.refused, first(g.failed))
	}
	h.Figures.AtMost("rolling_restart_seconds_max", slices.Max(r.took).Seconds(), rollingBound.Seconds(),
		"from SIGTERM until ready again: grace for balancers, streams of some seconds, leaving, settling")
	return m.AwaitRest(ctx, 10*time.Second)
}

// rollingBound is for one agent: 5 s of grace, 3 s of streams, 1 s of lingering, the rest for a busy machine.
const rollingBound = 25 * time.Second

// rolling is one run.
type rolling struct {
	h      *check.Harness
	mesh   *lab.Mesh
	ready  []atomic.Bool // as the balancer saw the agents last
	turn   atomic.Int64
	ending chan struct{}
	took   []time.Duration
}

// roll restarts the agents.
func (r *rolling) roll(ctx context.Context, agents []*lab.Agent) error {
	pause(ctx, rollingCalm)
	for _, a := range agents {
		begun := time.Now()
		if err := terminate(ctx, a.Process); err != nil {
			return err
		}
		if code := a.Process.ExitCode(); code != 0 {
			return fmt.Errorf("%s ended with exit code %d", a.Name, code)
		}
		drained := time.Since(begun)
		if err := r.mesh.StartAgent(a); err != nil {
			return err
		}
		if err := check.Await(ctx, time.Minute, a.Name+" to be ready", func() bool { return a.Ready(ctx) }); err != nil {
			return err
		}
		r.took = append(r.took, time.Since(begun))
		r.h.Say("rolling: %s drained in %.1f s, ready after %.1f s", a.Name, drained.Seconds(), time.Since(begun).Seconds())
	}
	pause(ctx, rollingCalm)
	return nil
}

func (r *rolling) balance(ctx context.Context) {
	for {
		select {
		case <-r.ending:
			return
		case <-ctx.Done():
			return
		case <-time.After(rollingBalance):
			r.look(ctx)
		}
	}
}

func (r *rolling) look(ctx context.Context) {
	var wg sync.WaitGroup
	for i, a := range r.mesh.Agents {
		wg.Go(func() { r.ready[i].Store(a.Ready(ctx)) })
	}
	wg.Wait()
}

// rollingGroup is clients of one kind.
type rollingGroup struct {
	balanced bool
	client   *http.Client

	mu      sync.Mutex
	asked   int
	refused int
	failed  []error
}

func (r *rolling) clients(ctx context.Context, wg *sync.WaitGroup, balanced bool) *rollingGroup {
	g := &rollingGroup{balanced: balanced, client: newClient()}
	for k := range rollingClients {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-r.ending:
					return
				case <-ctx.Done():
					return
				case <-time.After(rollingThink):
					r.ask(ctx, g, chat("", fmt.Sprintf("Question %d of client %d: what then?", n, k), mostRolling))
				}
			}
		})
	}
	return g
}

// ask sends a request to the next agent, and where it is refused to the one after.
func (r *rolling) ask(ctx context.Context, g *rollingGroup, q request) {
	var err error
	var at *lab.Agent
	begun := time.Now()
	for range r.mesh.Agents {
		at = r.next(g)
		if _, err = q.send(ctx, g.client, at.HTTP); !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
		g.mu.Lock()
		g.refused++
		g.mu.Unlock()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	if err != nil && ctx.Err() == nil {
		g.failed = append(g.failed, fmt.Errorf("by %s after %.2f s: %w", at.Name, time.Since(begun).Seconds(), err))
		r.h.Say("rolling: balanced %v: %v", g.balanced, g.failed[len(g.failed)-1])
	}
}

// next returns the agent whose turn it is, for a balanced client of those that were ready.
func (r *rolling) next(g *rollingGroup) *lab.Agent {
	n := len(r.ready)
	for range n {
		i := int(r.turn.Add(1)) % n
		if !g.balanced || r.ready[i].Load() {
			return r.mesh.Agents[i]
		}
	}
	return r.mesh.Agents[int(r.turn.Add(1))%n]
}
