package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// probePeriod is the time between two small requests: it is also how exactly the last choice is known.
	probePeriod = 50 * time.Millisecond
	// collectPeriod is the time between two readings of the agents' decisions, of which they keep 256.
	collectPeriod = time.Second
)

// watch sends small requests all the time and collects the decisions of agents.
type watch struct {
	m       *testMesh
	through []*agent
	cancel  context.CancelFunc
	tasks   sync.WaitGroup

	mu        sync.Mutex
	decisions map[string]decision // by request
	probes    []probe
}

// probe is one small request.
type probe struct {
	sent     time.Time
	answered time.Time
	engine   string
	err      error
}

func newWatch(m *testMesh, through []*agent) *watch {
	return &watch{m: m, through: through, decisions: map[string]decision{}, cancel: func() {}}
}

// start begins to send and to collect, until stop.
func (w *watch) start(ctx context.Context) {
	ctx, w.cancel = context.WithCancel(ctx)
	w.tasks.Go(func() { w.sendAll(ctx) })
	w.tasks.Go(func() {
		for every(ctx, collectPeriod) {
			w.collect(ctx)
		}
	})
}

// stop ends the small requests and waits for them.
func (w *watch) stop() {
	w.cancel()
	w.tasks.Wait()
}

// every waits for a period; false when ctx has ended.
func every(ctx context.Context, period time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(period):
		return true
	}
}

func (w *watch) sendAll(ctx context.Context) {
	client := newClient()
	for i := 0; every(ctx, probePeriod); i++ {
		a := w.through[i%len(w.through)]
		w.tasks.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			p := probe{sent: time.Now()}
			c := chat{id: fmt.Sprintf("probe-%d", i), user: fmt.Sprintf("%d: what is %d?", i, rand.Uint32()), maxTokens: 1}
			header, _, err := c.ask(ctx, client, a.HTTP)
			p.engine, p.answered, p.err = header.Get("X-Kvmesh-Engine"), time.Now(), err
			w.note(ctx, p)
		})
	}
}

// note keeps a small request, unless it was cut short by the end of the watch.
func (w *watch) note(ctx context.Context, p probe) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != context.Canceled {
		w.probes = append(w.probes, p)
	}
}

// collect reads the agents' decisions. An agent that does not answer is asked again later.
func (w *watch) collect(ctx context.Context) {
	for _, a := range w.through {
		all, err := decisions(ctx, a)
		if err != nil {
			continue
		}
		w.mu.Lock()
		for _, d := range all {
			w.decisions[d.ID] = d
		}
		w.mu.Unlock()
	}
}

// decision returns the decision on a request.
func (w *watch) decision(id string) (decision, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, ok := w.decisions[id]
	return d, ok
}

// hit reports whether an engine was tried for the request.
func (d decision) hit(engine string) bool {
	return slices.ContainsFunc(d.Attempts, func(a attempt) bool { return a.Engine == engine })
}

// lost reports whether an engine had accepted the request when its agent was lost.
func (d decision) lost(engine string) bool {
	return slices.Contains(d.Attempts, attempt{Engine: engine, Result: "peer_lost"})
}

// lastChoice returns how long after a moment an engine was chosen for the last time, by the requests that came after
// it, and their number. A request's first attempt counts as chosen when the request came; a later one, whose moment is
// not known, when the request had its first content, which is later than true.
func (w *watch) lastChoice(engine string, since time.Time) (last time.Duration, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.decisions {
		if !d.Time.After(since) || !d.hit(engine) {
			continue
		}
		n++
		at := d.Time
		if d.Attempts[0].Engine != engine || slices.ContainsFunc(d.Attempts[1:], func(a attempt) bool { return a.Engine == engine }) {
			at = at.Add(d.TTFT)
		}
		last = max(last, at.Sub(since))
	}
	return last, n
}

func (w *watch) probeCounts() (sent, failed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.probes {
		if p.err != nil {
			failed++
		}
	}
	return len(w.probes), failed
}

// probeErrors returns at most five errors of small requests.
func (w *watch) probeErrors() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, p := range w.probes {
		if p.err != nil && len(out) < 5 {
			out = append(out, p.err.Error())
		}
	}
	return out
}

// firstServed returns the time from a moment until the first answer of an engine to a small request sent after it; -1
// when there is none.
func (w *watch) firstServed(engine string, since time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := time.Duration(-1)
	for _, p := range w.probes {
		if d := p.answered.Sub(since); p.err == nil && p.engine == engine && p.sent.After(since) && (first < 0 || d < first) {
			first = d
		}
	}
	return first
}

func (w *watch) servedSince(engine string, since time.Time) bool {
	return w.firstServed(engine, since) >= 0
}
