package cachestate

import (
	"math/rand/v2"
	"slices"
)

func sorted(list []uint32) []uint32 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

// randomBits returns n bits of the default geometry, of those with bit 0 equal to seed's, so that two lists of
// different parity are disjoint.
func randomBits(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 0))
	list := make([]uint32, 0, n)
	for len(list) < n {
		at := r.Uint32N(DefaultGeometry().Bits/2)*2 + uint32(seed&1)
		if !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	return sorted(list)
}
