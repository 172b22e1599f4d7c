package simengine

// eventKind is what happened to blocks.
type eventKind uint8

const (
	eventStored eventKind = iota
	eventRemoved
	eventCleared
)

// kvEvent is one KV event before it is encoded. It shares the token slices of its request, which never change.
type kvEvent struct {
	kind      eventKind
	group     int
	host      bool // in the host tier
	hashes    []uint64
	hasParent bool
	parent    uint64
	tokens    []Token // all tokens of the range, also of blocks that the group does not keep
	salt      string
	root      bool // hashes begin with the first block of the sequence
	adapter   string
}

// emitStored reports that blocks [s.stored, full) of a sequence were computed; kept are those that the group holds. A
// real engine reports the tokens of the whole range even when the group skips blocks: sliding windows and mamba.
func (c *cache) emitStored(s *sequence, group, full int, kept []link) {
	if !c.wantEvents {
		return
	}
	if c.unique {
		c.emitPages(s, group, full)
		return
	}
	e := c.storedEvent(s, group, s.stored, full)
	e.root = e.root && len(kept) > 0 && kept[0] == s.chain[0]
	for _, l := range kept {
		e.hashes = append(e.hashes, l.wire)
	}
	c.events = append(c.events, e)
}

// emitPages reports every newly stored page alone, as SGLang does; pages that were in the tree already are not.
func (c *cache) emitPages(s *sequence, group, full int) {
	for i := s.stored; i < full; i++ {
		if b := s.held[group][i]; b == nil || !b.stored {
			continue
		}
		e := c.storedEvent(s, group, i, i+1)
		e.hashes = []uint64{s.chain[i].wire}
		c.events = append(c.events, e)
	}
}

func (c *cache) storedEvent(s *sequence, group, from, to int) kvEvent {
	e := kvEvent{
		kind: eventStored, group: group, root: from == 0, salt: s.salt, adapter: s.adapter,
		tokens: s.tokens[from*c.blockTokens : to*c.blockTokens],
	}
	if from > 0 {
		e.hasParent, e.parent = true, s.chain[from-1].wire
	}
	return e
}

// emitRemoved reports the eviction of one physical copy. SGLang collects neighbours in one event.
func (c *cache) emitRemoved(b *block) {
	if !c.wantEvents {
		return
	}
	if n := len(c.events); c.unique && n > 0 {
		if last := &c.events[n-1]; last.kind == eventRemoved && last.group == b.group && !last.host {
			last.hashes = append(last.hashes, b.wire)
			return
		}
	}
	c.events = append(c.events, kvEvent{kind: eventRemoved, group: b.group, hashes: []uint64{b.wire}})
}

func (c *cache) emitCleared() {
	if c.wantEvents {
		c.events = append(c.events, kvEvent{kind: eventCleared})
	}
}

// takeEvents returns what happened since the last call.
func (c *cache) takeEvents() []kvEvent {
	e := c.events
	c.events = nil
	return e
}
