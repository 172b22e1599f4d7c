package book

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// steps is an engine that gives one token to each running request in a step, which takes longer the more there are.
type steps struct {
	base, each float64 // seconds of a step, and for each request in it
	noise      float64 // share
	output     float64 // mean tokens of an answer
	arrivals   func(now float64) float64
	constant   int // requests that always run, in place of arrivals
}

type stream struct {
	e            *Entry
	tokens, left int
}

// run lets the engine serve for so many seconds and returns its book.
func (s steps) run(rng *rand.Rand, duration float64) *Book {
	r := newRig(Config{MaxRunning: 1 << 20})
	start := r.now
	var live []*stream
	for now := 0.0; now < duration; now = r.now.Sub(start).Seconds() {
		step := (s.base + s.each*float64(len(live))) * math.Exp(s.noise*rng.NormFloat64())
		for range s.come(rng, now, step, len(live)) {
			e := &Entry{}
			r.Book.Book(e, Work{New: 100}, r.now)
			r.Next(r.now)
			r.Content(e, r.now)
			n := 1 + int(s.output*rng.ExpFloat64())
			live = append(live, &stream{e, n, n - 1})
		}
		r.pass(seconds(step))
		live = s.step(r, live)
	}
	return r.Book
}

func (s steps) come(rng *rand.Rand, now, step float64, running int) (n int) {
	if s.constant > 0 {
		return s.constant - running
	}
	for p := s.arrivals(now) * step; rng.Float64() < p; p-- {
		n++
	}
	return n
}

func (s steps) step(r *rig, live []*stream) []*stream {
	still := live[:0]
	for _, l := range live {
		if l.left--; l.left > 0 {
			still = append(still, l)
			continue
		}
		r.End(l.e, r.now)
		r.LearnDecode(l.e, l.tokens)
	}
	return still
}

// waves are arrivals a second that come and go, as those of an afternoon in fast motion.
func waves(mean float64) func(float64) float64 {
	return func(now float64) float64 { return mean * (1 + 0.8*math.Sin(now/20)) }
}

func TestCostOfARunningRequestIsFound(t *testing.T) {
	tests := []struct {
		name string
		s    steps
	}{
		{"a busy batch", steps{base: 0.006, each: 0.00035, output: 110, arrivals: waves(4)}},
		{"with noise", steps{base: 0.006, each: 0.00035, noise: 0.3, output: 110, arrivals: waves(4)}},
		{"a small cost", steps{base: 0.02, each: 0.0001, noise: 0.1, output: 200, arrivals: waves(4)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(10) {
				b := tt.s.run(rand.New(rand.NewPCG(seed, 9)), 300)
				if want := tt.s.each * tt.s.output; !near(b.decode.cost, want, 0.2) {
					t.Errorf("seed %d: %.1f ms, want %.1f", seed, b.decode.cost*1e3, want*1e3)
				}
			}
		})
	}
}

func TestWhatStreamsDoNotTellIsNoCost(t *testing.T) {
	tests := []struct {
		name   string
		s      steps
		lowest bool // the bound will do: it costs less
	}{
		{"constant running", steps{base: 0.006, each: 0.00035, noise: 0.3, output: 110, constant: 8}, false},
		{"answers of a token", steps{base: 0.006, each: 0.00035, output: 0, arrivals: waves(50)}, false},
		{"short answers", steps{base: 0.006, each: 0.00035, output: 3, arrivals: waves(30)}, true},
		{"no cost", steps{base: 0.02, noise: 0.1, output: 110, arrivals: waves(4)}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(10) {
				b := tt.s.run(rand.New(rand.NewPCG(seed, 10)), 300)
				if c := b.decode.cost; c != 0 && (!tt.lowest || c != minRequestCost) {
					t.Errorf("seed %d: %.1f ms", seed, c*1e3)
				}
			}
		})
	}
}

// TestPrefillIsNotTheRunningRequestsFault: an engine prefills the more the more requests it has, and decodes slower then.
func TestPrefillIsNotTheRunningRequestsFault(t *testing.T) {
	const each, output = 0.0001, 300
	for seed := range uint64(10) {
		b := newRig(usual()).Book
		rng := rand.New(rand.NewPCG(seed, 12))
		for range 2000 {
			load := rng.Float64()
			running := 5 + 40*load + 4*rng.NormFloat64()
			prefill := min(max(load+0.2*rng.NormFloat64(), 0), 1)
			b.decode.answered(output)
			b.decode.add(decoded{running: running, prefill: prefill, perToken: 0.02*(1+prefill/2) + each*running})
		}
		if !near(b.decode.cost, each*output, 0.05) {
			t.Errorf("seed %d: %.1f ms, want %.1f", seed, b.decode.cost*1e3, each*output*1e3)
		}
	}
}

func TestKnownCostOutlastsASteadyLoad(t *testing.T) {
	b := newRig(usual()).Book
	for i := range 200 {
		running := float64(1 + i%20)
		b.decode.answered(100)
		b.decode.add(decoded{running: running, perToken: 0.01 + 0.0005*running})
	}
	known := b.decode.cost
	rng := rand.New(rand.NewPCG(1, 11))
	for _, noise := range []float64{0.2, 0} {
		for range 20_000 {
			b.decode.add(decoded{running: 10, perToken: 0.015 * (1 + noise*rng.NormFloat64())})
		}
		if !near(known, 0.05, 0.01) || !near(b.decode.cost, known, 0.05) {
			t.Errorf("%.1f ms, then %.1f", known*1e3, b.decode.cost*1e3)
		}
	}
}

func TestStreamRunsWithAllThatTheEngineSendsTokensOf(t *testing.T) {
	r := newRig(usual())
	for _, name := range []string{"whole", "stream"} {
		r.book(name, Work{New: 1600, Whole: name == "whole"})
	}
	r.handed()
	r.Read(Reading{Running: 5}, r.Mark()) // three of them foreign
	r.pass(100 * time.Millisecond)
	r.content("stream")
	r.pass(time.Second)
	r.end("stream")
	r.LearnDecode(r.entries["stream"], 101)
	if got := r.decode.mean.running; got != 5 {
		t.Errorf("%v requests ran, want the stream, the other and three foreign ones", got)
	}
}

func TestOnlyStreamsWithTokensTeachACost(t *testing.T) {
	r := newRig(usual())
	end := func(w Work, tokens int) {
		e := &Entry{}
		r.Book.Book(e, w, r.now)
		r.Next(r.now)
		r.Content(e, r.now)
		r.pass(time.Second)
		r.End(e, r.now)
		r.LearnDecode(e, tokens)
	}
	end(Work{New: 1}, 0)
	end(Work{New: 1}, -1)
	end(Work{New: 1}, minTokens-1)
	end(Work{New: 1, Whole: true}, 100)
	if r.decode.samples != 0 || math.Ceil(r.decode.answers) != 2 {
		t.Errorf("%v samples of %v answers, want none of 2", r.decode.samples, r.decode.answers)
	}
	end(Work{New: 1}, 101)
	if d := r.decode; d.samples != 1 || d.mean.running != 1 || d.mean.perToken != 0.01 {
		t.Errorf("%+v, want 10 ms a token with one running", d)
	}
}
