package forward

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func in(zone string) func(*Candidate) { return func(c *Candidate) { c.Zone = zone } }

func TestOfTiesThoseInTheSameZoneGoFirst(t *testing.T) {
	asked := func(c *Candidate) { c.Asked, c.Probed = true, true }
	a, b, c := with(candidate("a/0", 0, 0, 0), in("east")), with(candidate("b/0", 0, 0, 0), in("west")), candidate("c/0", 0, 0, 0)
	near, busy := with(candidate("d/0", 0, 0.009, 0), in("west")), with(candidate("e/0", 0, 0.011, 0), in("west"))
	for name, tt := range map[string]struct {
		zone  string
		short []Candidate
		first []engine.ID // each of which is the first for some seed
		why   string
	}{
		"one in the zone":            {"west", []Candidate{a, b, c}, []engine.ID{"b/0"}, "same zone"},
		"two, one hardly worse":      {"west", []Candidate{a, b, near}, []engine.ID{"b/0", "d/0"}, "same zone"},
		"worse by more than a tie":   {"west", []Candidate{a, busy}, []engine.ID{"a/0"}, ""},
		"all in the zone":            {"west", []Candidate{b, near}, []engine.ID{"b/0", "d/0"}, ""},
		"none in the zone":           {"north", []Candidate{a, b, c}, []engine.ID{"a/0", "b/0", "c/0"}, ""},
		"no zone here":               {"", []Candidate{a, b, c}, []engine.ID{"a/0", "b/0", "c/0"}, ""},
		"not asked":                  {"west", []Candidate{with(a, asked), b}, []engine.ID{"a/0"}, ""},
		"another that was not asked": {"west", []Candidate{a, with(b, asked)}, []engine.ID{"b/0"}, ""},
	} {
		q := ask(4000)
		q.Zone = tt.zone
		first := map[engine.ID]bool{}
		for seed := range uint64(64) {
			ranked := Rank(q, tt.short, rand.New(rand.NewPCG(seed, 0)))
			first[ranked[0].ID] = true
			if why := TieBreak(q, ranked); why != tt.why {
				t.Errorf("%s: because of %q, want %q", name, why, tt.why)
			}
		}
		var got []engine.ID
		for id := range first {
			got = append(got, id)
		}
		if slices.Sort(got); !slices.Equal(got, tt.first) {
			t.Errorf("%s: got %v, want %v", name, got, tt.first)
		}
	}
	pinned := ask(4000)
	pinned.Zone, pinned.Pin = "west", 7
	if why := TieBreak(pinned, Rank(pinned, []Candidate{a, b}, rngOfTests())); why != "" {
		t.Errorf("pinned: because of %q", why)
	}
}

func TestZoneNeverChangesAScore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := drawQuestion(t)
		short := drawCandidates(t)
		for i := range short {
			short[i].Asked = rapid.Bool().Draw(t, "asked")
			short[i].Zone = rapid.SampledFrom([]string{"", "east", "west"}).Draw(t, "zone")
		}
		q.Learned = LearnedBy(short)
		q.Rule.Tie = rapid.SampledFrom([]float64{0, 0.01, 5}).Draw(t, "tie")
		seed := rapid.Uint64().Draw(t, "seed")
		rank := func(zone string) []Candidate {
			q.Zone = zone
			return Rank(q, short, rand.New(rand.NewPCG(seed, 0)))
		}
		plain, zoned := rank(""), rank("west")
		ties := len(q.ties(plain))
		if q.Pin == 0 && !slices.IsSortedFunc(zoned[:ties], func(a, b Candidate) int { return cmp.Compare(flag(q.near(&b)), flag(q.near(&a))) }) {
			t.Fatalf("ties %v are not in order of nearness", zoned[:ties])
		}
		byID := func(a, b Candidate) int { return cmp.Compare(a.ID, b.ID) }
		if q.Pin == 0 {
			slices.SortFunc(plain[:ties], byID)
			slices.SortFunc(zoned[:ties], byID)
		}
		if !slices.Equal(plain, zoned) {
			t.Fatalf("with a zone %v, without %v", zoned, plain)
		}
	})
}

func TestDecisionInAZoneSaysSo(t *testing.T) { synctest.Test(t, testZoneInAMesh) }

func testZoneInAMesh(t *testing.T) {
	m := newMemMesh(t, "a", "b", "c")
	a := m.agents["a"]
	a.Zone = "west"
	a.book.refuse = "draining"
	for agent, zone := range map[string]string{"b": "west", "c": "east"} {
		e := described(engine.MakeID(agent, "0"), 1)
		e.Zone = zone
		a.View.Announce(agent, []engine.Engine{e}, time.Now())
	}
	for range 8 {
		a.post(t.Context(), chatBody)
		e := a.last()
		if e.Engine != "b/0" || e.TieBreak != "same zone" || e.Candidates[0].Zone != "west" || e.Reason == "" {
			t.Fatalf("%+v, want b for its zone", e)
		}
	}
}
