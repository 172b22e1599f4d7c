package simulate

import "slices"

// holders is the exact index: which engines hold which block. Most blocks are held by one or two engines, so a sorted
// list is smaller than a set of bits.
type holders struct {
	of    [][]uint16 // by block, ascending
	depth []int32    // scratch of overlap, by engine
}

func newHolders(engines int) *holders { return &holders{depth: make([]int32, engines)} }

func (h *holders) add(b block, engine int) {
	for int(b) >= len(h.of) {
		h.of = append(h.of, nil)
	}
	if i, found := slices.BinarySearch(h.of[b], uint16(engine)); !found {
		h.of[b] = slices.Insert(h.of[b], i, uint16(engine))
	}
}

func (h *holders) remove(b block, engine int) {
	if i, found := slices.BinarySearch(h.of[b], uint16(engine)); found {
		h.of[b] = slices.Delete(h.of[b], i, i+1)
	}
}

// overlap returns for each engine how many leading blocks of the chain it holds. The answer stands until the next call.
// An engine that holds a block holds those before it, so the deepest block of each is enough.
func (h *holders) overlap(chain []block) []int32 {
	clear(h.depth)
	for i, b := range chain {
		if int(b) >= len(h.of) || len(h.of[b]) == 0 {
			break
		}
		for _, e := range h.of[b] {
			h.depth[e] = int32(i + 1)
		}
	}
	return h.depth
}
