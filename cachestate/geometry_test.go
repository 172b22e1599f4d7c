package cachestate

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bits-and-blooms/bloom/v3"
	"pgregory.net/rapid"
)

func TestGeometryValidate(t *testing.T) {
	tests := []struct {
		g  Geometry
		ok bool
	}{
		{DefaultGeometry(), true},
		{Geometry{MinBits, 1}, true},
		{Geometry{MaxBits, MaxHashes}, true},
		{Geometry{}, false},
		{Geometry{MinBits / 2, 5}, false},
		{Geometry{MaxBits * 2, 5}, false},
		{Geometry{1<<17 + 64, 5}, false},
		{Geometry{1 << 17, 0}, false},
		{Geometry{1 << 17, MaxHashes + 1}, false},
	}
	for _, tt := range tests {
		if err := tt.g.Validate(); (err == nil) != tt.ok {
			t.Errorf("%+v: got %v, want ok %v", tt.g, err, tt.ok)
		}
	}
}

func TestLocationsOfAKeyDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Geometry{Bits: 1 << rapid.IntRange(6, 24).Draw(t, "bits"), Hashes: rapid.Uint8Range(1, 8).Draw(t, "hashes")}
		var at [MaxHashes]uint32
		g.Locations(Key(rapid.Uint64().Draw(t, "key")), &at)
		used := at[:g.Hashes]
		slices.Sort(used)
		if len(slices.Compact(slices.Clone(used))) != len(used) || used[len(used)-1] >= g.Bits {
			t.Fatalf("%+v: got %v", g, used)
		}
	})
}

// The digest's bits are those of a bits-and-blooms filter that is asked at our locations.
func TestDigestIsABloomFilter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	g := DefaultGeometry()
	d := NewDigest("a/e", TierGPU, 1, g)
	var keys []Key
	for range 8000 {
		keys = append(keys, Key(r.Uint64()))
		d.Add(keys[len(keys)-1])
	}
	reference := bloom.From(slices.Clone(d.filter.words()), uint(g.Hashes))
	locations := func(k Key) []uint64 {
		var at [MaxHashes]uint32
		g.Locations(k, &at)
		var wide []uint64
		for _, a := range at[:g.Hashes] {
			wide = append(wide, uint64(a))
		}
		return wide
	}
	for _, k := range keys {
		if !reference.TestLocations(locations(k)) || !d.has(k) {
			t.Fatalf("key %x is missing", k)
		}
	}
	hits := 0
	const probes = 200_000
	for range probes {
		k := Key(r.Uint64())
		if d.has(k) != reference.TestLocations(locations(k)) {
			t.Fatalf("key %x: digest and reference disagree", k)
		}
		if d.has(k) {
			hits++
		}
	}
	// (1 − e^(−5 × 8000 / 2^17))^5 = 0.00131: one probe in 760.
	if rate := float64(hits) / probes; rate < 0.0009 || rate > 0.0018 {
		t.Errorf("got a false hit rate of %v, want about 0.0013", rate)
	}
	if f := filterOf(g, d.filter.words()); f.leading(g, keys) != len(keys) || f.fill(g) != d.Fill() {
		t.Errorf("got %d leading keys and fill %v, want %d and %v", f.leading(g, keys), f.fill(g), len(keys), d.Fill())
	}
}

func TestTierWeights(t *testing.T) {
	for tier, want := range map[Tier]float64{TierGPU: 1, TierCPU: 0.75, TierDisk: 0.25, 9: 0} {
		if got := tier.Weight(); got != want {
			t.Errorf("%v: got %v, want %v", tier, got, want)
		}
	}
}
