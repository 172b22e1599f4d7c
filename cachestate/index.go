package cachestate

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// MaxFill is the share of set bits above which a digest counts as unknown: at 0.7 with five hashes one probe in six is
// a false hit, and two neighbouring ones still one in 35.
const MaxFill = 0.7

// maxSlots bounds what peers that name ever more engines can make an index allocate; four times the largest mesh. At
// the default geometry it is 64 MiB.
const maxSlots = 4096

// Index is the peer index: the digests of all engines in one tier, bit-sliced, so that one look at a key answers for
// all of them at once. All methods are safe for concurrent use. Overlap, Roster and Slot never wait; the others take
// turns.
type Index struct {
	geometry Geometry
	tier     Tier
	limit    int                   // of slots
	table    atomic.Pointer[table] // replaced under mu

	mu    sync.Mutex
	slots []slot
	free  []int // slots to use again. Invariant: they are not live. Their columns are not cleared yet
}

// slot is what the writer knows of one column.
type slot struct {
	id      engine.ID // "" when free
	version Version
	keys    uint32 // that the digest stands for, as its owner says
	ones    int    // set bits of the column, also while the slot is free
}

// NewIndex returns an empty index. The geometry must be valid.
func NewIndex(g Geometry, t Tier) *Index {
	x := &Index{geometry: g, tier: t, limit: maxSlots}
	x.table.Store(newTable(g, 1))
	return x
}

// Apply takes a delta in. It keeps nothing of d. A delta counts when it leads from a version that the index has, or is
// behind of, to one that it has not reached, and when the checksum is right afterwards. Repeated, late and overlapping
// deltas do no harm. A higher generation empties the engine's column first, because a restart empties the cache. The
// caller has checked that d comes from the engine's owner.
func (x *Index) Apply(d *Delta) Outcome {
	if d.Geometry != x.geometry || d.Tier != x.tier || d.validate() != nil {
		return Foreign
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	n, ok := x.slotLocked(d.Engine)
	if !ok {
		return Crowded
	}
	have := x.slots[n].version
	switch {
	case d.Generation < have.Generation:
		return Stale
	case d.Generation > have.Generation:
		x.emptyLocked(n)
		x.slots[n].version = Version{Generation: d.Generation}
		have = x.slots[n].version
	}
	outcome := x.advanceLocked(n, have, d)
	if s := &x.slots[n]; s.version == d.Version() {
		s.keys = d.Keys
	}
	return outcome
}

// advanceLocked applies a delta of the generation that the slot has.
func (x *Index) advanceLocked(n int, have Version, d *Delta) Outcome {
	switch {
	case d.To < have.Number, d.To == have.Number && d.Checksum == have.Checksum:
		return Duplicate
	case d.Full():
		return x.replaceLocked(n, d)
	case d.To == have.Number:
		return Corrupt
	case d.From > have.Number:
		return Behind
	}
	return x.flipLocked(n, d)
}

// flipLocked applies two lists, after looking whether they lead to the checksum.
func (x *Index) flipLocked(n int, d *Delta) Outcome {
	s, c := &x.slots[n], x.table.Load().column(n)
	sum, ones := s.version.Checksum, s.ones
	for _, at := range d.Set {
		if !c.get(at) {
			sum += mixLocation(at)
			ones++
		}
	}
	for _, at := range d.Clear {
		if c.get(at) {
			sum -= mixLocation(at)
			ones--
		}
	}
	if sum != d.Checksum {
		return Corrupt
	}
	for _, at := range d.Set {
		c.put(at, true)
	}
	for _, at := range d.Clear {
		c.put(at, false)
	}
	x.reachLocked(n, d.Version(), ones)
	return Applied
}

// replaceLocked takes a whole digest in. An empty column, as joining finds it, needs only the set bits written.
func (x *Index) replaceLocked(n int, d *Delta) Outcome {
	sum, list := uint64(0), setBits(d.Words)
	for _, at := range list {
		sum += mixLocation(at)
	}
	if sum != d.Checksum {
		return Corrupt
	}
	c := x.table.Load().column(n)
	if x.slots[n].ones > 0 {
		for at := range x.geometry.Bits {
			if d.Words[at/64]>>(at%64)&1 == 0 && c.get(at) {
				c.put(at, false)
			}
		}
	}
	for _, at := range list {
		c.put(at, true)
	}
	x.reachLocked(n, d.Version(), len(list))
	return Applied
}

// reachLocked notes that a slot's column is at version v.
func (x *Index) reachLocked(n int, v Version, ones int) {
	s := &x.slots[n]
	s.version, s.ones = v, ones
	x.table.Load().setLive(n, x.fillLocked(n) <= MaxFill)
}

func (x *Index) fillLocked(n int) float64 { return float64(x.slots[n].ones) / float64(x.geometry.Bits) }

// emptyLocked clears a slot's column. Readers may see it half cleared.
func (x *Index) emptyLocked(n int) {
	if x.slots[n].ones > 0 {
		c := x.table.Load().column(n)
		for at := range x.geometry.Bits {
			if c.get(at) {
				c.put(at, false)
			}
		}
	}
	x.slots[n].keys = 0
	x.reachLocked(n, Version{}, 0)
}

// slotLocked returns the slot of an engine and gives it one when it is new, or false when there is none left.
func (x *Index) slotLocked(id engine.ID) (int, bool) {
	t := x.table.Load()
	if n, ok := t.roster.Slot(id); ok {
		return n, true
	}
	n := len(x.slots)
	if len(x.free) > 0 {
		n = x.free[len(x.free)-1]
		x.free = x.free[:len(x.free)-1]
	} else {
		if n == x.limit {
			return 0, false
		}
		if n == t.stride*64 {
			t = t.doubled(x.geometry)
		}
		x.slots = append(x.slots, slot{})
	}
	x.slots[n].id = id
	x.table.Store(t.withRoster(t.roster.with(n, id)))
	x.emptyLocked(n)
	return n, true
}

// Remove forgets an engine. Its slot stops to answer at once; the column is cleared before another engine gets it.
func (x *Index) Remove(id engine.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.table.Load()
	n, ok := t.roster.Slot(id)
	if !ok {
		return
	}
	t.setLive(n, false)
	x.table.Store(t.withRoster(t.roster.with(n, "")))
	x.slots[n] = slot{ones: x.slots[n].ones}
	x.free = append(x.free, n)
}

// Have returns the version of an engine's digest that the index is at, or false when it never heard of the engine.
func (x *Index) Have(id engine.ID) (Version, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n, ok := x.Slot(id); ok {
		return x.slots[n].version, true
	}
	return Version{}, false
}

// Fill returns the share of set bits in an engine's digest, 0 to 1; 0 when it is not known. Above MaxFill the digest
// counts as unknown and its overlap is 0.
func (x *Index) Fill(id engine.ID) float64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n, ok := x.Slot(id); ok {
		return x.fillLocked(n)
	}
	return 0
}

// Keys returns how many keys an engine's digest stands for, as its owner says; 0 when it is not known.
func (x *Index) Keys(id engine.ID) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n, ok := x.Slot(id); ok {
		return int(x.slots[n].keys)
	}
	return 0
}

// Versions yields the version vector, in no order: what the index has of every engine. It is a copy; the index may
// change meanwhile.
func (x *Index) Versions() iter.Seq2[engine.ID, Version] {
	x.mu.Lock()
	slots := make([]slot, 0, len(x.slots))
	for _, s := range x.slots {
		if s.id != "" {
			slots = append(slots, s)
		}
	}
	x.mu.Unlock()
	return func(yield func(engine.ID, Version) bool) {
		for _, s := range slots {
			if !yield(s.id, s.version) {
				return
			}
		}
	}
}

// Roster returns who has which slot now.
func (x *Index) Roster() *Roster { return x.table.Load().roster }

// Slot returns the slot of an engine: its place in the answer of Overlap and in a Set. It stays the same until the
// engine is removed.
func (x *Index) Slot(id engine.ID) (int, bool) { return x.Roster().Slot(id) }
