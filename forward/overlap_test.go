package forward

import (
	"math"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// tieredPrompt has a key at its start and one every 1,000 bytes up to its end.
func tieredPrompt() cachestate.Prompt {
	p := cachestate.Prompt{Bytes: 4000}
	for i := range 5 {
		p.Keys, p.Offsets = append(p.Keys, cachestate.Key(1<<40+i)), append(p.Offsets, uint32(1000*i))
	}
	return p
}

// holds makes an engine's digests hold so many leading keys of the prompt. A tier with none has no digest.
func holds(x *cachestate.Tiers, id engine.ID, gen engine.Generation, held cachestate.Held) {
	for t, n := range held {
		if n == 0 {
			continue
		}
		d := cachestate.NewDigest(id, cachestate.Tier(t), gen, cachestate.DefaultGeometry())
		for _, k := range tieredPrompt().Keys[:n] {
			d.Add(k)
		}
		delta := d.Publish(time.Unix(1000, 0))
		x.Apply(&delta)
	}
}

func TestOverlapIsWeighedByTierAndScaled(t *testing.T) {
	for _, tt := range []struct {
		name  string
		held  cachestate.Held
		scale float64 // as announced
		want  float64 // bytes
	}{
		{"nothing", cachestate.Held{}, 1, 0},
		{"the root alone", cachestate.Held{1, 1, 1}, 1, 0},
		{"GPU", cachestate.Held{3}, 1, 2000},
		{"GPU, nothing known of its truth", cachestate.Held{3}, 0, 2000},
		{"GPU, half of it true", cachestate.Held{3}, 0.5, 1000},
		{"a rank of sixteen", cachestate.Held{5}, 1. / 16, 250},
		{"the rest on the host", cachestate.Held{3, 5}, 1, 2000 + 2000*0.75},
		{"all on the host", cachestate.Held{1, 5}, 1, 4000 * 0.75},
		{"the host holds no more", cachestate.Held{3, 3}, 1, 2000},
		{"three tiers", cachestate.Held{2, 3, 5}, 1, 1000 + 1000*0.75 + 2000*0.25},
		{"three tiers, three quarters true", cachestate.Held{2, 3, 5}, 0.75, 0.75 * (1000 + 1000*0.75 + 2000*0.25)},
		{"disk without host", cachestate.Held{2, 0, 5}, 1, 1000 + 3000*0.25},
		{"a late digest of the host", cachestate.Held{4, 2}, 1, 3000},
	} {
		v, index, now := testView(t)
		e := described("b/0", 7)
		e.Scale = tt.scale
		v.Announce("b", []engine.Engine{e}, now)
		v.Announce("c", []engine.Engine{described("c/0", 9)}, now) // has no digest
		holds(index, "b/0", 7, tt.held)
		all := v.Candidates(nil, "m", now)
		p := tieredPrompt()
		v.Overlaps(&p, all)
		v.Generations(all)
		for _, c := range all {
			want, gen := tt.want, engine.Generation(7)
			if c.ID == "c/0" || want == 0 {
				want, gen = 0, 0
			}
			if c.Overlap != want || c.Generation != gen {
				t.Errorf("%s: %s has an overlap of %v bytes of generation %d, want %v of %d", tt.name, c.ID, c.Overlap, c.Generation, want, gen)
			}
		}
	}
}

func TestScaledOverlapLeavesMoreToCompute(t *testing.T) {
	q := ask(64000)
	q.Learned.BytesPerToken = 4
	c := candidate("a/0", 64000, 0, 0)
	trusted := c.NewSeconds(q)
	c.Overlap *= 0.25
	if got := c.NewSeconds(q); trusted != 0 || math.Abs(got-0.75) > 1e-9 {
		t.Errorf("a whole overlap leaves %v s, a quarter of it %v s; want 0 and 0.75", trusted, got)
	}
}

func TestTiersThatNobodyUsesCostNothing(t *testing.T) {
	v, index, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 7)}, now)
	holds(index, "b/0", 7, cachestate.Held{5})
	p, all := tieredPrompt(), v.Candidates(nil, "m", now)
	var buf overlapBuffer // not from the pool, which forgets some under the race detector
	if n := testing.AllocsPerRun(100, func() { v.overlaps(&p, all, &buf) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	for _, tier := range []cachestate.Tier{cachestate.TierCPU, cachestate.TierDisk} {
		if index.Tier(tier) != nil {
			t.Errorf("there is an index of the %v tier", tier)
		}
	}
}

func TestForgottenEngineIsForgottenInEveryTier(t *testing.T) {
	for name, forget := range map[string]func(*View, time.Time){
		"not announced":       func(v *View, now time.Time) { v.Announce("b", nil, now) },
		"another generation":  func(v *View, now time.Time) { v.Announce("b", []engine.Engine{described("b/0", 8)}, now) },
		"another process":     func(v *View, _ time.Time) { v.PeerReplaced("b") },
		"away for very long":  func(v *View, now time.Time) { v.Tick(now.Add(forgetAgent + time.Second)) },
		"away, then replaced": func(v *View, _ time.Time) { v.PeerDown("b", errPeerSilent); v.PeerReplaced("b") },
	} {
		v, index, now := testView(t)
		v.Announce("b", []engine.Engine{described("b/0", 7)}, now)
		holds(index, "b/0", 7, cachestate.Held{1, 2, 3})
		forget(v, now)
		for tier := cachestate.TierGPU; tier.Valid(); tier++ {
			if _, ok := index.Tier(tier).Have("b/0"); ok {
				t.Errorf("%s: its digest of the %v tier is still there", name, tier)
			}
		}
	}
}
