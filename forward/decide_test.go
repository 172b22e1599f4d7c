package forward

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func candidate(id string, overlap, queued float64, inFlight int) Candidate {
	return Candidate{
		ID: engine.ID(id), State: Fresh, Known: true, Overlap: overlap,
		Load: engine.Load{QueuedSeconds: queued, InFlight: inFlight, PrefillRate: 16000, BytesPerToken: 4},
	}
}

func with(c Candidate, change func(*Candidate)) Candidate {
	change(&c)
	return c
}

func TestRankChoosesTheLowestScore(t *testing.T) {
	q := Question{Bytes: 64000, Locality: true} // 16,000 tokens: one second of prefill
	full := func(c *Candidate) { c.Load.Flags = engine.Full }
	tests := []struct {
		name   string
		all    []Candidate
		want   engine.ID
		reason string
	}{
		{"the only one", []Candidate{candidate("a/0", 0, 5, 9)}, "a/0", "only"},
		{"the holder", []Candidate{candidate("a/0", 0, 0, 0), candidate("b/0", 60000, 0, 0)}, "b/0", "prefix"},
		{"the holder while its queue costs less than thrice the prefill it saves", []Candidate{
			candidate("a/0", 0, 0, 0), candidate("b/0", 64000, 2.9, 0),
		}, "b/0", "prefix"},
		{"another when the holder's queue costs more", []Candidate{
			candidate("a/0", 0, 0, 0), candidate("b/0", 64000, 3.1, 0),
		}, "a/0", "load"},
		{"the one with fewer in flight when nothing is held", []Candidate{
			candidate("a/0", 0, 0, 3), candidate("b/0", 0, 0, 2),
		}, "b/0", "cold"},
		{"a shared prefix is not worth sixty requests more in flight", []Candidate{
			candidate("a/0", 64000, 0, 61), candidate("b/0", 0, 0, 0),
		}, "b/0", "load"},
		{"never a full one", []Candidate{
			with(candidate("a/0", 64000, 0, 0), full), candidate("b/0", 0, 9, 50),
		}, "b/0", "only"},
		{"one that was asked before one that was not", []Candidate{
			candidate("a/0", 0, 0, 0), with(candidate("b/0", 0, 1, 0), func(c *Candidate) { c.Asked = true }),
		}, "b/0", "cold"},
		{"the holder although its answer is late", []Candidate{
			with(candidate("a/0", 0, 0, 0), func(c *Candidate) { c.Asked, c.Probed = true, true }),
			with(candidate("b/0", 64000, 0, 0), func(c *Candidate) { c.Asked = true }),
		}, "b/0", "prefix"},
		{"no suspect without a probe", []Candidate{
			with(candidate("a/0", 64000, 0, 0), func(c *Candidate) { c.State = Suspect }), candidate("b/0", 0, 2, 0),
		}, "b/0", "only"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			ranked := Rank(q, Shortlist(q, tt.all, rng), rng)
			if len(ranked) == 0 || ranked[0].ID != tt.want || Reason(q, ranked) != tt.reason {
				t.Errorf("got %v, want %s first because of %s", ranked, tt.want, tt.reason)
			}
		})
	}
}

func TestEqualScoresAreSpread(t *testing.T) {
	q := Question{Bytes: 4000, Locality: true}
	counts := map[engine.ID]int{}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 4000 {
		all := []Candidate{candidate("a/0", 0, 0, 0), candidate("b/0", 0, 0, 0), candidate("c/0", 0, 0, 0), candidate("d/0", 0, 0, 0)}
		counts[Rank(q, Shortlist(q, all, rng), rng)[0].ID]++
	}
	for id, n := range counts {
		if n < 850 || n > 1150 {
			t.Errorf("%s was chosen %d times of 4000, want about 1000", id, n)
		}
	}
}

func TestScoresThatHardlyDifferAreEqual(t *testing.T) {
	q := Question{Bytes: 64000, Locality: true}
	rng := rand.New(rand.NewPCG(7, 8))
	counts := map[engine.ID]int{}
	for range 1000 {
		faster := with(candidate("a/0", 0, 0, 0), func(c *Candidate) { c.Load.PrefillRate = 16020 })
		ranked := Rank(q, []Candidate{faster, candidate("b/0", 0, 0, 0), candidate("c/0", 0, 0.02, 0)}, rng)
		counts[ranked[0].ID]++
	}
	if counts["a/0"] < 400 || counts["b/0"] < 400 || counts["c/0"] > 0 {
		t.Errorf("chosen %v, want the first two about equally and never the third", counts)
	}
}

func TestShortlistHasHoldersChanceAndOwn(t *testing.T) {
	q := Question{Bytes: 40000, Locality: true}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		var all []Candidate
		for i := range 40 {
			all = append(all, candidate(string(rune('A'+i))+"/0", 0, 0, 0))
		}
		for i := range 5 {
			all[i].Overlap = 30000 + float64(i)
		}
		all[5].Overlap = 10000 // below half of the best
		all[39].State = Own
		short := Shortlist(q, all, rng)
		holders, own := 0, false
		for _, c := range short {
			if c.Overlap >= 30002 {
				holders++
			}
			own = own || c.State == Own
		}
		if holders != 3 || !own || len(short) < 7 || len(short) > 8 {
			t.Fatalf("got %d of the best three holders, own %t, %d candidates; want 3, true, 7 or 8", holders, own, len(short))
		}
	}
}

func TestProbeSetHasOneChosenByChance(t *testing.T) {
	q := Question{Bytes: 40000, Locality: true}
	short := []Candidate{
		candidate("a/0", 40000, 0, 0), candidate("b/0", 40000, 0, 0), candidate("c/0", 40000, 0, 0),
		candidate("d/0", 0, 0, 0), candidate("e/0", 0, 1, 0),
	}
	set := ProbeSet(q, short)
	if len(set) != 3 || set[2] != 3 {
		t.Errorf("got %v, want two holders and the better of the others", set)
	}
	if set := ProbeSet(q, short[:3]); len(set) != 3 {
		t.Errorf("got %v, want all holders when there is no other", set)
	}
}

// drawCandidates makes a mesh of any states and loads.
func drawCandidates(t *rapid.T) []Candidate {
	n := rapid.IntRange(1, 30).Draw(t, "engines")
	all := make([]Candidate, n)
	for i := range all {
		all[i] = Candidate{
			ID:      engine.MakeID(string(rune('A'+i)), "0"),
			State:   State(rapid.IntRange(0, 3).Draw(t, "state")),
			Known:   rapid.Bool().Draw(t, "known"),
			Overlap: float64(rapid.IntRange(0, 40000).Draw(t, "overlap")),
			Probed:  rapid.Bool().Draw(t, "probed"),
			Load: engine.Load{
				QueuedSeconds: rapid.Float64Range(0, 20).Draw(t, "queued"),
				InFlight:      rapid.IntRange(0, 200).Draw(t, "in flight"),
				PrefillRate:   rapid.Float64Range(0, 1e5).Draw(t, "rate"),
				BytesPerToken: rapid.Float64Range(0, 8).Draw(t, "bytes per token"),
				Flags:         engine.Flags(rapid.IntRange(0, 7).Draw(t, "flags")) & engine.Flags(rapid.IntRange(0, 7).Draw(t, "mask")),
			},
		}
	}
	return all
}

func TestNoIneligibleEngineIsEverChosen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawCandidates(t)
		q := Question{Bytes: 40000, Locality: rapid.Bool().Draw(t, "locality")}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for _, c := range Rank(q, Shortlist(q, all, rng), rng) {
			if c.State == Unreachable || !c.Load.Usable() || (c.State == Suspect && !c.Probed) {
				t.Fatalf("chose %+v", c)
			}
		}
	})
}

func TestOrderOfInputDoesNotMatterToTheBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		short := drawCandidates(t)
		q := Question{Bytes: 40000, Locality: true}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		first := Rank(q, short, rng)
		rng.Shuffle(len(short), func(i, j int) { short[i], short[j] = short[j], short[i] })
		second := Rank(q, short, rng)
		if len(first) != len(second) || (len(first) > 0 && math.Abs(first[0].Score-second[0].Score) > tie) {
			t.Fatalf("got %v, after shuffling %v", first, second)
		}
	})
}

func TestMoreOverlapNeverMakesAnEngineWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCandidates(t)[0]
		q := Question{Bytes: 40000, Locality: true}
		more := c
		more.Overlap += float64(rapid.IntRange(0, 40000).Draw(t, "more"))
		if more.score(q) > c.score(q) {
			t.Fatalf("score rose from %v to %v with overlap from %v to %v", c.score(q), more.score(q), c.Overlap, more.Overlap)
		}
	})
}
