package kvevents

import (
	"cmp"
	"slices"
)

// message is one batch as it came.
type message struct {
	seq     uint64
	hash    uint64 // of payload
	payload []byte
}

// Bounds of what is held. A batch that is so far ahead does not wait for a reordered one.
const (
	maxHeld      = 256
	maxHeldBytes = 16 << 20
)

// hold keeps batches that came early, in order of their numbers.
type hold struct {
	batches []message
	bytes   int
}

// add keeps m, unless its number is there already.
func (h *hold) add(m message) {
	i, found := slices.BinarySearchFunc(h.batches, m, func(a, b message) int { return cmp.Compare(a.seq, b.seq) })
	if found {
		return
	}
	h.batches = slices.Insert(h.batches, i, m)
	h.bytes += len(m.payload)
}

func (h *hold) empty() bool { return len(h.batches) == 0 }

// full reports whether nothing more should be added.
func (h *hold) full() bool { return len(h.batches) >= maxHeld || h.bytes >= maxHeldBytes }

// first is the lowest number; there must be one.
func (h *hold) first() uint64 { return h.batches[0].seq }

// pop takes the batch with the lowest number out; there must be one.
func (h *hold) pop() message {
	m := h.batches[0]
	h.batches[0] = message{}
	h.batches = h.batches[1:]
	h.bytes -= len(m.payload)
	return m
}

func (h *hold) clear() { *h = hold{} }
