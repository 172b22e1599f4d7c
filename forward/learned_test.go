package forward

import (
	"math"
	"testing"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestScoreHasFiveTerms(t *testing.T) {
	busy := Learned{PrefillRate: 16000, BytesPerToken: 4, AcceptRate: 2, BusyShare: 0.5} // g = 0.5·2/0.5 = 2
	curved := Learned{PrefillFixed: 0.01, PrefillRate: 16000, PrefillBend: 1e-9, BytesPerToken: 4}
	idle := Learned{PrefillRate: 16000, BytesPerToken: 4}
	learned := func(c float64) Learned { return Learned{PrefillRate: 16000, BytesPerToken: 4, RequestCost: c} }
	for _, tt := range []struct {
		name    string
		learned Learned
		load    engine.Load // 16,000 tokens are asked for, of which the engine holds half: x = 0.5 s
		want    float64
	}{
		{"an idle mesh", idle, engine.Load{}, 0.5 + 0.5},
		{"the queue counts as it is", idle, engine.Load{QueuedSeconds: 3}, 3 + 0.5 + 0.5},
		{"all terms", busy, engine.Load{QueuedSeconds: 2, InFlight: 4}, 2 + 0.5 + 0.5 + 2*0.5*(2+0.25) + 0.05*4},
		{
			"no share is above all but a twentieth",
			Learned{PrefillRate: 16000, BytesPerToken: 4, AcceptRate: 2, BusyShare: 1},
			engine.Load{QueuedSeconds: 2},
			2 + 1 + 20*0.5*2.25,
		},
		{
			"no step is above 100 a second",
			Learned{PrefillRate: 16000, BytesPerToken: 4, AcceptRate: 1e6},
			engine.Load{QueuedSeconds: 2},
			2 + 1 + 100*0.5*2.25,
		},
		{"prefill is a + b·n + d·n·(ctx - n/2)", curved, engine.Load{}, 2 * (0.01 + 0.5 + 1e-9*8000*12000)},
		{"the engine's own delay in its own seconds", idle, engine.Load{PrefillRate: 8000}, 1 + 0.5},
		{"its own fixed part", curved, engine.Load{PrefillRate: 16000, PrefillFixed: 0.11}, 0.1 + 2*0.606},
		{"its own curve", curved, engine.Load{PrefillRate: 16000, PrefillBend: 2e-9}, 0.096 + 2*0.606},
		{"no engine is more than eight times slower", idle, engine.Load{PrefillRate: 1}, 4 + 0.5},
		{"nor faster", idle, engine.Load{PrefillRate: 1e9}, 0.0625 + 0.5},
		{"without its rate it counts as the others", curved, engine.Load{PrefillFixed: 9}, 2 * 0.606},
		{"nobody has learned", Learned{}, engine.Load{}, 1},
		{"one more request costs what was learned", learned(0.03), engine.Load{InFlight: 10}, 1 + 0.3},
		{"at least 10 ms", learned(1e-6), engine.Load{InFlight: 10}, 1 + 0.1},
		{"at most 100 ms", learned(7), engine.Load{InFlight: 10}, 1 + 1},
	} {
		q := ask(64000)
		q.Rule.WaitWeight, q.Learned = 2, tt.learned
		c := Candidate{Overlap: 32000, Load: tt.load}
		if got := c.score(q); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestLocalityWeightPricesOverlapOnly(t *testing.T) {
	q := ask(64000)
	q.Rule.WaitWeight = 2
	c := candidate("a/0", 16000, 0, 0)
	for weight, want := range map[float64]float64{0.5: 2 * 0.875, 1: 2 * 0.75, 2: 2 * 0.5, 9: 0} {
		q.Rule.LocalityWeight = weight
		if got := c.score(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("weight %v: got %v, want %v", weight, got, want)
		}
		if got := c.NewSeconds(q); got != 0.75 {
			t.Errorf("weight %v: the engine's time became %v", weight, got)
		}
	}
}

func TestMeansAreOfWhatWasLearned(t *testing.T) {
	all := []Candidate{
		{State: Fresh, Known: true, Load: engine.Load{PrefillRate: 10000, PrefillFixed: 0.02, RequestCost: 0.03, AcceptRate: 1, BusyShare: 0.2, InFlight: 4}},
		{State: Fresh, Known: true, Load: engine.Load{PrefillRate: 20000, PrefillBend: 3e-9, AcceptRate: 3, BusyShare: 0.6, InFlight: 6, BytesPerToken: 5}},
		{State: Fresh}, // has learned nothing, and nothing is known of its load
		{State: Unreachable, Known: true, Load: engine.Load{RequestCost: 0.05, AcceptRate: 100, BusyShare: 1, InFlight: 100}},
		{State: Own, Known: true, Load: engine.Load{Flags: engine.Full, AcceptRate: 100, BusyShare: 1, InFlight: 100}},
	}
	want := Learned{
		PrefillFixed: 0.02, PrefillRate: 15000, PrefillBend: 3e-9, BytesPerToken: 5, RequestCost: 0.04,
		AcceptRate: 2, BusyShare: 0.4, InFlight: 5,
	}
	if got := LearnedBy(all); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := LearnedBy(nil); got != (Learned{}) {
		t.Errorf("of no engine: got %+v", got)
	}
}
