package cachestate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
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

func BenchmarkApply100Flips(b *testing.B) {
	for _, engines := range []int{64, 1024} {
		b.Run(fmt.Sprintf("engines=%d", engines), func(b *testing.B) {
			x, _ := meshOf(engines, 250)
			have, _ := x.Have(engineName(1))
			on := Delta{Engine: engineName(1), Generation: 1, Geometry: DefaultGeometry(), Set: randomBits(1, 100), Clear: randomBits(2, 400)}
			c := x.table.Load().column(1)
			on.Set = slices.DeleteFunc(on.Set, c.get)[:50]
			on.Clear = slices.DeleteFunc(on.Clear, func(at uint32) bool { return !c.get(at) })[:50]
			off := on
			off.Set, off.Clear = on.Clear, on.Set
			on.Checksum, off.Checksum = have.Checksum, have.Checksum
			for _, at := range on.Set {
				on.Checksum += mixLocation(at)
			}
			for _, at := range on.Clear {
				on.Checksum -= mixLocation(at)
			}
			number := have.Number
			b.ReportAllocs()
			for b.Loop() {
				d := &on
				if number%2 == 0 {
					d = &off
				}
				d.From, d.To = number, number+1
				if got := x.Apply(d); got != Applied {
					b.Fatal(got)
				}
				number++
			}
		})
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
