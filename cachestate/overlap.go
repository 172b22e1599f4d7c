package cachestate

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// gallop is the factor between the probes of the first pass. Prompts differ most in whether an engine holds them at all
// or only the system text, so the first probes are close to the start; four finds the end of 1,024 keys in six.
const gallop = 4

// searched is how many words of a row are searched together. More share the work of finding a key's rows; less make sets
// short, of which a search has some on the stack.
const searched = 16

// slotSet is a set of slots of the words that are searched.
type slotSet [searched]uint64

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
	for from := 0; from < t.stride; from += searched {
		s := search{
			geometry: x.geometry, rows: t.rows[from:], stride: t.stride, width: min(searched, t.stride-from),
			keys: keys, out: out[from*64:],
		}
		var set slotSet
		if s.begin(&set, t.live[from:], eligible, from) {
			s.run(&set)
		}
	}
	return out
}

// search finds the overlap of the engines in some words of the rows.
type search struct {
	geometry Geometry
	rows     []uint64
	stride   int
	width    int // words that are searched
	keys     []Key
	out      []int32
}

// begin makes set those who are asked, and reports whether there are any.
func (s *search) begin(set *slotSet, live []uint64, eligible Set, from int) bool {
	any := uint64(0)
	for w := range s.width {
		set[w] = atomic.LoadUint64(&live[w])
		if eligible != nil {
			set[w] &= eligible.word(from + w)
		}
		any |= set[w]
	}
	return any != 0
}

// run gallops: it asks ever deeper, and searches the interval in which engines dropped out.
func (s *search) run(set *slotSet) {
	var gone slotSet
	held := 0
	for step := 1; held < len(s.keys); step *= gallop {
		depth := min(step, len(s.keys))
		clear(gone[:s.width])
		stay, leave := s.part(set, &gone, held, depth)
		if leave {
			s.narrow(&gone, held, depth-1)
		}
		if !stay {
			return
		}
		held = depth
	}
	s.found(set, held)
}

// narrow halves. Every engine of the set holds low keys, and none of them holds more than high.
func (s *search) narrow(set *slotSet, low, high int) {
	var gone slotSet // one declared within the loop would go to the heap
	for low < high {
		depth := (low + high + 1) / 2
		clear(gone[:s.width])
		stay, leave := s.part(set, &gone, low, depth)
		if leave {
			s.narrow(&gone, low, depth-1)
		}
		if !stay {
			return
		}
		low = depth
	}
	s.found(set, low)
}

// part moves from set to gone the engines, which hold the first held keys, that do not hold the first depth, and reports
// whether there are any that do and any that do not.
func (s *search) part(set, gone *slotSet, held, depth int) (stay, leave bool) {
	stay, leave = s.test(set, gone, s.keys[depth-1])
	if stay && depth-1 > held {
		more := false
		stay, more = s.test(set, gone, s.keys[depth-2])
		leave = leave || more
	}
	return stay, leave
}

// test moves from set to gone the engines that do not hold a key.
func (s *search) test(set, gone *slotSet, k Key) (stay, leave bool) {
	var at [MaxHashes]uint32
	s.geometry.Locations(k, &at)
	hashes := at[:s.geometry.Hashes]
	rows, stride := s.rows, s.stride
	var yes, no uint64
	for w, have := range set[:s.width] {
		if have == 0 {
			continue
		}
		hold := have
		for _, a := range hashes {
			if hold &= atomic.LoadUint64(&rows[int(a)*stride+w]); hold == 0 {
				break
			}
		}
		set[w] = hold
		gone[w] |= have &^ hold
		yes |= hold
		no |= have &^ hold
	}
	return yes != 0, no != 0
}

// found notes the depth of the engines of the set.
func (s *search) found(set *slotSet, depth int) {
	for w, left := range set[:s.width] {
		for ; left != 0; left &= left - 1 {
			s.out[w*64+bits.TrailingZeros64(left)] = int32(depth)
		}
	}
}
