package cachestate

import "github.com/bits-and-blooms/bloom/v3"

// filter is the plain Bloom filter behind a Digest.
type filter struct{ bits *bloom.BloomFilter }

func newFilter(g Geometry) *filter { return filterOf(g, make([]uint64, g.words())) }

// filterOf returns the filter whose bits are words, which must be g.Bits/64 long. The filter keeps them.
func filterOf(g Geometry, words []uint64) *filter {
	return &filter{bits: bloom.FromWithM(words, uint(g.Bits), uint(g.Hashes))}
}

func (f *filter) test(at uint32) bool { return f.bits.BitSet().Test(uint(at)) }

func (f *filter) set(at uint32, on bool) { f.bits.BitSet().SetTo(uint(at), on) }

// words are the filter's own, bit i in word i/64 at 1<<(i%64).
func (f *filter) words() []uint64 { return f.bits.BitSet().Words() }
