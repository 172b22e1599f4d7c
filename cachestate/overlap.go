package cachestate

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// gallop is the factor between the probes of the first pass. Prompts differ most in whether an engine holds them at all
// or only the system text, so the first probes are close to the start; four finds the end of 1,024 keys in six.
const gallop = 4

// Overlap returns for every slot how many leading keys its engine holds, 0 for none. Engines outside eligible get 0;
// nil makes all of them eligible. It writes into out when that has the capacity and allocates nothing then. It never
// waits: a delta that is applied meanwhile may be seen in part.
//
// It relies on what engines do, that a key is held only while those before it are (they evict leaves first), to search
// instead of walk, and believes a hit only when the key before it is held too or was believed already. The answer is
// never below the truth but for a delta in progress, and above it only by false hits.
func (x *Index) Overlap(keys []Key, eligible Set, out []int32) []int32 {
	t := x.table.Load()
	out = slices.Grow(out[:0], t.stride*64)[:t.stride*64]
	clear(out)
	for w := range t.stride {
		live := atomic.LoadUint64(&t.live[w])
		if eligible != nil {
			live &= eligible.word(w)
		}
		if live != 0 {
			s := search{geometry: x.geometry, rows: t.rows[w:], stride: t.stride, keys: keys, out: out[w*64:]}
			s.run(live)
		}
	}
	return out
}

// search finds the overlap of up to 64 engines: those of one word of a row.
type search struct {
	geometry Geometry
	rows     []uint64
	stride   int
	keys     []Key
	out      []int32
}

// run gallops: it asks ever deeper, and searches the interval in which a set of engines dropped out.
func (s *search) run(set uint64) {
	held := 0
	for step := 1; set != 0 && held < len(s.keys); step *= gallop {
		depth := min(step, len(s.keys))
		yes := s.holders(set, held, depth)
		s.narrow(set&^yes, held, depth-1)
		set, held = yes, depth
	}
	s.found(set, held)
}

// narrow halves. Every engine of the set holds low keys, and none of them holds more than high.
func (s *search) narrow(set uint64, low, high int) {
	for set != 0 && low < high {
		depth := (low + high + 1) / 2
		yes := s.holders(set, low, depth)
		s.narrow(set&^yes, low, depth-1)
		set, low = yes, depth
	}
	s.found(set, low)
}

// holders returns the engines of the set, which hold the first held keys, that hold the first depth.
func (s *search) holders(set uint64, held, depth int) uint64 {
	set = s.test(set, s.keys[depth-1])
	if set != 0 && depth-1 > held {
		set = s.test(set, s.keys[depth-2])
	}
	return set
}

// test returns the engines of the set that hold the key.
func (s *search) test(set uint64, k Key) uint64 {
	var at [MaxHashes]uint32
	s.geometry.Locations(k, &at)
	for _, a := range at[:s.geometry.Hashes] {
		if set &= atomic.LoadUint64(&s.rows[int(a)*s.stride]); set == 0 {
			return 0
		}
	}
	return set
}

func (s *search) found(set uint64, depth int) {
	for ; set != 0; set &= set - 1 {
		s.out[bits.TrailingZeros64(set)] = int32(depth)
	}
}
