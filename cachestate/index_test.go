package cachestate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// plainIndex is the dumb twin of Index: a filter for each engine, walked key by key.
type plainIndex struct {
	geometry Geometry
	filters  map[engine.ID]*filter
}

func (x plainIndex) overlap(id engine.ID, keys []Key) int {
	if f, ok := x.filters[id]; ok && f.fill(x.geometry) <= MaxFill {
		return f.leading(x.geometry, keys)
	}
	return 0
}

func randomKeys(seed uint64, n int) []Key {
	r := rand.New(rand.NewPCG(seed, 1))
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = Key(r.Uint64())
	}
	return keys
}

func engineName(i int) engine.ID { return engine.MakeID(fmt.Sprintf("agent%d", i), "e") }

// overlapOf returns the index's answer for one engine.
func overlapOf(x *Index, id engine.ID, keys []Key) int {
	n, ok := x.Slot(id)
	if !ok {
		return 0
	}
	return int(x.Overlap(keys, nil, nil)[n])
}

var epoch = time.Unix(1_700_000_000, 0)

// published returns a digest at version 1 that holds the keys.
func published(id engine.ID, gen engine.Generation, g Geometry, keys ...Key) (*Digest, Delta) {
	d := NewDigest(id, TierGPU, gen, g)
	for _, k := range keys {
		d.Add(k)
	}
	return d, d.Publish(epoch)
}

func TestOverlapAgreesWithPlainIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Geometry{Bits: 1 << 16, Hashes: 5} // so sparse that no false hit is expected
		x, plain := NewIndex(g, TierGPU), plainIndex{g, map[engine.ID]*filter{}}
		keys := randomKeys(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 300).Draw(t, "keys"))
		n := rapid.IntRange(0, 150).Draw(t, "engines")
		var eligible Set
		for i := range n {
			depth := rapid.IntRange(0, len(keys)).Draw(t, "depth")
			d, delta := published(engineName(i), 1, g, keys[:depth]...)
			if got := x.Apply(&delta); got != Applied && depth > 0 {
				t.Fatalf("engine %d: %v", i, got)
			}
			plain.filters[engineName(i)] = filterOf(g, d.filter.words())
			if i%3 == 0 {
				eligible = eligible.Add(i)
			}
		}
		all, some := x.Overlap(keys, nil, nil), x.Overlap(keys, eligible, nil)
		for i, id := range x.Roster().Engines() {
			want := plain.overlap(id, keys)
			if int(all[i]) != want {
				t.Fatalf("slot %d: got %d, want %d", i, all[i], want)
			}
			if !eligible.Has(i) && eligible != nil {
				want = 0
			}
			if int(some[i]) != want {
				t.Fatalf("slot %d, some eligible: got %d, want %d", i, some[i], want)
			}
		}
	})
}

// The answer is never below the truth, and far above it only where digests are much fuller than they should be.
func TestOverlapIsNearTheTruth(t *testing.T) {
	tests := []struct {
		keys      int // in a digest of 2^14 bits
		off, far4 int // of 256 engines: above the truth, and by more than 4 keys
	}{
		{1000, 2, 0},  // fill 0.26, one false hit in 760 probes
		{2300, 20, 6}, // fill 0.5, one in 32
	}
	for _, tt := range tests {
		off, far4 := overlapErrors(t, tt.keys)
		if off > tt.off || far4 > tt.far4 {
			t.Errorf("%d keys: %d engines are off and %d by more than 4 keys, want at most %d and %d",
				tt.keys, off, far4, tt.off, tt.far4)
		}
	}
}

func overlapErrors(t *testing.T, held int) (off, far4 int) {
	g := Geometry{Bits: 1 << 14, Hashes: 5}
	x, keys, r := NewIndex(g, TierGPU), randomKeys(1, 1000), rand.New(rand.NewPCG(2, 3))
	depths := make([]int, 256)
	for i := range depths {
		depths[i] = r.IntN(len(keys))
		_, delta := published(engineName(i), 1, g, slices.Concat(keys[:depths[i]], randomKeys(uint64(100+i), held-depths[i]))...)
		x.Apply(&delta)
	}
	for i, got := range x.Overlap(keys, nil, nil)[:len(depths)] {
		above := int(got) - depths[i]
		if above < 0 {
			t.Errorf("engine %d: got %d, below the truth of %d", i, got, depths[i])
		}
		if above > 0 {
			off++
		}
		if above > 4 {
			far4++
		}
	}
	return off, far4
}

func TestForgottenEngineHasNoOverlap(t *testing.T) {
	x, keys := NewIndex(DefaultGeometry(), TierGPU), randomKeys(1, 20)
	_, a := published("a/e", 1, DefaultGeometry(), keys...)
	x.Apply(&a)
	slot, _ := x.Slot("a/e")
	x.Remove("a/e")
	x.Remove("a/e")
	if got := x.Overlap(keys, nil, nil)[slot]; got != 0 {
		t.Errorf("removed engine: got %d", got)
	}
	if _, ok := x.Have("a/e"); ok || x.Roster().Len() != 0 || x.Fill("a/e") != 0 {
		t.Error("removed engine is still known")
	}
	_, b := published("b/e", 1, DefaultGeometry(), keys[:3]...)
	if got := x.Apply(&b); got != Applied {
		t.Fatal(got)
	}
	if again, _ := x.Slot("b/e"); again != slot {
		t.Errorf("slot %d is not used again: got %d", slot, again)
	}
	if got := overlapOf(x, "b/e", keys); got != 3 {
		t.Errorf("next engine of the slot: got %d, want 3", got)
	}
}

func TestSlotsStayWhenTheIndexGrows(t *testing.T) {
	g := Geometry{Bits: 1 << 12, Hashes: 5}
	x, keys := NewIndex(g, TierGPU), randomKeys(1, 10)
	for i := range 300 {
		_, delta := published(engineName(i), 1, g, keys[:1+i%10]...)
		x.Apply(&delta)
	}
	out := x.Overlap(keys, nil, nil)
	for i := range 300 {
		if n, ok := x.Slot(engineName(i)); !ok || n != i || int(out[n]) != 1+i%10 {
			t.Fatalf("engine %d: got slot %d, %v, overlap %d", i, n, ok, out[n])
		}
	}
}

func TestCrowdedIndexTakesNoMoreEngines(t *testing.T) {
	g := Geometry{Bits: MinBits, Hashes: 1}
	x := NewIndex(g, TierGPU)
	x.limit = 100
	for i := range x.limit {
		_, delta := published(engineName(i), 1, g)
		x.Apply(&delta)
	}
	_, delta := published("one/more", 1, g)
	if got := x.Apply(&delta); got != Crowded {
		t.Errorf("got %v, want %v", got, Crowded)
	}
	x.Remove(engineName(5))
	if got := x.Apply(&delta); got != Duplicate { // version 0: known, and empty
		t.Errorf("after a removal: got %v, want %v", got, Duplicate)
	}
}

func TestOvercrowdedDigestCountsAsUnknown(t *testing.T) {
	g := Geometry{Bits: 1 << 10, Hashes: 5}
	x, keys := NewIndex(g, TierGPU), randomKeys(1, 10)
	d, delta := published("a/e", 1, g, keys...)
	x.Apply(&delta)
	more := randomKeys(2, 400)
	for _, k := range more {
		d.Add(k)
	}
	delta = d.Publish(epoch)
	if got := x.Apply(&delta); got != Applied || x.Fill("a/e") <= MaxFill {
		t.Fatalf("got %v at fill %v", got, x.Fill("a/e"))
	}
	if got := overlapOf(x, "a/e", keys); got != 0 {
		t.Errorf("at fill %v: got overlap %d, want 0", x.Fill("a/e"), got)
	}
	for _, k := range more {
		d.Remove(k)
	}
	delta = d.Publish(epoch)
	if got := x.Apply(&delta); got != Applied || overlapOf(x, "a/e", keys) != 10 {
		t.Errorf("emptied again: got %v, overlap %d", got, overlapOf(x, "a/e", keys))
	}
}

func TestApplyOutcomes(t *testing.T) {
	g, keys := DefaultGeometry(), randomKeys(1, 50)
	d, first := published("a/e", 5, g, keys[:10]...)
	d.Add(keys[10])
	second := d.Publish(epoch)
	d.Add(keys[11])
	third := d.Publish(epoch)
	full := d.Full()
	empty := d.Publish(epoch)
	both, _ := d.Since(1)
	lying := third
	lying.Checksum++
	lyingFull := full
	lyingFull.Checksum++
	lyingFull.To++
	old, next := first, first
	old.Generation, next.Generation = 4, 6
	nextGap := third
	nextGap.Generation = 6
	foreign, other, broken := first, first, first
	foreign.Geometry.Bits *= 2
	other.Tier = TierDisk
	broken.Set = []uint32{9, 8}
	wrongSum := empty
	wrongSum.Checksum++

	tests := []struct {
		name   string
		before []Delta
		then   Delta
		want   Outcome
		number uint64
		depth  int
	}{
		{"first", nil, first, Applied, 1, 10},
		{"in order", []Delta{first, second}, third, Applied, 3, 12},
		{"lost", []Delta{first}, third, Behind, 1, 10},
		{"lost, told by an empty one", []Delta{first}, empty, Behind, 1, 10},
		{"repeated", []Delta{first, second}, second, Duplicate, 2, 11},
		{"late", []Delta{first, second}, first, Duplicate, 2, 11},
		{"empty at its version", []Delta{first, second, third}, empty, Duplicate, 3, 12},
		{"overlapping", []Delta{first, second}, both, Applied, 3, 12},
		{"several at once", []Delta{first}, both, Applied, 3, 12},
		{"whole", []Delta{first}, full, Applied, 3, 12},
		{"whole to a new one", nil, full, Applied, 3, 12},
		{"whole, repeated", []Delta{full}, full, Duplicate, 3, 12},
		{"nothing before", nil, second, Behind, 0, 0},
		{"checksum lies", []Delta{first, second}, lying, Corrupt, 2, 11},
		{"checksum of a whole one lies", []Delta{first}, lyingFull, Corrupt, 1, 10},
		{"another checksum at its version", []Delta{full}, wrongSum, Corrupt, 3, 12},
		{"earlier life", []Delta{first}, old, Stale, 1, 10},
		{"next life from its start", []Delta{first}, next, Applied, 1, 10},
		{"next life, start missed", []Delta{first}, nextGap, Behind, 0, 0},
		{"another geometry", []Delta{first}, foreign, Foreign, 1, 10},
		{"another tier", []Delta{first}, other, Foreign, 1, 10},
		{"broken", []Delta{first}, broken, Foreign, 1, 10},
	}
	for _, tt := range tests {
		x := NewIndex(g, TierGPU)
		for _, b := range tt.before {
			if got := x.Apply(&b); got != Applied {
				t.Fatalf("%s: before: %v", tt.name, got)
			}
		}
		got := x.Apply(&tt.then)
		have, _ := x.Have("a/e")
		if got != tt.want || have.Number != tt.number || overlapOf(x, "a/e", keys) != tt.depth {
			t.Errorf("%s: got %v, version %d, overlap %d, want %v, %d, %d",
				tt.name, got, have.Number, overlapOf(x, "a/e", keys), tt.want, tt.number, tt.depth)
		}
		if got.NeedFull() != (tt.want == Behind || tt.want == Corrupt) {
			t.Errorf("%s: %v.NeedFull() = %v", tt.name, got, got.NeedFull())
		}
	}
}

// A replica that went wrong at the very version that its owner is at is put right by the whole digest.
func TestWholeDigestRepairsItsOwnVersion(t *testing.T) {
	g, keys := DefaultGeometry(), randomKeys(1, 10)
	d, first := published("a/e", 1, g, keys...)
	x := NewIndex(g, TierGPU)
	wrong := first
	wrong.Set = first.Set[1:]
	wrong.Checksum -= mixLocation(first.Set[0])
	if got := x.Apply(&wrong); got != Applied {
		t.Fatal(got)
	}
	told := d.Publish(epoch)
	if got := x.Apply(&told); got != Corrupt {
		t.Fatalf("got %v, want %v", got, Corrupt)
	}
	full := d.Full()
	if got := x.Apply(&full); got != Applied || overlapOf(x, "a/e", keys) != len(keys) {
		t.Errorf("got %v, overlap %d", got, overlapOf(x, "a/e", keys))
	}
}

func TestKeysAreThoseOfTheVersionReached(t *testing.T) {
	g := DefaultGeometry()
	x := NewIndex(g, TierGPU)
	d, delta := published("a/e", 1, g, 1, 2, 3)
	is := func(what string, want int) {
		t.Helper()
		if got := x.Keys("a/e"); got != want {
			t.Errorf("%s: %d keys, want %d", what, got, want)
		}
	}
	is("never heard of", 0)
	x.Apply(&delta)
	is("three", 3)
	d.Remove(3)
	lost := d.Publish(time.Unix(1, 0))
	d.Add(4)
	d.Add(5)
	behind := d.Publish(time.Unix(2, 0))
	behind.From = behind.To - 1
	if got := x.Apply(&behind); got != Behind {
		t.Fatalf("got %v", got)
	}
	is("a delta that was not applied", 3)
	x.Apply(&lost)
	is("one left", 2)
	whole := d.Full()
	x.Apply(&whole)
	is("pulled", 4)
	_, restarted := published("a/e", 2, g, 9)
	restarted.From, restarted.To = 3, 4
	if got := x.Apply(&restarted); got != Behind {
		t.Fatalf("got %v", got)
	}
	is("restarted", 0)
	x.Apply(&whole)
	is("late news of the life before", 0)
}

func TestVersionsNameEveryEngine(t *testing.T) {
	x, want := NewIndex(DefaultGeometry(), TierGPU), map[engine.ID]Version{}
	for i := range 5 {
		_, delta := published(engineName(i), engine.Generation(i), DefaultGeometry(), randomKeys(uint64(i), i)...)
		x.Apply(&delta)
		want[engineName(i)] = delta.Version()
	}
	x.Remove(engineName(2))
	delete(want, engineName(2))
	got := maps.Collect(x.Versions())
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOverlapAllocatesNothing(t *testing.T) {
	x, keys := meshOf(100, 200)
	out := x.Overlap(keys, nil, nil)
	if n := testing.AllocsPerRun(20, func() { out = x.Overlap(keys, nil, out) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// Readers see an engine that does not change as it is, while others come, change and go, and the index grows.
func TestReadersSeeASteadyEngineWhileOthersChange(t *testing.T) {
	g := Geometry{Bits: 1 << 14, Hashes: 5}
	x, keys := NewIndex(g, TierGPU), randomKeys(1, 64)
	_, steady := published("steady/e", 1, g, keys[:40]...)
	x.Apply(&steady)
	var stop atomic.Bool
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var out []int32
			for !stop.Load() {
				out = x.Overlap(keys, nil, out)
				if n, ok := x.Slot("steady/e"); !ok || out[n] != 40 {
					t.Errorf("steady engine: got slot %d, %v, overlaps %v, want 40", n, ok, out)
					return
				}
			}
		})
	}
	for w := range 2 {
		writers.Go(func() {
			for i := range 60 {
				id := engineName(w*1000 + i)
				d, delta := published(id, 1, g, keys[:i%64]...)
				x.Apply(&delta)
				d.Add(keys[63])
				delta = d.Publish(epoch)
				x.Apply(&delta)
				if i%3 == 0 {
					x.Remove(id)
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	if got := overlapOf(x, "steady/e", keys); got != 40 {
		t.Errorf("got %d, want 40", got)
	}
}
