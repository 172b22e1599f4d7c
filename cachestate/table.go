package cachestate

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Roster says which engine has which slot. It is immutable: the index makes another when engines come and go, so a
// reader that keeps what it computed from a Roster compares pointers to see whether that still stands.
type Roster struct {
	ids   []engine.ID // by slot; "" is a free one
	slots map[engine.ID]int
}

// Slot returns the slot of an engine.
func (r *Roster) Slot(id engine.ID) (int, bool) {
	n, ok := r.slots[id]
	return n, ok
}

// Engines returns the engine of every slot, "" for a free one. It must not be changed.
func (r *Roster) Engines() []engine.ID { return r.ids }

// Len returns the number of engines.
func (r *Roster) Len() int { return len(r.slots) }

// with returns a roster in which slot n belongs to id; "" frees it.
func (r *Roster) with(n int, id engine.ID) *Roster {
	next := &Roster{ids: slices.Clone(r.ids), slots: maps.Clone(r.slots)}
	for len(next.ids) <= n {
		next.ids = append(next.ids, "")
	}
	delete(next.slots, next.ids[n])
	if next.ids[n] = id; id != "" {
		next.slots[id] = n
	}
	return next
}

// table is what readers of an index see. They read its words with atomic loads while the one writer changes bits of
// them, so a row may be read half old and half new. The table itself is replaced, never changed.
type table struct {
	stride int      // words of a row; a slot is a bit of it
	rows   []uint64 // bit i of every digest in rows[i*stride:][:stride]
	live   []uint64 // one word per word of a row: slots that answer
	roster *Roster
}

func newTable(g Geometry, stride int) *table {
	return &table{
		stride: stride,
		rows:   make([]uint64, int(g.Bits)*stride),
		live:   make([]uint64, stride),
		roster: &Roster{slots: map[engine.ID]int{}},
	}
}

// withRoster returns a table with the same rows and another roster.
func (t *table) withRoster(r *Roster) *table {
	return &table{stride: t.stride, rows: t.rows, live: t.live, roster: r}
}

// doubled returns a copy of t with twice the slots. Only the writer may call it.
func (t *table) doubled(g Geometry) *table {
	next := newTable(g, 2*t.stride)
	for i := range int(g.Bits) {
		copy(next.rows[i*next.stride:], t.rows[i*t.stride:(i+1)*t.stride])
	}
	copy(next.live, t.live)
	next.roster = t.roster
	return next
}

// column returns the writer's handle on one slot.
func (t *table) column(slot int) column {
	return column{rows: t.rows[slot/64:], stride: t.stride, bit: 1 << (slot % 64)}
}

// setLive makes a slot answer, or not.
func (t *table) setLive(slot int, on bool) {
	column{rows: t.live[slot/64:], bit: 1 << (slot % 64)}.put(0, on)
}

// column is one engine's digest in a table.
type column struct {
	rows   []uint64
	stride int
	bit    uint64
}

func (c column) get(at uint32) bool { return atomic.LoadUint64(&c.rows[int(at)*c.stride])&c.bit != 0 }

func (c column) put(at uint32, on bool) {
	if on {
		atomic.OrUint64(&c.rows[int(at)*c.stride], c.bit)
	} else {
		atomic.AndUint64(&c.rows[int(at)*c.stride], ^c.bit)
	}
}
