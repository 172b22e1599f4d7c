package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// engines has one engine of eight fail in the ways that are not death, under a steady load.
type engines struct {
	h      *check.Harness
	m      *lab.Mesh
	ill    *lab.Agent // whose engine it is
	client *http.Client
	base   float64 // mean time to the first token without that engine, in ms: of two periods the better
	ills   []illness
}

// illness is what became of the requests while the engine was ill.
type illness struct {
	name string
	got  []served
}

const (
	engineRate   = 14 // requests a second: with seven engines each is busy less than half of the time
	enginesAhead = 20 * time.Second
	leastTokens  = 1500 // of a prompt
	mostMore     = 3000
	bytesOfToken = 4
	fewTokens    = 24 // of an answer
)

// checkEngines measures what clients see of an engine that is ill.
func checkEngines(ctx context.Context, h *check.Harness) (err error) {
	e := &engines{h: h, client: newClient()}
	defer e.client.CloseIdleConnections()
	e.m, err = lab.Start(ctx, h, lab.Config{
		Names:       []string{"a", "b", "c", "d", "e", "f", "g", "h"},
		EngineFlags: e.flags,
	})
	if err != nil {
		return err
	}
	defer e.m.Close()
	e.ill = e.m.Agents[len(e.m.Agents)-1]
	period := time.Minute
	if h.Short {
		period = 15 * time.Second
	}
	e.errors("warm_up", e.play(ctx, 1, enginesAhead))
	if err := e.idleConnections(ctx); err != nil {
		return err
	}
	if err := e.without(ctx, period); err != nil {
		return err
	}
	if err := e.illnesses(ctx, period); err != nil {
		return err
	}
	if err := e.without(ctx, period); err != nil {
		return err
	}
	for _, x := range e.ills {
		e.harm(x.name, x.got)
	}
	return e.m.AwaitRest(ctx, 10*time.Second)
}

// illnesses has the engine show its faults, one after the other.
func (e *engines) illnesses(ctx context.Context, period time.Duration) error {
	faults := []struct {
		name string
		simengine.Faults
		harm bool // others are compared
	}{
		{"errors", simengine.Faults{ErrorRate: 0.05}, false},
		{"stall", simengine.Faults{Stall: true}, true},
		{"hang", simengine.Faults{Hang: true}, true},
		{"slow", simengine.Faults{Slow: 10}, true},
	}
	for _, f := range faults {
		e.h.Say("engines: %s", f.name)
		if err := e.ill.SetFaults(ctx, f.Faults); err != nil {
			return err
		}
		got := e.play(ctx, 2, period)
		e.errors(f.name, got)
		if f.harm {
			e.ills = append(e.ills, illness{f.name, got})
		}
		if err := e.ill.SetFaults(ctx, simengine.Faults{}); err != nil {
			return err
		}
		if err := e.recover(ctx, f.name); err != nil {
			return err
		}
	}
	return nil
}

// shortKeep is how long two of the engines keep idle connections, which is shorter than agents reckon with.
const shortKeep = time.Second

func (e *engines) flags(name string) []string {
	flags := []string{"--answer-tokens", fmt.Sprint(fewTokens)}
	if name == "g" || name == "h" {
		flags = append(flags, "--keep-alive", shortKeep.String())
	}
	return flags
}

// served is what became of a request.
type served struct {
	ttft    time.Duration
	engine  string
	retried bool
	err     error
}

// servings gathers what becomes of requests that are under way at once.
type servings struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	all []served
}

func (s *servings) ask(ctx context.Context, client *http.Client, by *lab.Agent, r request) {
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, clientPatience)
		defer cancel()
		a, err := r.send(ctx, client, by.HTTP)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, served{a.first, a.engine, a.retried, err})
	})
}

func (s *servings) wait() []served {
	s.wg.Wait()
	return s.all
}

// play sends the traffic of a seed at the times of that seed, to all agents, and returns what became of it.
func (e *engines) play(ctx context.Context, seed uint64, period time.Duration) []served {
	rng := rand.New(rand.NewPCG(seed, 7))
	begin := time.Now()
	var out servings
	for at := time.Duration(0); at < period && ctx.Err() == nil; {
		at += time.Duration(rng.ExpFloat64() / engineRate * float64(time.Second))
		r, by := chat("", prompt(rng), fewTokens), e.m.Agents[rng.IntN(len(e.m.Agents))]
		time.Sleep(time.Until(begin.Add(at)))
		out.ask(ctx, e.client, by, r)
	}
	return out.wait()
}

// prompt is a text of a seed's length that no engine holds anything of.
func prompt(rng *rand.Rand) string {
	var b strings.Builder
	for n := bytesOfToken * (leastTokens + rng.IntN(mostMore)); b.Len() < n; {
		fmt.Fprintf(&b, "%07x ", rng.Uint32()>>4)
	}
	return fmt.Sprint(rand.Uint64(), " ", b.String())
}

func (e *engines) errors(name string, all []served) {
	var wrong []error
	for _, s := range all {
		if s.err != nil {
			wrong = append(wrong, s.err)
		}
	}
	e.h.Figures.Zero("engines_"+name+"_client_errors", float64(len(wrong)), "of %d streams; %v", len(all), first(wrong))
}

// without measures the mesh when that engine has ended.
func (e *engines) without(ctx context.Context, period time.Duration) error {
	if err := terminate(ctx, e.ill.EngineProcess); err != nil {
		return err
	}
	if err := e.await(ctx, "down", func(s string) bool { return s == "down" }); err != nil {
		return err
	}
	got := e.play(ctx, 2, period)
	e.errors("without", got)
	var times []time.Duration
	for _, s := range got {
		times = append(times, s.ttft)
	}
	if ms := mean(times); e.base == 0 || ms < e.base {
		e.base = ms
	}
	if err := e.m.StartEngine(e.ill); err != nil {
		return err
	}
	return e.recover(ctx, "restart")
}

// harm compares the mean time to the first token.
func (e *engines) harm(name string, got []served) {
	var elsewhere, all []time.Duration
	for _, s := range got {
		if s.err != nil {
			continue
		}
		all = append(all, s.ttft)
		if s.engine != e.ill.EngineID() && !s.retried {
			elsewhere = append(elsewhere, s.ttft)
		}
	}
	e.h.Figures.AtMost("engines_"+name+"_ttft_elsewhere", mean(elsewhere)/e.base, 1.1,
		"mean time to the first token of the %d requests that never were at the ill engine, %.0f ms, as a share of that in the same mesh, with the same "+
			"traffic, where that engine has ended, %.0f ms, the better of before and after; with the other %d the mean is %.0f ms, and the longest %.1f s",
		len(elsewhere), mean(elsewhere), e.base, len(all)-len(elsewhere), mean(all), slices.Max(append(all, 0)).Seconds())
}

// mean is in milliseconds.
func mean(times []time.Duration) float64 {
	sum := time.Duration(0)
	for _, t := range times {
		sum += t
	}
	return float64(sum) / float64(time.Millisecond) / float64(len(times))
}

// recover waits, under the same load, until all agents find the engine well.
func (e *engines) recover(ctx context.Context, after string) error {
	e.errors("after_"+after, e.play(ctx, 3, enginesAhead))
	return e.await(ctx, "well", func(s string) bool { return s == "own" || s == "fresh" })
}

// await waits until all agents find the ill engine in a state.
func (e *engines) await(ctx context.Context, words string, is func(state string) bool) error {
	return check.Await(ctx, 2*time.Minute, "all agents to find the engine "+words, func() bool {
		return !slices.ContainsFunc(e.m.Agents, func(a *lab.Agent) bool {
			s, err := a.Status(ctx)
			i := slices.IndexFunc(s.Engines, func(x node.EngineStatus) bool { return string(x.Engine) == e.ill.EngineID() })
			return err != nil || i < 0 || !is(s.Engines[i].State)
		})
	})
}

// idleConnections sends bursts at intervals at which engines close connections.
func (e *engines) idleConnections(ctx context.Context) error {
	var out servings
	rng := rand.New(rand.NewPCG(4, 7))
	for i := range 24 {
		interval := shortKeep
		if i%6 == 0 {
			interval = 5 * time.Second // what the others have
		}
		time.Sleep(interval + time.Duration(rng.IntN(40)-20)*time.Millisecond)
		for _, by := range e.m.Agents {
			out.ask(ctx, e.client, by, chat("", fmt.Sprint(rng.Uint64()), 2))
		}
	}
	e.errors("idle_connections", out.wait())
	return ctx.Err()
}
