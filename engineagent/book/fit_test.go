package book

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// prefills teaches a Book n prompts of an engine whose prefill lies on truth, with errors of the given share.
func prefills(rng *rand.Rand, n int, truth curve, noise float64, prompt func() Work) *Book {
	r := newRig(usual())
	for range n {
		w := prompt()
		took := seconds(truth.seconds(w.amount()) * math.Exp(noise*rng.NormFloat64()))
		e := &Entry{}
		r.Book.Book(e, w, r.now)
		r.Next(r.now)
		r.pass(took)
		r.LearnPrefill(e, w, r.Content(e, r.now), true)
		r.End(e, r.now)
		r.pass(time.Second)
	}
	return r.Book
}

// mixed are prompts of 600 to 60,000 new tokens behind up to as many cached ones.
func mixed(rng *rand.Rand) func() Work {
	return func() Work {
		n := int(600 * math.Pow(100, rng.Float64()))
		return Work{New: n, Prompt: n + rng.IntN(n+1)}
	}
}

func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

func TestCurveOfPrefillIsFound(t *testing.T) {
	tests := []struct {
		name  string
		truth curve
		noise float64
	}{
		{"a rate alone", curve{perToken: 1.0 / 5000}, 0.05},
		{"a large model on two cards", curve{fixed: 0.05, perToken: 1.0 / 8000, bend: 4e-9}, 0.05},
		{"the same without noise", curve{fixed: 0.05, perToken: 1.0 / 8000, bend: 4e-9}, 0},
		{"a fixed part", curve{fixed: 0.2, perToken: 1.0 / 20_000}, 0.05},
		{"a bend", curve{perToken: 1.0 / 20_000, bend: 2e-9}, 0.05},
		{"a laptop", curve{fixed: 0.5, perToken: 1.0 / 300, bend: 2e-7}, 0.01},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(20) {
				rng := rand.New(rand.NewPCG(seed, 3))
				l := prefills(rng, 200, tt.truth, tt.noise, mixed(rng)).Load(time.Unix(2_000_000_000, 0))
				got := curve{fixed: l.PrefillFixed, perToken: 1 / l.PrefillRate, bend: l.PrefillBend}
				for _, w := range []Work{{New: 600}, {New: 8000}, {New: 8000, Prompt: 64_000}, {New: 60_000}} {
					a := w.amount()
					if !near(got.seconds(a), tt.truth.seconds(a), 0.15) {
						t.Errorf("seed %d: %+v takes %.3f s, want %.3f (%+v)", seed, w, got.seconds(a), tt.truth.seconds(a), got)
					}
				}
				if !near(got.perToken, tt.truth.perToken, 0.2) || !near(got.fixed, tt.truth.fixed, 0.2) && tt.truth.fixed > 0 ||
					!near(got.bend, tt.truth.bend, 0.2) && tt.truth.bend > 0 {
					t.Errorf("seed %d: %+v, want %+v", seed, got, tt.truth)
				}
			}
		})
	}
}

func TestWhatSamplesDoNotTellIsNotLearned(t *testing.T) {
	truth := curve{fixed: 0.05, perToken: 1.0 / 8000, bend: 4e-9}
	tests := []struct {
		name   string
		n      int
		truth  curve
		prompt func(*rand.Rand) Work
	}{
		{"few samples", 16, truth, func(rng *rand.Rand) Work { return mixed(rng)() }},
		{"prompts of one size", 300, truth, func(*rand.Rand) Work { return Work{New: 4000, Prompt: 4000} }},
		{"prompts too small", 300, truth, func(rng *rand.Rand) Work { return Work{New: 1 + rng.IntN(511)} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(50) {
				rng := rand.New(rand.NewPCG(seed, 4))
				b := prefills(rng, tt.n, tt.truth, 0.2, func() Work { return tt.prompt(rng) })
				if l := b.Load(time.Unix(2_000_000_000, 0)); l.PrefillFixed != 0 || l.PrefillBend != 0 {
					t.Errorf("seed %d: %+v", seed, l)
				}
			}
		})
	}
}

func TestNoiseIsSeldomTakenForAShape(t *testing.T) {
	truth := curve{perToken: 1.0 / 8000}
	shaped := 0
	const runs = 100
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 5))
		b := prefills(rng, 200, truth, 0.3, mixed(rng))
		for _, w := range []Work{{New: 1000}, {New: 60_000}} {
			if a := w.amount(); !near(b.speeds.curve.seconds(a), truth.seconds(a), 0.5) {
				t.Errorf("seed %d: %d tokens take %.3f s, want about %.3f", seed, w.New, b.speeds.curve.seconds(a), truth.seconds(a))
			}
		}
		if c := b.speeds.curve; c.fixed > 0 || c.bend > 0 {
			shaped++
		}
	}
	if shaped > runs/5 {
		t.Errorf("%d of %d curves have a shape that the engine has not", shaped, runs)
	}
}

func TestCurveFollowsTheEngine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 6))
	truth := curve{fixed: 0.05, perToken: 1.0 / 8000, bend: 4e-9}
	b := prefills(rng, 200, truth, 0.05, mixed(rng))
	slow := curve{fixed: 0.1, perToken: 1.0 / 4000, bend: 8e-9}
	next := mixed(rng)
	for range 200 {
		e, w := &Entry{alone: true}, next()
		b.LearnPrefill(e, w, seconds(slow.seconds(w.amount())), true)
	}
	if c := b.speeds.curve; !near(c.perToken, slow.perToken, 0.1) || !near(c.fixed, slow.fixed, 0.2) {
		t.Errorf("%+v, want %+v", c, slow)
	}
}

func TestStallIsNoPropertyOfAPrompt(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 7))
	truth := curve{fixed: 0.05, perToken: 1.0 / 8000, bend: 4e-9}
	b := prefills(rng, 200, truth, 0.05, mixed(rng))
	b.LearnPrefill(&Entry{alone: true}, Work{New: 1000}, time.Minute, true)
	a := Work{New: 30_000}.amount()
	if got := b.speeds.curve.seconds(a); !near(got, truth.seconds(a), 0.3) {
		t.Errorf("%.3f s for 30,000 tokens after a stall of a minute, want about %.3f", got, truth.seconds(a))
	}
}

func TestUncertainSampleIsHeldBack(t *testing.T) {
	b := newRig(usual()).Book
	b.LearnPrefill(&Entry{alone: true}, Work{New: second}, time.Millisecond, false)
	if rate, _, _ := b.speeds.learned(); rate > 2*second {
		t.Errorf("%.0f tokens/s from one prompt that may have been cached", rate)
	}
	b.LearnPrefill(&Entry{}, Work{New: second}, time.Hour, true)
	b.LearnPrefill(&Entry{alone: true}, Work{New: second}, 0, true)
	if rate, _, _ := b.speeds.learned(); rate < second {
		t.Errorf("%.0f tokens/s: a prompt behind others, or of unknown time, taught it", rate)
	}
}

func TestLearnedCurveStaysInBounds(t *testing.T) {
	for _, truth := range []curve{{perToken: 1e3}, {perToken: 1e-12}, {perToken: 1e-4, fixed: 500}, {perToken: 1e-4, bend: 1}} {
		rng := rand.New(rand.NewPCG(1, 8))
		next, b := mixed(rng), newRig(usual()).Book
		for range 100 {
			w := next()
			b.LearnPrefill(&Entry{alone: true}, w, max(seconds(truth.seconds(w.amount())), 1), true)
			if c := b.speeds.curve; c != c.bounded() || !(c.perToken > 0) || math.IsNaN(c.fixed+c.bend) {
				t.Fatalf("%+v learned of %+v", c, truth)
			}
		}
	}
}
