package forward

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// plainNaming looks at every engine for a name.
func plainNaming(v *View, name string, now time.Time) (ids []engine.ID, canonical string, layout uint16) {
	votes := map[uint16]int{}
	for _, e := range v.Snapshot(now) {
		m, ok := e.Serves(name)
		if !ok {
			continue
		}
		if len(ids) == 0 || m.Name < canonical {
			canonical = m.Name
		}
		ids = append(ids, e.ID)
		if m.HasLayout {
			votes[m.Layout]++
		}
	}
	for l := range uint16(4) {
		if votes[l] > votes[layout] {
			layout = l
		}
	}
	return ids, canonical, layout
}

func TestNamesAreFoundAsByLookingAtEveryEngine(t *testing.T) {
	names := []string{"base", "chat", "adapter", "other"}
	rapid.Check(t, func(t *rapid.T) {
		v := NewView("self", cachestate.NewTiers(cachestate.DefaultGeometry()))
		now := time.Unix(1000, 0)
		drawModel := rapid.Custom(func(t *rapid.T) engine.Model {
			return engine.Model{
				Name: rapid.SampledFrom(names).Draw(t, "name"), Aliases: rapid.SliceOfN(rapid.SampledFrom(names), 0, 3).Draw(t, "aliases"),
				Layout: rapid.Uint16Range(0, 3).Draw(t, "layout"), HasLayout: rapid.Bool().Draw(t, "has layout"),
			}
		})
		for range rapid.IntRange(1, 12).Draw(t, "announcements") {
			agent := rapid.SampledFrom([]string{"self", "b", "c"}).Draw(t, "agent")
			var engines []engine.Engine
			for i := range rapid.IntRange(0, 3).Draw(t, "engines") {
				engines = append(engines, engine.Engine{
					ID: engine.MakeID(agent, fmt.Sprint(i)), Models: rapid.SliceOfN(drawModel, 0, 3).Draw(t, "models"),
				})
			}
			v.Announce(agent, engines, now)
			for _, name := range names {
				want, wantCanonical, wantLayout := plainNaming(v, name, now)
				var got []engine.ID
				for _, c := range v.Candidates(nil, name, now) {
					got = append(got, c.ID)
				}
				canonical, ok := v.Canonical(name)
				if !slices.Equal(got, want) || canonical != wantCanonical || ok != (len(want) > 0) || v.Layout(name) != wantLayout {
					t.Fatalf("%s: got %v, %q, layout %d; want %v, %q, layout %d", name, got, canonical, v.Layout(name), want, wantCanonical, wantLayout)
				}
			}
		}
	})
}

// TestSlotsAreThoseOfTheIndexes compares the slots that engines were given one by one with those of the rosters.
func TestSlotsAreThoseOfTheIndexes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := cachestate.NewTiers(cachestate.Geometry{Bits: 1 << 10, Hashes: 2})
		v, now := NewView("self", x), time.Unix(1000, 0)
		drawn := func() engine.ID {
			return engine.MakeID(rapid.SampledFrom([]string{"b", "c", "d"}).Draw(t, "agent"), "0")
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			id := drawn()
			switch rapid.SampledFrom([]string{"announce", "forget", "digest", "remove", "replaced"}).Draw(t, "step") {
			case "announce":
				v.Announce(id.Agent(), []engine.Engine{described(id, engine.Generation(rapid.IntRange(1, 2).Draw(t, "generation")))}, now)
			case "forget":
				v.Announce(id.Agent(), nil, now)
			case "digest":
				tier := rapid.SampledFrom([]cachestate.Tier{cachestate.TierGPU, cachestate.TierDisk}).Draw(t, "tier")
				d := cachestate.NewDigest(id, tier, 1, x.Geometry()).Publish(now)
				x.Apply(&d)
			case "remove":
				x.Remove(id)
			case "replaced":
				v.PeerReplaced(id.Agent())
			}
			if rapid.Bool().Draw(t, "not looked at") {
				continue
			}
			for _, c := range v.Candidates(nil, "m", now) {
				for tier, got := range c.slots {
					want := int32(-1)
					if index := x.Tier(cachestate.Tier(tier)); index != nil {
						if slot, ok := index.Slot(c.ID); ok {
							want = int32(slot)
						}
					}
					if got != want {
						t.Fatalf("%s in tier %d: slot %d, want %d", c.ID, tier, got, want)
					}
				}
			}
		}
	})
}

func TestOverlapsFollowEnginesThatComeAndGo(t *testing.T) {
	v, index, now := testView(t)
	p := tieredPrompt()
	overlaps := func() map[engine.ID]float64 {
		all := v.Candidates(nil, "m", now)
		v.Overlaps(&p, all)
		out := map[engine.ID]float64{}
		for _, c := range all {
			out[c.ID] = c.Overlap
		}
		return out
	}
	want := func(when string, b, c float64) {
		t.Helper()
		if got := overlaps(); got["b/0"] != b || got["c/0"] != c {
			t.Errorf("%s: got %v, want %v and %v", when, got, b, c)
		}
	}
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	v.Announce("c", []engine.Engine{described("c/0", 1)}, now)
	want("without digests", 0, 0)
	holds(index, "b/0", 1, cachestate.Held{3})
	want("one digest", 2000, 0)
	index.Remove("b/0")
	holds(index, "c/0", 1, cachestate.Held{4}) // takes the slot that is free
	want("the other's digest in its place", 0, 3000)
	holds(index, "b/0", 2, cachestate.Held{2, 5})
	want("a second tier", 1000+3000*0.75, 3000)
}

// TestEveryKindOfEngineIsACandidateOfItsNames has what a mesh may be made of: adapters, several models, addressed ranks,
// engines of which no load or digest is known, full and cordoned ones.
func TestEveryKindOfEngineIsACandidateOfItsNames(t *testing.T) {
	v, index, now := testView(t)
	model := func(name string, aliases ...string) engine.Model { return engine.Model{Name: name, Aliases: aliases} }
	v.Announce("a", []engine.Engine{
		{ID: "a/rank0", Generation: 1, Models: []engine.Model{model("base", "chat"), model("base-lora")}},
		{ID: "a/rank1", Generation: 1, Models: []engine.Model{model("base", "chat")}},
	}, now)
	v.Announce("b", []engine.Engine{
		{ID: "b/full", Models: []engine.Model{model("base")}},
		{ID: "b/cordoned", Models: []engine.Model{model("base")}},
		{ID: "b/down", Models: []engine.Model{model("base")}},
		{ID: "b/other", Models: []engine.Model{model("other")}},
	}, now)
	v.Announce("c", []engine.Engine{{ID: "c/unknown", Models: []engine.Model{model("base")}}}, now)
	v.Hear("a", Report{Loads: []EngineLoad{{"rank0", engine.Load{Seq: 1, InFlight: 1}}, {"rank1", engine.Load{Seq: 1, QueuedSeconds: 1}}}}, now)
	v.Hear("b", Report{Loads: []EngineLoad{
		{"full", engine.Load{Seq: 1, Flags: engine.Full}},
		{"cordoned", engine.Load{Seq: 1, Flags: engine.Draining}},
		{"down", engine.Load{Seq: 1, Flags: engine.Down}},
		{"other", engine.Load{Seq: 1}},
	}}, now)
	holds(index, "a/rank1", 1, cachestate.Held{5})
	p := tieredPrompt()
	for name, want := range map[string][]engine.ID{
		"base":      {"a/rank0", "a/rank1", "c/unknown"},
		"chat":      {"a/rank0", "a/rank1"},
		"base-lora": {"a/rank0"},
		"other":     {"b/other"},
		"nothing":   nil,
	} {
		all := v.Candidates(nil, name, now)
		v.Overlaps(&p, all)
		q := ask(float64(p.Bytes))
		q.Learned = LearnedBy(all)
		var got []engine.ID
		for _, c := range Rank(q, Shortlist(q, all, rngOfTests()), rngOfTests()) {
			got = append(got, c.ID)
			if c.ID == "a/rank1" && c.Overlap != 4000 || c.ID == "c/unknown" && (c.Known || c.Score > 0.2) {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: the candidates are %v, want %v", name, got, want)
		}
	}
}

func TestEngineThatMovedHasItsNewSlot(t *testing.T) {
	v, x, now := testView(t)
	digest := func(id engine.ID) {
		d := digestOf(id, 1)
		x.Apply(&d)
	}
	for _, id := range []engine.ID{"b/0", "c/0"} {
		v.Announce(id.Agent(), []engine.Engine{described(id, 1)}, now)
	}
	digest("b/0")
	digest("c/0")
	v.Candidates(nil, "m", now)
	x.Remove("b/0")
	x.Remove("c/0")
	digest("b/0") // in the place of c, which was freed last
	for _, c := range v.Candidates(nil, "m", now) {
		want := int32(-1)
		if slot, ok := x.Tier(cachestate.TierGPU).Slot(c.ID); ok {
			want = int32(slot)
		}
		if got := c.slots[cachestate.TierGPU]; got != want {
			t.Errorf("%s has slot %d, want %d", c.ID, got, want)
		}
	}
}
