package cachestate

import (
	"slices"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func sorted(list []uint32) []uint32 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

// has reports whether the engine holds k: false is certain, true is probable.
func (f *filter) has(g Geometry, k Key) bool {
	var at [MaxHashes]uint32
	g.Locations(k, &at)
	return !slices.ContainsFunc(at[:g.Hashes], func(a uint32) bool { return !f.test(a) })
}

// leading returns how many keys the engine holds before the first that it does not hold.
func (f *filter) leading(g Geometry, keys []Key) int {
	for i, k := range keys {
		if !f.has(g, k) {
			return i
		}
	}
	return len(keys)
}

// fill is the share of bits that are set, counted anew.
func (f *filter) fill(g Geometry) float64 { return float64(f.bits.BitSet().Count()) / float64(g.Bits) }

func (d *Digest) has(k Key) bool { return d.filter.has(d.geometry, k) }

// columnOf returns the words of the digest that an index has of an engine.
func columnOf(x *Index, id engine.ID) []uint64 {
	n, _ := x.Slot(id)
	f, c := newFilter(x.geometry), x.table.Load().column(n)
	for at := range x.geometry.Bits {
		f.set(at, c.get(at))
	}
	return f.words()
}
