package cachestate

import (
	"testing"
	"time"

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
