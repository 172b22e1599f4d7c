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

func TestFitGeometryHasTenBitsAKey(t *testing.T) {
	for _, keys := range []int{-1, 0, 1, 6553, 6554, 13107, 100_000, 1 << 40} {
		g := FitGeometry(keys)
		if err := g.Validate(); err != nil {
			t.Errorf("%d keys: %v", keys, err)
		}
		if int(g.Bits) <= 10*keys && g.Bits != MaxBits {
			t.Errorf("%d keys: got %d bits", keys, g.Bits)
		}
	}
	if got := FitGeometry(8000); got != DefaultGeometry() {
		t.Errorf("8,000 keys: got %+v, want the default", got)
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
		if !reference.TestLocations(locations(k)) || !d.Has(k) {
			t.Fatalf("key %x is missing", k)
		}
	}
	hits := 0
	const probes = 200_000
	for range probes {
		k := Key(r.Uint64())
		if d.Has(k) != reference.TestLocations(locations(k)) {
			t.Fatalf("key %x: digest and reference disagree", k)
		}
		if d.Has(k) {
			hits++
		}
	}
	// (1 − e^(−5 × 8000 / 2^17))^5 = 0.00131: one probe in 760.
	if rate := float64(hits) / probes; rate < 0.0009 || rate > 0.0018 {
		t.Errorf("got a false hit rate of %v, want about 0.0013", rate)
	}
	if f := FilterOf(g, d.filter.words()); f.Leading(keys) != len(keys) || f.Fill() != d.Fill() {
		t.Errorf("got %d leading keys and fill %v, want %d and %v", f.Leading(keys), f.Fill(), len(keys), d.Fill())
	}
}

func TestTierWeights(t *testing.T) {
	for tier, want := range map[Tier]float64{TierGPU: 1, TierCPU: 0.75, TierDisk: 0.25, 9: 0} {
		if got := tier.Weight(); got != want {
			t.Errorf("%v: got %v, want %v", tier, got, want)
		}
	}
}
