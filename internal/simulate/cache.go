package simulate

import "slices"

// block names a KV block and everything before it: a block of a prompt is the same for two prompts exactly when they are
// equal up to its end.
type block = uint32

// cache is the prefix cache of one engine. A block is resident from the prefill that computed it until it is evicted; the
// blocks of running requests are pinned. The least recently released goes first, and of one request the last block goes
// first, so a block is evicted before those that it follows.
type cache struct {
	capacity int // blocks
	reserved int // blocks of running requests that are computed now or are copies of resident ones
	at       map[block]int32
	entries  []cacheEntry
	free     []int32
	oldest   int32 // of the unpinned ones, in order of release; none when all are pinned
	newest   int32
	idle     int // unpinned entries

	stored  func(block, *cacheEntry) // called for each block that becomes resident
	evicted func(block, *cacheEntry) // called for each that is no longer
}

type cacheEntry struct {
	block      block
	pins       int32
	prev, next int32 // neighbours in the order of release, of an unpinned entry
	advertised int32 // of the block's keys, those that the digest holds
}

const none = -1

func newCache(capacity int) *cache {
	ignore := func(block, *cacheEntry) {}
	return &cache{
		capacity: capacity, at: make(map[block]int32, capacity), oldest: none, newest: none, stored: ignore, evicted: ignore,
	}
}

// match returns how many leading blocks of the chain are resident.
func (c *cache) match(chain []block) int {
	for i, b := range chain {
		if _, ok := c.at[b]; !ok {
			return i
		}
	}
	return len(chain)
}

// start pins the first hits blocks of the chain and makes room for more blocks. It does nothing and returns false when
// pinned blocks leave too little.
func (c *cache) start(chain []block, hits, more int) bool {
	unpinned := 0
	for _, b := range chain[:hits] {
		if c.entries[c.at[b]].pins == 0 {
			unpinned++
		}
	}
	if len(c.at)+c.reserved+more-(c.idle-unpinned) > c.capacity {
		return false
	}
	for _, b := range chain[:hits] {
		c.pin(c.at[b])
	}
	c.reserved += more
	c.shrink(c.capacity)
	return true
}

// shrink evicts until no more than limit blocks are in use, or all that are left are pinned.
func (c *cache) shrink(limit int) {
	for len(c.at)+c.reserved > limit && c.oldest != none {
		c.evict(c.oldest)
	}
}

// pinned is the share of the cache that running requests hold.
func (c *cache) pinned() float64 { return float64(c.used()-c.idle) / float64(c.capacity) }

func (c *cache) used() int { return len(c.at) + c.reserved }

// store makes blocks that were reserved resident and pins them. It returns how many already were, by another request:
// those copies stay reserved until the caller gives them back.
func (c *cache) store(chain []block) (copies int) {
	for _, b := range chain {
		if i, ok := c.at[b]; ok {
			c.pin(i)
			copies++
			continue
		}
		c.reserved--
		i := c.entry()
		c.entries[i] = cacheEntry{block: b, pins: 1, prev: none, next: none}
		c.at[b] = i
		c.stored(b, &c.entries[i])
	}
	return copies
}

func (c *cache) entry() int32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		return i
	}
	c.entries = append(c.entries, cacheEntry{})
	return int32(len(c.entries) - 1)
}

// release unpins the blocks of a chain, from its end.
func (c *cache) release(chain []block) {
	for _, b := range slices.Backward(chain) {
		n := c.at[b]
		e := &c.entries[n]
		if e.pins--; e.pins == 0 {
			c.push(n)
		}
	}
}

func (c *cache) pin(i int32) {
	e := &c.entries[i]
	if e.pins == 0 {
		c.unlink(i)
	}
	e.pins++
}

func (c *cache) push(i int32) {
	e := &c.entries[i]
	e.prev, e.next = c.newest, none
	if c.newest == none {
		c.oldest = i
	} else {
		c.entries[c.newest].next = i
	}
	c.newest = i
	c.idle++
}

func (c *cache) unlink(i int32) {
	e := &c.entries[i]
	if e.prev == none {
		c.oldest = e.next
	} else {
		c.entries[e.prev].next = e.next
	}
	if e.next == none {
		c.newest = e.prev
	} else {
		c.entries[e.next].prev = e.prev
	}
	c.idle--
}

func (c *cache) evict(i int32) {
	e := &c.entries[i]
	c.unlink(i)
	delete(c.at, e.block)
	c.free = append(c.free, i)
	c.evicted(e.block, e)
}
