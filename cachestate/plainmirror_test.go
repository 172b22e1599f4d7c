package cachestate

import "slices"

// plainMirror is the dumb twin: it keeps every item in one list, adds up whatever is asked for, and looks through all
// of them for the oldest.
type plainMirror struct {
	capacity, block int64
	clock           int
	items           []*plainItem
	leases          []*plainLease
}

type plainItem struct {
	key      Key
	isKey    bool
	behind   *plainItem // of a rest
	latest   bool       // of a rest: the last behind its key
	tokens   int64
	released int
}

type plainLease struct {
	prompt            *Prompt
	pinned, ours      []*plainItem // ours: those that are in the pool for this lease
	tokens, output    int64
	prefilled, closed bool
}

func (m *plainMirror) find(k Key) *plainItem {
	for _, it := range m.items {
		if it.isKey && it.key == k {
			return it
		}
	}
	return nil
}

func (m *plainMirror) overlap(keys []Key) (n int) {
	for n < len(keys) && m.find(keys[n]) != nil {
		n++
	}
	return n
}

func (l *plainLease) own(block int64) int64 {
	if l.closed {
		return 0
	}
	sequence := (l.tokens + l.output + block - 1) / block * block
	return max(sequence-sumTokens(l.ours), 0)
}

func sumTokens(items []*plainItem) (total int64) {
	for _, it := range items {
		total += it.tokens
	}
	return total
}

func (m *plainMirror) total() int64 {
	total := sumTokens(m.items)
	for _, l := range m.leases {
		total += l.own(m.block)
	}
	return total
}

func (m *plainMirror) pinned(it *plainItem) bool {
	return slices.ContainsFunc(m.leases, func(l *plainLease) bool { return !l.closed && slices.Contains(l.pinned, it) })
}

func (m *plainMirror) evict() {
	for m.total() > m.capacity {
		oldest := -1
		for i, it := range m.items {
			if !m.pinned(it) && (oldest < 0 || it.released < m.items[oldest].released) {
				oldest = i
			}
		}
		if oldest < 0 {
			return
		}
		m.items = slices.Delete(m.items, oldest, oldest+1)
	}
}

func (m *plainMirror) start(p *Prompt) *plainLease {
	l := &plainLease{prompt: p, tokens: p.Bytes / 4}
	for _, k := range p.Keys[:m.overlap(p.Keys)] {
		l.pinned = append(l.pinned, m.find(k))
		l.ours = append(l.ours, m.find(k))
	}
	m.leases = append(m.leases, l)
	m.evict()
	return l
}

func (m *plainMirror) prefill(l *plainLease) {
	if l.closed || l.prefilled {
		return
	}
	l.prefilled = true
	hits, stored := len(l.pinned), int64(0)
	for i := hits; i < len(l.prompt.Keys); i++ {
		it := m.find(l.prompt.Keys[i])
		if it == nil {
			it = &plainItem{key: l.prompt.Keys[i], isKey: true, tokens: int64(l.prompt.Offsets[i] / 4)}
			if i > 0 {
				it.tokens -= int64(l.prompt.Offsets[i-1] / 4)
			}
			stored += it.tokens
			m.items = append(m.items, it)
			l.ours = append(l.ours, it)
		}
		l.pinned = append(l.pinned, it)
	}
	for _, it := range m.items {
		if hits > 0 && it.behind == l.pinned[hits-1] && it.latest {
			it.tokens -= min(it.tokens, stored)
		}
	}
	m.items = slices.DeleteFunc(m.items, func(it *plainItem) bool { return !it.isKey && it.tokens == 0 })
	m.evict()
}

func (m *plainMirror) generated(l *plainLease, n int64) {
	l.output = max(l.output, n)
	m.evict()
}

func (m *plainMirror) finish(l *plainLease, output int64) {
	if l.closed {
		return
	}
	m.prefill(l)
	l.output, l.closed = max(l.output, output), true
	rest := &plainItem{latest: true, tokens: (l.tokens+l.output)/m.block*m.block - sumTokens(l.pinned), released: m.clock}
	m.clock++
	if len(l.pinned) > 0 {
		rest.behind = l.pinned[len(l.pinned)-1]
	}
	if rest.tokens > 0 {
		for _, it := range m.items {
			it.latest = it.latest && (it.behind == nil || it.behind != rest.behind)
		}
		m.items = append(m.items, rest)
	}
	for _, it := range slices.Backward(l.pinned) {
		it.released = m.clock
		m.clock++
	}
	m.evict()
}

func (m *plainMirror) abandon(l *plainLease) {
	if l.prefilled {
		m.finish(l, 0)
	}
	l.closed = true
}

func (m *plainMirror) resident() []Key {
	var keys []Key
	for _, it := range m.items {
		if it.isKey {
			keys = append(keys, it.key)
		}
	}
	slices.Sort(keys)
	return keys
}

// residentIn is resident with the keys of so many schemes.
func (m *plainMirror) residentIn(schemes int) []Key {
	keys := m.resident()
	for _, k := range keys {
		if schemes > 1 {
			keys = append(keys, ^k)
		}
	}
	slices.Sort(keys)
	return keys
}
