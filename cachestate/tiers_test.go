package cachestate

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestWeigh(t *testing.T) {
	p := &Prompt{Keys: make([]Key, 4), Offsets: []uint32{0, 100, 200, 400}, Bytes: 500}
	for _, tt := range []struct {
		keys Held
		want float64
	}{
		{Held{}, 0},
		{Held{3, 0, 0}, 200},
		{Held{2, 4, 0}, 100 + 300*0.75},
		{Held{0, 2, 3}, 100*0.75 + 100*0.25},
		{Held{3, 2, 4}, 200 + 200*0.25}, // a false hit made the faster tier look deeper
		{Held{9, 0, 0}, 0},
	} {
		if got := Weigh(p, tt.keys); got != tt.want {
			t.Errorf("keys %v: %v bytes, want %v", tt.keys, got, tt.want)
		}
	}
}

// plainWeigh weighs byte by byte: each counts by the fastest tier that holds it.
func plainWeigh(p *Prompt, keys Held) float64 {
	saved := 0.0
	for at := range uint32(p.Bytes) {
		for t, n := range keys {
			if n > 0 && p.Offsets[n-1] > at {
				saved += Tier(t).Weight()
				break
			}
		}
	}
	return saved
}

func TestWeighAgreesWithPlainWeigh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Prompt{Bytes: 64}
		for _, step := range rapid.SliceOfN(rapid.Uint32Range(0, 8), 1, 8).Draw(t, "steps") {
			at := step
			if n := len(p.Offsets); n > 0 {
				at += p.Offsets[n-1]
			}
			p.Keys, p.Offsets = append(p.Keys, Key(at)), append(p.Offsets, at)
		}
		var keys Held
		for tier := range keys {
			keys[tier] = rapid.Int32Range(0, int32(len(p.Keys))).Draw(t, "keys")
		}
		if got, want := Weigh(p, keys), plainWeigh(p, keys); got != want {
			t.Fatalf("offsets %v, keys %v: %v bytes, want %v", p.Offsets, keys, got, want)
		}
	})
}

func TestDeltaOfNoTierIsForeign(t *testing.T) {
	x := NewTiers(DefaultGeometry())
	_, d := published("a/e", 1, DefaultGeometry(), 7)
	for _, tier := range []Tier{numTiers, 255} {
		if d.Tier = tier; x.Apply(&d) != Foreign || x.Tier(tier) != nil {
			t.Errorf("%v is taken in", tier)
		}
	}
}

func TestTiersAreApart(t *testing.T) {
	g := DefaultGeometry()
	x := NewTiers(g)
	id := engine.MakeID("a", "e")
	if x.Tier(TierCPU) != nil {
		t.Fatal("an index of a tier that nobody uses")
	}
	for tier, key := range []Key{7, 8} {
		d := NewDigest(id, Tier(tier), 1, g)
		d.Add(key)
		delta := d.Publish(time.Time{})
		if got := x.Apply(&delta); got != Applied {
			t.Fatalf("tier %d: %v", tier, got)
		}
	}
	for tier, key := range []Key{7, 8} {
		index := x.Tier(Tier(tier))
		slot, ok := index.Slot(id)
		if out := index.Overlap([]Key{key}, nil, nil); !ok || out[slot] != 1 {
			t.Errorf("tier %d does not hold its key: %v", tier, out)
		}
		if out := index.Overlap([]Key{15 - key}, nil, nil); out[slot] != 0 {
			t.Errorf("tier %d holds the other tier's key", tier)
		}
	}
	x.Remove(id)
	for _, tier := range []Tier{TierGPU, TierCPU} {
		if _, ok := x.Tier(tier).Slot(id); ok {
			t.Errorf("%v still has the engine", tier)
		}
	}
}
