package cachestate

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// tierKey is a key in a tier.
type tierKey struct {
	tier Tier
	key  Key
}

// plainDigests is the twin of Digests: a residency, and for each geometry a filter that is built of it anew.
type plainDigests struct {
	held       map[tierKey]int
	geometries []Geometry

	compared, differ int // digests, of all twins
}

func (p *plainDigests) resident(tell func(Tier, Key)) {
	for k, copies := range p.held {
		for range copies {
			tell(k.tier, k.key)
		}
	}
}

// words returns the bits of one digest.
func (p *plainDigests) words(g Geometry, t Tier) []uint64 {
	f := newFilter(g)
	var at [MaxHashes]uint32
	for k, copies := range p.held {
		if k.tier != t || copies == 0 {
			continue
		}
		g.Locations(k.key, &at)
		for _, a := range at[:g.Hashes] {
			f.set(a, true)
		}
	}
	return f.words()
}

// check compares each digest with the twin's, after Publish.
func (p *plainDigests) check(t *rapid.T, full []Delta) {
	seen := map[Geometry]bool{}
	for _, d := range full {
		seen[d.Geometry] = true
		p.compared++
		if !slices.Equal(d.Words, p.words(d.Geometry, d.Tier)) {
			p.differ++
			t.Fatalf("the digest of %v in tier %v is not that of what is held", d.Geometry, d.Tier)
		}
	}
	if got := slices.Collect(maps.Keys(seen)); len(got) != len(p.geometries) || slices.ContainsFunc(p.geometries, func(g Geometry) bool { return !seen[g] }) {
		t.Fatalf("digests of %v, want of %v", got, p.geometries)
	}
}

// Whatever comes, goes and is published, digests of both geometries are exactly those of the residency, and an index that
// follows the changes of geometry ends at them whichever it reads.
func TestDigestsOfBothGeometriesAgreeWithPlainTwin(t *testing.T) {
	shapes := []Geometry{{Bits: 1 << 9, Hashes: 3}, {Bits: 1 << 10, Hashes: 3}, {Bits: 1 << 11, Hashes: 5}}
	pool, p := randomKeys(11, 40), &plainDigests{}
	defer func() {
		t.Logf("figure twin_digests_compared %d digests", p.compared)
		t.Logf("figure twin_digests_differ %d digests", p.differ)
	}()
	rapid.Check(t, func(t *rapid.T) {
		p.held, p.geometries = map[tierKey]int{}, shapes[:1]
		d, x, now := NewDigests("a/e", 1, p.geometries), NewTiers(shapes[0]), epoch
		publish := func() {
			now = now.Add(time.Second)
			deltas := d.Publish(now)
			p.check(t, d.Full())
			for i := range deltas {
				if x.Apply(&deltas[i]).NeedFull() {
					t.Fatalf("an index that missed nothing needs the whole digest of %v", deltas[i].Geometry)
				}
			}
			for _, full := range d.Full() {
				if got := columnOf(x.TierIn(full.Geometry, full.Tier), "a/e"); !slices.Equal(got, full.Words) {
					t.Fatalf("the index differs in %v, tier %v", full.Geometry, full.Tier)
				}
			}
		}
		draw := func(t *rapid.T) tierKey {
			return tierKey{Tier(rapid.IntRange(0, 2).Draw(t, "tier")), rapid.SampledFrom(pool).Draw(t, "key")}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				k := draw(t)
				p.held[k]++
				d.Add(k.tier, k.key)
			},
			"remove": func(t *rapid.T) {
				if k := draw(t); p.held[k] > 0 {
					p.held[k]--
					d.Remove(k.tier, k.key)
				}
			},
			"use": func(t *rapid.T) {
				p.geometries = rapid.Permutation(shapes).Draw(t, "geometries")[:rapid.IntRange(1, 2).Draw(t, "number")]
				d.Use(p.geometries, p.resident)
				spare := Geometry{}
				if len(p.geometries) > 1 {
					spare = p.geometries[1]
				}
				x.Use(p.geometries[0], spare)
				if got := x.Geometries(); !slices.Equal(got, p.geometries) || x.Geometry() != got[0] {
					t.Fatalf("the index takes %v, want %v", got, p.geometries)
				}
				publish()
			},
			"publish": func(*rapid.T) { publish() },
		})
		publish()
	})
}

// Reading moves to the other geometry with all that is known there, and knows nothing of a third.
func TestUseLeavesNoGap(t *testing.T) {
	small, large := Geometry{Bits: 1 << 10, Hashes: 3}, Geometry{Bits: 1 << 12, Hashes: 3}
	x, key := NewTiers(small), Key(0x123456789)
	x.Use(small, large)
	for _, g := range []Geometry{small, large} {
		_, d := published("a/e", 1, g, key)
		if got := x.Apply(&d); got != Applied {
			t.Fatalf("%v: %v", g, got)
		}
	}
	holds := func() bool {
		slot, ok := x.Tier(TierGPU).Slot("a/e")
		return ok && x.Tier(TierGPU).Overlap([]Key{key}, nil, nil)[slot] == 1
	}
	for _, use := range [][2]Geometry{{large, small}, {small, large}, {large, {}}} {
		if x.Use(use[0], use[1]); !holds() {
			t.Fatalf("reading %v besides %v knows nothing", use[0], use[1])
		}
	}
	_, d := published("a/e", 1, small, key)
	if got := x.Apply(&d); got != Foreign {
		t.Errorf("a digest of a geometry that is over: %v", got)
	}
	if x.Use(small, large); holds() {
		t.Error("what was dropped is back")
	}
	if x.Remove("a/e"); x.TierIn(large, TierGPU).Roster().Len() != 0 {
		t.Error("an engine that was removed is known in the spare geometry")
	}
}

// Readers never meet a moment in which an engine that is known in both geometries is known in neither, and a delta that comes
// while reading moves is taken in.
func TestReadersAndWritersSeeOneOfTwoGeometries(t *testing.T) {
	shapes, key := []Geometry{{Bits: 1 << 10, Hashes: 3}, {Bits: 1 << 12, Hashes: 4}}, Key(0x123456789)
	x := NewTiers(shapes[0])
	x.Use(shapes[0], shapes[1])
	d := NewDigests("a/e", 1, shapes)
	publish := func(n int) {
		d.Add(TierGPU, Key(n)*0x9e3779b97f4a7c15)
		for _, delta := range d.Publish(epoch.Add(time.Duration(n) * time.Second)) {
			if got := x.Apply(&delta); got != Applied {
				t.Errorf("delta %d of %v: %v", n, delta.Geometry, got)
			}
		}
	}
	d.Add(TierGPU, key)
	publish(0)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for out := []int32(nil); ; {
			select {
			case <-done:
				return
			default:
			}
			index := x.Tier(TierGPU)
			slot, known := index.Slot("a/e")
			if out = index.Overlap([]Key{key}, nil, out); !known || out[slot] != 1 {
				t.Error("a reader does not find what is in both geometries")
				return
			}
		}
	})
	wg.Go(func() {
		for n := range 100 {
			publish(n + 1)
		}
	})
	for n := range 1000 {
		x.Use(shapes[n%2], shapes[(n+1)%2])
	}
	close(done)
	wg.Wait()
}
