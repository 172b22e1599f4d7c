package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

const (
	abortBatch = 50
	abortBound = time.Second
)

// checkAborts has clients give up streams at random moments: nothing may be left booked anywhere, and the engines must
// stop working for nobody.
func checkAborts(ctx context.Context, h *harness) error {
	total := 1000
	if h.Short {
		total = 200
	}
	// Answers of 1,000 tokens and more at 20 ms each: none ends before it is given up.
	m, err := startMesh(ctx, h, []string{"a", "b", "c"}, "--answer-tokens", "2000")
	if err != nil {
		return err
	}
	defer m.Close()
	r := abortRun{m: m, client: newClient(), rng: rand.New(rand.NewPCG(3, 4))}
	for r.total < total {
		if err := r.batch(ctx); err != nil {
			return err
		}
	}
	return r.figures(ctx)
}

// abortRun is the state of the check.
type abortRun struct {
	m         *testMesh
	client    *http.Client
	rng       *rand.Rand
	total     int
	kinds     map[string]int
	slowest   time.Duration // from the last abort of a batch until no engine runs anything
	completed int           // streams that ended before they could be given up
}

// abortPlan says when a client gives up.
type abortPlan struct {
	kind  string
	after time.Duration // since it was sent
	event int           // or at this content event
}

// planner returns the plans of a batch. In every second batch all clients give up at one moment, when some of them have
// content and others wait: the time until the engines are idle is then that of each.
func (r *abortRun) planner() func() abortPlan {
	if r.total/abortBatch%2 == 0 {
		return r.plan
	}
	p := abortPlan{kind: "together", after: time.Duration(100+r.rng.IntN(1400)) * time.Millisecond}
	return func() abortPlan { return p }
}

// plan draws a moment: before the accept, before the first token, in mid-stream. The accept takes about a millisecond,
// the first token between 0.1 s and the whole queue of a batch, 4 s.
func (r *abortRun) plan() abortPlan {
	switch r.rng.IntN(3) {
	case 0:
		return abortPlan{kind: "before_accept", after: time.Duration(r.rng.IntN(3000)) * time.Microsecond}
	case 1:
		return abortPlan{kind: "before_content", after: time.Duration(3+r.rng.IntN(300)) * time.Millisecond}
	default:
		return abortPlan{kind: "mid_stream", event: 1 + r.rng.IntN(25)}
	}
}

// batch runs streams at once, each given up as planned, and waits until the engines are idle.
func (r *abortRun) batch(ctx context.Context) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var last time.Time
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	plan := r.planner()
	for i := range abortBatch {
		s := &stream{agent: r.m.Agents[i%len(r.m.Agents)]}
		s.chat = chat{system: prose(r.rng, 500+r.rng.IntN(8000)), user: prose(r.rng, 100), stream: true}
		p := plan()
		r.count(p)
		wg.Go(func() {
			at := p.abort(ctx, r.client, s)
			mu.Lock()
			defer mu.Unlock()
			if s.done {
				r.completed++
			}
			if at.After(last) {
				last = at
			}
		})
	}
	wg.Wait()
	return r.awaitIdle(ctx, last)
}

func (r *abortRun) count(p abortPlan) {
	if r.kinds == nil {
		r.kinds = map[string]int{}
	}
	r.kinds[p.kind]++
	r.total++
}

// abort plays s until the planned moment and returns when that was.
func (p abortPlan) abort(ctx context.Context, client *http.Client, s *stream) (at time.Time) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	giveUp := func() { once.Do(func() { at = time.Now(); cancel() }) }
	if p.event == 0 {
		t := time.AfterFunc(p.after, giveUp)
		defer t.Stop()
	}
	s.play(ctx, client, func(n int) {
		if p.event > 0 && n >= p.event {
			giveUp()
		}
	})
	giveUp()
	return at
}

// awaitIdle measures the time from the last abort until no engine runs or holds anything.
func (r *abortRun) awaitIdle(ctx context.Context, last time.Time) error {
	err := check.Await(ctx, 10*time.Second, "the engines to be idle", func() bool { return r.busy(ctx) == 0 })
	r.slowest = max(r.slowest, time.Since(last))
	r.m.h.Say("aborts: %d given up, engines idle %.0f ms after the last", r.total, time.Since(last).Seconds()*1e3)
	return err
}

// busy returns the number of requests on all engines; an engine that does not answer counts as one.
func (r *abortRun) busy(ctx context.Context) int {
	n := 0
	for _, a := range r.m.Agents {
		s, err := stats(ctx, a)
		if err != nil {
			n++
		}
		n += s.Running + s.Waiting
	}
	return n
}

func (r *abortRun) figures(ctx context.Context) error {
	f := r.m.h.Figures
	f.AtMost("aborts_engine_idle_seconds_max", r.slowest.Seconds(), abortBound.Seconds(),
		"from the last abort of a batch of %d until no engine runs anything; %d streams in all", abortBatch, r.total)
	f.Zero("aborts_streams_completed", float64(r.completed), "of %d; aborted by kind: %v", r.total, r.kinds)
	var sequences, aborted int64
	for _, a := range r.m.Agents {
		s, err := stats(ctx, a)
		if err != nil {
			return err
		}
		sequences, aborted = sequences+s.Sequences, aborted+s.Aborted
	}
	f.Zero("aborts_not_seen_by_engines", float64(sequences-aborted), "of %d streams that reached an engine", sequences)
	// About a third of the streams is given up before an engine can have seen them; of the rest all have been.
	f.AtLeast("aborts_reached_engines", float64(sequences)/float64(r.total), 0.5, "share of all streams")
	return r.counterFigures(ctx)
}

// counterFigures looks at every counter of every agent: each must be back at exactly 0.
func (r *abortRun) counterFigures(ctx context.Context) error {
	left := 0
	zero := func() bool {
		left = 0
		for _, a := range r.m.Agents {
			s, err := meshStatus(ctx, a)
			if err != nil {
				return false
			}
			left += s.Counters.sum()
		}
		return left == 0
	}
	if err := check.Await(ctx, 2*time.Second, "the agents' counters to be 0", zero); err != nil && left == 0 {
		return err
	}
	f := r.m.h.Figures
	for _, a := range r.m.Agents {
		s, err := meshStatus(ctx, a)
		if err != nil {
			return err
		}
		f.Zero("aborts_counters_left_on_"+a.Name, float64(s.Counters.sum()), "%s", fmt.Sprintf("%+v", s.Counters))
	}
	return nil
}
