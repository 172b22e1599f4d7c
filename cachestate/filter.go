package cachestate

import "github.com/bits-and-blooms/bloom/v3"

// Filter is the plain Bloom filter of one engine's residency. Owners keep one in their Digest, and an Index gives one
// out where a single engine must be explained. Test it from any number of goroutines while nobody changes it.
type Filter struct {
	geometry Geometry
	bits     *bloom.BloomFilter
}

// NewFilter returns an empty filter.
func NewFilter(g Geometry) *Filter { return FilterOf(g, make([]uint64, g.words())) }

// FilterOf returns the filter whose bits are words, which must be g.Bits/64 long. The filter keeps them.
func FilterOf(g Geometry, words []uint64) *Filter {
	return &Filter{geometry: g, bits: bloom.FromWithM(words, uint(g.Bits), uint(g.Hashes))}
}

// Has reports whether the engine holds k: false is certain, true is probable.
func (f *Filter) Has(k Key) bool {
	var at [MaxHashes]uint32
	var wide [MaxHashes]uint64
	f.geometry.Locations(k, &at)
	for i, a := range at {
		wide[i] = uint64(a)
	}
	return f.bits.TestLocations(wide[:f.geometry.Hashes])
}

// Leading returns how many keys the engine holds before the first that it does not hold.
func (f *Filter) Leading(keys []Key) int {
	for i, k := range keys {
		if !f.Has(k) {
			return i
		}
	}
	return len(keys)
}

// Fill returns the share of bits that are set, 0 to 1.
func (f *Filter) Fill() float64 { return float64(f.bits.BitSet().Count()) / float64(f.geometry.Bits) }

func (f *Filter) test(at uint32) bool { return f.bits.BitSet().Test(uint(at)) }

func (f *Filter) set(at uint32, on bool) { f.bits.BitSet().SetTo(uint(at), on) }

// words are the filter's own, bit i in word i/64 at 1<<(i%64).
func (f *Filter) words() []uint64 { return f.bits.BitSet().Words() }
