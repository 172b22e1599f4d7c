package cachestate

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// meshOf returns an index of n engines with digests of 6,000 keys and a prompt of so many keys. As in LIBRARIES 3.3,
// half of the engines hold the first four keys and eight a random depth.
func meshOf(n, keys int) (*Index, []Key) {
	r := rand.New(rand.NewPCG(5, 6))
	return meshWith(n, keys, func(i int) int {
		switch {
		case i%(n/8) == 0:
			return r.IntN(keys)
		case i%2 == 0:
			return 4
		}
		return 0
	})
}

func meshWith(n, keys int, depth func(i int) int) (*Index, []Key) {
	g := DefaultGeometry()
	x, prompt := NewIndex(g, TierGPU), randomKeys(1, keys)
	for i := range n {
		held := randomKeys(uint64(i+10), 6000)
		copy(held, prompt[:depth(i)])
		_, delta := published(engineName(i), 1, g, held...)
		x.Apply(&delta)
	}
	return x, prompt
}

func benchmarkOverlap(b *testing.B, x *Index, prompt []Key) {
	out := x.Overlap(prompt, nil, nil)
	b.ReportAllocs()
	for b.Loop() {
		out = x.Overlap(prompt, nil, out)
	}
}

func BenchmarkOverlap(b *testing.B) {
	for _, engines := range []int{64, 256, 1024} {
		for _, keys := range []int{60, 250, 1000} {
			x, prompt := meshOf(engines, keys)
			b.Run(fmt.Sprintf("engines=%d/keys=%d", engines, keys), func(b *testing.B) { benchmarkOverlap(b, x, prompt) })
		}
	}
}

// BenchmarkOverlapSpread is the worst case: every engine holds another depth of the prompt.
func BenchmarkOverlapSpread(b *testing.B) {
	for _, engines := range []int{64, 1024} {
		r := rand.New(rand.NewPCG(5, 6))
		x, prompt := meshWith(engines, 250, func(int) int { return r.IntN(250) })
		b.Run(fmt.Sprintf("engines=%d/keys=250", engines), func(b *testing.B) { benchmarkOverlap(b, x, prompt) })
	}
}

// toggles returns two deltas of an engine that the index knows, which turn so many bits over and back. Their versions are for
// the caller to fill in.
func toggles(x *Index, id engine.ID, seed uint64, flips int) (on, off Delta) {
	slot, _ := x.Slot(id)
	have, _ := x.Have(id)
	c, r := x.table.Load().column(slot), rand.New(rand.NewPCG(seed, 7))
	on = Delta{Engine: id, Generation: have.Generation, Geometry: x.geometry, Checksum: have.Checksum}
	chosen := map[uint32]bool{}
	for len(chosen) < flips {
		at := r.Uint32N(x.geometry.Bits)
		switch {
		case chosen[at]:
		case c.get(at) && len(on.Clear) < flips/2:
			on.Clear, chosen[at] = append(on.Clear, at), true
			on.Checksum -= mixLocation(at)
		case !c.get(at) && len(on.Set) < flips-flips/2:
			on.Set, chosen[at] = append(on.Set, at), true
			on.Checksum += mixLocation(at)
		}
	}
	on.Set, on.Clear = sorted(on.Set), sorted(on.Clear)
	off = on
	off.Set, off.Clear, off.Checksum = on.Clear, on.Set, have.Checksum
	return on, off
}

// toggler applies the toggles of one engine in turns.
type toggler struct {
	number uint64 // version that the index has
	deltas [2]Delta
}

func newToggler(x *Index, id engine.ID, seed uint64, flips int) *toggler {
	have, _ := x.Have(id)
	t := &toggler{number: have.Number}
	t.deltas[have.Number%2], t.deltas[1-have.Number%2] = toggles(x, id, seed, flips)
	return t
}

func (t *toggler) apply(x *Index) Outcome {
	d := &t.deltas[t.number%2]
	d.From, d.To = t.number, t.number+1
	t.number++
	return x.Apply(d)
}

func BenchmarkApply100Flips(b *testing.B) {
	for _, engines := range []int{64, 1024} {
		b.Run(fmt.Sprintf("engines=%d", engines), func(b *testing.B) {
			x, _ := meshOf(engines, 250)
			t := newToggler(x, engineName(1), 1, 100)
			b.ReportAllocs()
			for b.Loop() {
				if got := t.apply(x); got != Applied {
					b.Fatal(got)
				}
			}
		})
	}
}

// BenchmarkOverlapUnderDeltas is what requests wait for: overlap while the digests of all engines change by 100 keys a
// second, told once a digest period.
func BenchmarkOverlapUnderDeltas(b *testing.B) {
	const keys = 250
	for _, mesh := range []struct {
		engines, flips int // of a delta: half of the keys come, half go
		period         time.Duration
	}{
		{64, 410, time.Second},
		{1024, 1900, 5 * time.Second},
	} {
		r := rand.New(rand.NewPCG(5, 6))
		usual, prompt := meshOf(mesh.engines, keys)
		spread, _ := meshWith(mesh.engines, keys, func(int) int { return r.IntN(keys) })
		for _, shape := range []struct {
			name  string
			index *Index
		}{{"usual", usual}, {"spread", spread}} {
			b.Run(fmt.Sprintf("engines=%d/%s", mesh.engines, shape.name), func(b *testing.B) {
				defer applyAll(b, shape.index, mesh.engines, mesh.flips, mesh.period)()
				benchmarkOverlap(b, shape.index, prompt)
			})
		}
	}
}

// applyAll applies a delta of every engine each period, evenly spread, until stop is called.
func applyAll(b *testing.B, x *Index, engines, flips int, period time.Duration) (stop func()) {
	all := make([]*toggler, engines)
	for i := range all {
		all[i] = newToggler(x, engineName(i), uint64(i), flips)
	}
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(period / time.Duration(engines))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-tick.C:
				if got := all[i%engines].apply(x); got != Applied {
					b.Errorf("delta %d: %v", i, got)
				}
			}
		}
	})
	return func() {
		close(done)
		group.Wait()
	}
}

func BenchmarkApplyFull(b *testing.B) {
	x, _ := meshOf(1024, 250)
	d, _ := published(engineName(1), 2, DefaultGeometry(), randomKeys(3, 6000)...)
	full := d.Full()
	for b.Loop() {
		full.To++
		full.Words[0] ^= 1 // so that it is another digest every time
		if full.Words[0]&1 == 1 {
			full.Checksum += mixLocation(0)
		} else {
			full.Checksum -= mixLocation(0)
		}
		if got := x.Apply(&full); got != Applied {
			b.Fatal(got)
		}
	}
}
