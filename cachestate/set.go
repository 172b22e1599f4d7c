package cachestate

// Set is a set of slots of an Index: bit i%64 of word i/64 stands for slot i. Slots beyond its words are not in it.
type Set []uint64

// Add puts a slot into the set and returns the set, which grows when it must.
func (s Set) Add(slot int) Set {
	for len(s) <= slot/64 {
		s = append(s, 0)
	}
	s[slot/64] |= 1 << (slot % 64)
	return s
}

// Has reports whether the slot is in the set.
func (s Set) Has(slot int) bool {
	return slot >= 0 && slot/64 < len(s) && s[slot/64]>>(slot%64)&1 == 1
}

func (s Set) word(i int) uint64 {
	if i < len(s) {
		return s[i]
	}
	return 0
}
