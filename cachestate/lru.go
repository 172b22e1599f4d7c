package cachestate

// entry is a run of tokens in a mirror's pool: those between a key's boundary and the one before it, or the rest of a
// sequence behind its last key, which has no key of its own.
type entry struct {
	key    Key
	twin   Key  // the same boundary by another key scheme, within the window of both; else 0
	keyed  bool // false for a rest
	tokens int64
	pins   int    // leases that hold it. Invariant: it is on the list of releases if and only if pins is 0
	stamp  uint64 // of its last release

	rest *entry // for a key: what the last sequence that ended here left behind
	of   *entry // for a rest: that key; nil when its prompt had no keys

	prev, next *entry
}

// names are the keys of the boundary that it ends at.
func (e *entry) names() []Key {
	switch {
	case !e.keyed:
		return nil
	case e.twin == 0:
		return []Key{e.key}
	}
	return []Key{e.key, e.twin}
}

// releases is the list of entries that may be evicted, in the order in which they will be. Invariant: stamps ascend.
type releases struct{ root entry }

func (l *releases) reset() { l.root.prev, l.root.next = &l.root, &l.root }

// first returns the entry to evict next, nil when there is none.
func (l *releases) first() *entry {
	if l.root.next == &l.root {
		return nil
	}
	return l.root.next
}

func (l *releases) pushBack(e *entry) { l.insert(e, &l.root) }

// insert puts e before at.
func (l *releases) insert(e, at *entry) {
	e.prev, e.next = at.prev, at
	at.prev.next, at.prev = e, e
}

func (l *releases) remove(e *entry) {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
}

// restore puts entries, whose stamps ascend, back to where they were.
func (l *releases) restore(entries []*entry) {
	at := l.root.next
	for _, e := range entries {
		for at != &l.root && at.stamp < e.stamp {
			at = at.next
		}
		l.insert(e, at)
	}
}
