package forward

import (
	"math/rand/v2"
	"slices"
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

// ask is a question about a prompt by the rule in use.
func ask(bytes float64) *Question {
	return &Question{Rule: DefaultRule(), Strategy: StrategyAuto, Bytes: bytes, Locality: true}
}

func rngOfTests() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func with(c Candidate, changes ...func(*Candidate)) Candidate {
	for _, change := range changes {
		change(&c)
	}
	return c
}

func TestRankChoosesTheLowestScore(t *testing.T) {
	q := ask(64000) // 16,000 tokens: one second of prefill
	full := func(c *Candidate) { c.Load.Flags = engine.Full }
	ejected := func(c *Candidate) { c.Load.Flags = engine.Ejected }
	suspect := func(c *Candidate) { c.State = Suspect }
	late := func(c *Candidate) { c.Asked = true }
	answered := func(c *Candidate) { c.Asked, c.Probed = true, true }
	tests := []struct {
		name   string
		all    []Candidate
		want   engine.ID
		reason string
	}{
		{"the only one", []Candidate{candidate("a/0", 0, 5, 9)}, "a/0", "only"},
		{"the holder", []Candidate{candidate("a/0", 0, 0, 0), candidate("b/0", 60000, 0, 0)}, "b/0", "prefix"},
		{"the holder while its queue costs less than the price of the prefill it saves", []Candidate{
			candidate("a/0", 0, 0, 0), candidate("b/0", 64000, 2.4, 0),
		}, "b/0", "prefix"},
		{"another when the holder's queue costs more", []Candidate{
			candidate("a/0", 0, 0, 0), candidate("b/0", 64000, 2.6, 0),
		}, "a/0", "load"},
		{"the one with fewer in flight when nothing is held", []Candidate{
			candidate("a/0", 0, 0, 3), candidate("b/0", 0, 0, 2),
		}, "b/0", "cold"},
		{"a shared prefix is not worth fifty requests more in flight", []Candidate{
			candidate("a/0", 64000, 0, 51), candidate("b/0", 0, 0, 0),
		}, "b/0", "load"},
		{"never a full one", []Candidate{
			with(candidate("a/0", 64000, 0, 0), full), candidate("b/0", 0, 9, 50),
		}, "b/0", "only"},
		{"never an ejected one", []Candidate{
			with(candidate("a/0", 64000, 0, 0), ejected), candidate("b/0", 0, 9, 50), candidate("c/0", 0, 10, 50),
		}, "b/0", "cold"},
		{"an ejected one when most are", []Candidate{
			with(candidate("a/0", 64000, 0, 0), ejected), candidate("b/0", 0, 0, 0), with(candidate("c/0", 0, 0, 0), ejected),
		}, "a/0", "prefix"},
		{"one that was asked before one that was not", []Candidate{
			candidate("a/0", 0, 0, 0), with(candidate("b/0", 0, 1, 0), late),
		}, "b/0", "cold"},
		{"the holder although its answer is late", []Candidate{
			with(candidate("a/0", 0, 0, 0), answered), with(candidate("b/0", 64000, 0, 0), late),
		}, "b/0", "prefix"},
		{"a suspect that has not answered, where it saves more than a wrong try costs", []Candidate{
			with(candidate("a/0", 2000, 0, 0), suspect), candidate("b/0", 0, 0, 0), // 500 tokens: 78 ms by the score
		}, "a/0", "prefix"},
		{"no such suspect where it saves less", []Candidate{
			with(candidate("a/0", 900, 0, 0), suspect), candidate("b/0", 0, 0, 0), // 225 tokens: 35 ms
		}, "b/0", "load"},
		{"a suspect that has answered, where it saves as little", []Candidate{
			with(candidate("a/0", 900, 0, 0), suspect, answered), candidate("b/0", 0, 0, 0),
		}, "a/0", "prefix"},
		{"nor a holder whose answer is late, where it saves less", []Candidate{
			with(candidate("a/0", 900, 0, 0), late), with(candidate("b/0", 0, 0, 0), answered),
		}, "b/0", "load"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			Overrule(tt.all)
			ranked := Rank(q, Shortlist(q, tt.all, rng), rng)
			if len(ranked) == 0 || ranked[0].ID != tt.want || Reason(q, ranked) != tt.reason {
				t.Errorf("got %v, want %s first because of %s", ranked, tt.want, tt.reason)
			}
		})
	}
}

func TestEqualScoresAreSpread(t *testing.T) {
	q := ask(4000)
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
	q := ask(64000)
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
	q := ask(40000)
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
		if drawn := len(short) - holders; holders != 3 || !own || drawn < q.Rule.ByChance || drawn > q.Rule.ByChance+1 {
			t.Fatalf("got %d of the best three holders, own %t, %d others; want 3, true, %d and perhaps the own",
				holders, own, drawn, q.Rule.ByChance)
		}
	}
}

func TestProbeSetHasOneChosenByChance(t *testing.T) {
	q := ask(40000)
	q.Rule.Probes = 3 // as many as are taken for their overlap
	holder := func(c *Candidate) { c.ForOverlap = true }
	short := []Candidate{
		with(candidate("a/0", 40000, 0, 0), holder), with(candidate("b/0", 40000, 0, 0), holder), with(candidate("c/0", 40000, 0, 0), holder),
		candidate("d/0", 39000, 2, 0), candidate("e/0", 0, 1, 0),
	}
	if set := ProbeSet(q, short); !slices.Equal(set, []int{0, 1, 3}) {
		t.Errorf("got %v, want two holders and the better of those drawn by chance, whatever it holds", set)
	}
	if set := ProbeSet(q, short[:3]); !slices.Equal(set, []int{0, 1, 2}) {
		t.Errorf("got %v, want all holders when there is no other", set)
	}
	short[2].ForOverlap = false
	if set := ProbeSet(q, short); !slices.Equal(set, []int{0, 1, 2}) {
		t.Errorf("got %v, want the best three when one of them was drawn by chance", set)
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
				PrefillRate:   float64(rapid.IntRange(0, 1e5).Draw(t, "rate")),
				PrefillFixed:  rapid.Float64Range(0, 0.1).Draw(t, "fixed"),
				PrefillBend:   rapid.Float64Range(0, 1e-8).Draw(t, "bend"),
				RequestCost:   rapid.Float64Range(0, 0.2).Draw(t, "cost"),
				AcceptRate:    rapid.Float64Range(0, 50).Draw(t, "accepts"),
				BusyShare:     rapid.Float64Range(0, 1).Draw(t, "busy"),
				BytesPerToken: float64(rapid.IntRange(0, 8000).Draw(t, "bytes per token")) / 1000,
				Flags:         engine.Flags(rapid.IntRange(0, 15).Draw(t, "flags")) & engine.Flags(rapid.IntRange(0, 15).Draw(t, "mask")),
			},
		}
	}
	return all
}

// drawQuestion makes a question of any kind.
func drawQuestion(t *rapid.T) *Question {
	q := ask(40000)
	q.Locality = rapid.Bool().Draw(t, "locality")
	q.Pin = Pin(rapid.Uint64Range(0, 3).Draw(t, "pin"))
	q.Rule.LocalityWeight = rapid.Float64Range(0.1, 3).Draw(t, "locality weight")
	return q
}

func TestNoIneligibleEngineIsEverChosen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawCandidates(t)
		Overrule(all)
		q := drawQuestion(t)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for _, c := range Rank(q, Shortlist(q, all, rng), rng) {
			if c.State == Unreachable || !c.Load.Usable() || c.Load.Flags&engine.Ejected != 0 && !c.Forced {
				t.Fatalf("chose %+v", c)
			}
		}
	})
}

func TestOrderOfInputDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := drawQuestion(t)
		all := drawCandidates(t)
		Overrule(all)
		q.Learned = LearnedBy(all)
		seed := rapid.Uint64().Draw(t, "seed")
		decide := func(all []Candidate) []Candidate {
			rng := rand.New(rand.NewPCG(seed, 0))
			short := Shortlist(q, slices.Clone(all), rng)
			for _, i := range ProbeSet(q, short) {
				short[i].Asked = true
			}
			return Rank(q, short, rng)
		}
		first := decide(all)
		second := decide(rapid.Permutation(all).Draw(t, "permuted"))
		if !slices.Equal(first, second) {
			t.Fatalf("got %v, in another order %v", first, second)
		}
	})
}

func TestMoreOverlapNeverMakesAnEngineWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := drawQuestion(t)
		short := drawCandidates(t)
		q.Learned = LearnedBy(short)
		q.Pin, q.Rule.Tie = 0, 0
		place := func() (int, float64) {
			ranked := Rank(q, short, rand.New(rand.NewPCG(0, 0)))
			i := slices.IndexFunc(ranked, func(c Candidate) bool { return c.ID == short[0].ID })
			if i < 0 {
				return i, 0
			}
			return i, ranked[i].Score
		}
		before, was := place()
		short[0].Overlap += float64(rapid.IntRange(0, 40000).Draw(t, "more"))
		after, is := place()
		if after > before || is > was {
			t.Fatalf("place %d with score %v, with more overlap place %d with %v", before, was, after, is)
		}
	})
}

// plainHolders is who may be taken for overlap, from the words of the rule: the holders of the n largest overlaps, of
// those with at least half of the best and above the median where there are more than two.
func plainHolders(all []Candidate, n int) (least float64, count int) {
	var overlaps []float64
	for _, c := range all {
		if c.Eligible() {
			overlaps = append(overlaps, c.Overlap)
		}
	}
	slices.Sort(overlaps)
	for i, o := range slices.Backward(overlaps) {
		median := overlaps[(len(overlaps)-1)/2]
		if len(overlaps)-i > n || o == 0 || o < overlaps[len(overlaps)-1]/2 || o <= median && len(overlaps) > 2 {
			break
		}
		least, count = o, count+1
	}
	return least, count
}

func TestShortlistTakesTheRightHolders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := ask(40000)
		q.Rule.ByOverlap, q.Rule.ByChance = rapid.IntRange(0, 5).Draw(t, "by overlap"), rapid.IntRange(0, 6).Draw(t, "by chance")
		all := drawCandidates(t)
		for i := range all {
			all[i].Overlap = 1000 * float64(rapid.IntRange(0, 4).Draw(t, "overlap")) // many are equal
		}
		least, holders := plainHolders(all, q.Rule.ByOverlap)
		short := Shortlist(q, all, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)))
		ids, eligible, own := map[engine.ID]bool{}, 0, 0
		for _, c := range all {
			if c.Eligible() {
				eligible++
				own += int(flag(c.State == Own))
			}
		}
		for _, c := range short {
			ids[c.ID] = true
			own -= int(flag(c.State == Own))
			if c.ForOverlap {
				holders--
				if c.Overlap < least {
					t.Fatalf("%s is there for an overlap of %v, the least that counts is %v", c.ID, c.Overlap, least)
				}
			}
		}
		chance := min(q.Rule.ByChance, eligible)
		if len(ids) != len(short) || holders != 0 || own != 0 || len(short) < chance {
			t.Fatalf("short list %v of %v: %d holders and %d own too few", short, all, holders, own)
		}
	})
}

func TestEveryEngineIsDrawnEquallyOften(t *testing.T) {
	q := ask(40000)
	rng := rand.New(rand.NewPCG(10, 10))
	counts := map[engine.ID]int{}
	for range 10000 {
		for _, c := range Shortlist(q, idle(40), rng) {
			counts[c.ID]++
		}
	}
	want := 10000 * q.Rule.ByChance / 40
	for _, c := range idle(40) {
		if n := counts[c.ID]; n < want-150 || n > want+150 {
			t.Errorf("%s was drawn %d times of 10000, want about %d", c.ID, n, want)
		}
	}
}

func TestEqualHoldersAreTakenInTurns(t *testing.T) {
	q := ask(40000)
	rng := rand.New(rand.NewPCG(9, 9))
	counts := map[engine.ID]int{}
	for range 5000 {
		all := []Candidate{
			candidate("a/0", 40000, 0, 0), candidate("b/0", 30000, 0, 0), candidate("c/0", 30000, 0, 0), candidate("d/0", 30000, 0, 0),
			candidate("e/0", 30000, 0, 0), candidate("f/0", 0, 0, 0), candidate("g/0", 0, 0, 0), candidate("h/0", 0, 0, 0),
			candidate("i/0", 0, 0, 0), candidate("j/0", 0, 0, 0), candidate("k/0", 0, 0, 0),
		}
		for _, c := range Shortlist(q, all, rng) {
			if c.ForOverlap {
				counts[c.ID]++
			}
		}
	}
	for _, id := range []engine.ID{"b/0", "c/0", "d/0", "e/0"} {
		if n := counts[id]; n < 2300 || n > 2700 {
			t.Errorf("%s was taken %d times of 5000, want about half", id, n)
		}
	}
	if counts["a/0"] != 5000 {
		t.Errorf("the best holder was taken %d times of 5000", counts["a/0"])
	}
}
