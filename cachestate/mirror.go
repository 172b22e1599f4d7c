package cachestate

import "slices"

// Mirror is the owner's own model of the cache of an engine that tells nothing. It imitates what paged engines do: one
// pool of tokens; what running requests hold cannot be evicted; what they leave is evicted in the order in which they
// ended, the tail of each first. It is for one goroutine or under one lock, and so are its leases.
//
// In the pool are the resident keys, each with the tokens between its boundary and the one before; the rests of ended
// sequences, which are their output and what lay behind their last key; and what running requests hold for themselves.
// Invariant: a key is resident only while all keys before it in its prompt are.
type Mirror struct {
	capacity int64
	block    int64
	maxKeys  int // beyond it keys are evicted whatever they weigh; twins may be half as many more
	changed  func(k Key, resident bool)

	keys     map[Key]*entry
	twins    int // of them, those that stand beside another key of an entry
	releases releases
	stamp    uint64
	stored   int64 // tokens of keys and rests
	held     int64 // tokens that running requests hold for themselves. Invariant: the sum over live leases
}

// NewMirror returns the mirror of an empty cache of so many tokens. Sequences take whole blocks of blockTokens, 1 when
// the size is not known. maxKeys bounds the keys: prompts of many empty messages have keys without tokens, and would fill
// a digest past use. changed is told of every key that becomes resident or ceases to be, at the moment it does; it
// must not call the mirror.
func NewMirror(capacityTokens int64, blockTokens, maxKeys int, changed func(k Key, resident bool)) *Mirror {
	m := &Mirror{capacity: max(capacityTokens, 0), block: int64(max(blockTokens, 1)), maxKeys: maxKeys, changed: changed}
	m.keys = map[Key]*entry{}
	m.releases.reset()
	return m
}

// Overlap returns how many of the keys are resident before the first that is not.
func (m *Mirror) Overlap(keys []Key) int {
	for i, k := range keys {
		if m.keys[k] == nil {
			return i
		}
	}
	return len(keys)
}

// Rest returns the tokens that ended sequences left behind a resident key: an answer, and what lay behind the last key of
// its prompt. A prompt that goes on from there repeats them, more or less.
func (m *Mirror) Rest(k Key) int {
	if e := m.keys[k]; e != nil && e.rest != nil {
		return int(e.rest.tokens)
	}
	return 0
}

// SetCapacity says how many tokens the cache has, and evicts what is beyond.
func (m *Mirror) SetCapacity(tokens int64) {
	m.capacity = max(tokens, 0)
	m.evict()
}

// SetMaxKeys says how many keys may be resident, and evicts what is beyond.
func (m *Mirror) SetMaxKeys(n int) {
	m.maxKeys = n
	m.evict()
}

// Tokens returns how many tokens of the pool are in use. It is above the capacity while running requests alone are.
func (m *Mirror) Tokens() int64 { return m.stored + m.held }

// evict makes room until the pool is within its bounds or nothing is left that may go.
func (m *Mirror) evict() {
	for m.Tokens() > m.capacity || len(m.keys) > m.maxKeys+min(m.twins, m.maxKeys/2) {
		e := m.releases.first()
		if e == nil {
			return
		}
		m.drop(e)
	}
}

// drop takes an entry that nobody pins out of the pool.
func (m *Mirror) drop(e *entry) {
	m.releases.remove(e)
	m.stored -= e.tokens
	if e.keyed {
		m.forget(e)
		m.setTwin(e, 0)
	} else if e.of != nil && e.of.rest == e {
		e.of.rest = nil
	}
}

// insert makes a key resident and pinned once, and its twin with it unless that is 0.
func (m *Mirror) insert(k, twin Key, tokens int64) *entry {
	e := &entry{key: k, keyed: true, tokens: tokens, pins: 1}
	m.keys[k] = e
	m.stored += tokens
	m.changed(k, true)
	m.rename(e, k, twin)
	return e
}

// find returns the entry of a boundary by either of its keys, nil when there is none.
func (m *Mirror) find(k, twin Key) *entry {
	if e := m.keys[k]; e != nil || twin == 0 {
		return e
	}
	return m.keys[twin]
}

// rename gives an entry the keys that a request has for it, of which the first found it or is new. So those of a scheme that
// no request is keyed by any more go. A twin that another entry has stays there.
func (m *Mirror) rename(e *entry, k, twin Key) {
	if e.key == k && e.twin == twin {
		return
	}
	if has := m.keys[twin]; has != nil && has != e {
		twin = 0
	}
	m.forget(e, k, twin)
	e.key = k
	m.setTwin(e, twin)
	for _, name := range e.names() {
		if m.keys[name] == nil {
			m.keys[name] = e
			m.changed(name, true)
		}
	}
}

// setTwin notes an entry's other key, 0 for none.
func (m *Mirror) setTwin(e *entry, twin Key) {
	if e.twin != 0 {
		m.twins--
	}
	if e.twin = twin; twin != 0 {
		m.twins++
	}
}

// forget ends the residency of the keys of an entry but for those that it keeps.
func (m *Mirror) forget(e *entry, keep ...Key) {
	for _, name := range e.names() {
		if !slices.Contains(keep, name) {
			delete(m.keys, name)
			m.changed(name, false)
		}
	}
}

func (m *Mirror) pin(e *entry) {
	if e.pins == 0 {
		m.releases.remove(e)
	}
	e.pins++
}

// release unpins an entry as the end of a sequence does: it was used now, and is evicted after all released before.
func (m *Mirror) release(e *entry) {
	m.stamp++
	e.stamp = m.stamp
	if e.pins--; e.pins == 0 {
		m.releases.pushBack(e)
	}
}

// leave adds the rest of a sequence that ended behind key e, which is still pinned, so that the rest goes before it
// does; e is nil when the prompt had no keys. Only the last rest behind a key can be absorbed; older ones are evicted
// in their turn.
func (m *Mirror) leave(e *entry, tokens int64) {
	if tokens <= 0 {
		return
	}
	m.stamp++
	rest := &entry{tokens: tokens, stamp: m.stamp, of: e}
	if e != nil {
		e.rest = rest
	}
	m.stored += tokens
	m.releases.pushBack(rest)
}

// absorb takes tokens away from the rest behind key e: a sequence that goes on from there has them as its own keys.
func (m *Mirror) absorb(e *entry, tokens int64) {
	if e == nil || e.rest == nil {
		return
	}
	rest := e.rest
	tokens = min(tokens, rest.tokens)
	rest.tokens -= tokens
	m.stored -= tokens
	if rest.tokens == 0 {
		m.drop(rest)
	}
}
