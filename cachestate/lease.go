package cachestate

import "slices"

// Lease is one request at the engine of a Mirror, from the moment the engine has it to its end. It is used like its
// mirror: by one goroutine or under the mirror's lock.
type Lease struct {
	mirror *Mirror
	state  leaseState

	keys    []Key
	twins   []Key    // of the keys by another scheme, 0 for none; nil outside of a window
	tokens  []int64  // between each key's boundary and the one before
	entries []*entry // of the first keys, each pinned once. Invariant: all of them once prefilled
	shared  int64    // tokens of the entries that are in the pool for this lease: its hits, and what it stored
	prompt  int64    // tokens of the prompt
	output  int64    // tokens generated so far
	own     int64    // tokens that it holds beside those, part of mirror.held
}

type leaseState uint8

const (
	leaseWaiting leaseState = iota
	leasePrefilled
	leaseEnded
)

// Start says that the engine has taken a request. Its resident keys are pinned, and the blocks for the rest are held:
// requests with one new prefix each hold a copy of their own. It keeps nothing of p.
func (m *Mirror) Start(p *Prompt, bytesPerToken float64) *Lease {
	l := &Lease{
		mirror: m,
		keys:   slices.Clone(p.Keys),
		twins:  p.twins(),
		tokens: make([]int64, len(p.Keys)),
		prompt: tokensAt(p.Bytes, bytesPerToken),
	}
	before := int64(0)
	for i, offset := range p.Offsets {
		at := max(tokensAt(int64(offset), bytesPerToken), before) // offsets from elsewhere may fall
		l.tokens[i], before = at-before, at
	}
	for i := range l.keys {
		e := m.find(l.keys[i], l.twin(i))
		if e == nil {
			break
		}
		m.rename(e, l.keys[i], l.twin(i))
		m.pin(e)
		l.entries = append(l.entries, e)
		l.shared += e.tokens
	}
	l.hold()
	return l
}

// twin returns the key of boundary i by the other scheme, 0 when there is none.
func (l *Lease) twin(i int) Key {
	if l.twins == nil {
		return 0
	}
	return l.twins[i]
}

// Prefilled says that the request has its first token: its keys are resident now, pinned until it ends.
func (l *Lease) Prefilled() {
	if l.state != leaseWaiting {
		return
	}
	l.state = leasePrefilled
	last, before := l.last(), l.shared
	for i := len(l.entries); i < len(l.keys); i++ {
		l.store(i)
	}
	l.mirror.absorb(last, l.shared-before)
	l.hold()
}

// store makes key i resident, or pins it where another request has stored it meanwhile: then the copy stays held.
func (l *Lease) store(i int) {
	m := l.mirror
	e := m.find(l.keys[i], l.twin(i))
	if e != nil {
		m.rename(e, l.keys[i], l.twin(i))
		m.pin(e)
	} else {
		e = m.insert(l.keys[i], l.twin(i), l.tokens[i])
		l.shared += e.tokens
	}
	l.entries = append(l.entries, e)
}

// Generated says how many tokens the request has generated so far, which it holds too.
func (l *Lease) Generated(outputTokens int) {
	if l.state == leaseEnded {
		return
	}
	l.output = max(l.output, bounded(int64(outputTokens)))
	l.hold()
}

// Finish says that the request has ended, with the tokens that the engine reported; 0 prompt tokens keep the estimate.
// What it held may be evicted now: its output first, then its keys from the last to the first, unless others pin them.
// A partial block at the end was never cached.
func (l *Lease) Finish(promptTokens, outputTokens int) {
	if l.state == leaseEnded {
		return
	}
	l.Prefilled()
	if promptTokens > 0 {
		l.prompt = bounded(int64(promptTokens))
	}
	l.output = max(l.output, bounded(int64(outputTokens)))
	m := l.mirror
	l.end()
	size := l.prompt + l.output
	m.leave(l.last(), size-size%m.block-l.keyed())
	for _, e := range slices.Backward(l.entries) {
		m.release(e)
	}
	m.evict()
}

// Abandon says that the request ended without the engine's answer. Before its first token it leaves nothing behind, and
// the keys it pinned are as old as they were; what was evicted for it stays evicted. Later it is a Finish.
func (l *Lease) Abandon() {
	if l.state == leaseEnded {
		return
	}
	if l.state == leasePrefilled {
		l.Finish(0, 0)
		return
	}
	l.end()
	var free []*entry
	for _, e := range slices.Backward(l.entries) {
		if e.pins--; e.pins == 0 {
			free = append(free, e)
		}
	}
	l.mirror.releases.restore(free)
}

func (l *Lease) end() {
	l.state = leaseEnded
	l.mirror.held -= l.own
	l.own = 0
}

// last returns the entry of the last key that the lease pins, nil when it pins none.
func (l *Lease) last() *entry {
	if len(l.entries) == 0 {
		return nil
	}
	return l.entries[len(l.entries)-1]
}

// keyed returns the tokens of all entries that the lease pins.
func (l *Lease) keyed() int64 {
	total := int64(0)
	for _, e := range l.entries {
		total += e.tokens
	}
	return total
}

// hold brings what the lease holds for itself up to date: whole blocks for the sequence so far, less what is in the
// pool for it already.
func (l *Lease) hold() {
	m := l.mirror
	blocks := (l.prompt + l.output + m.block - 1) / m.block
	own := max(blocks*m.block-l.shared, 0)
	m.held += own - l.own
	l.own = own
	m.evict()
}
