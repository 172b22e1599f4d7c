package simengine

import "slices"

// The KV cache is one pool of fixed-size blocks for all groups. A block that was stored stays findable by its key after
// its request has ended, in a list ordered by release; a new block is a blank one, or evicts the head of that list.
// Two requests that compute the same prefix at the same time store a copy each, and both copies stay until evicted.
// Nothing here is safe for concurrent use: the scheduler's lock covers it.

// blockKey finds a block: one group's part of one link.
type blockKey struct {
	group int
	key   uint64
}

// block is one physical block.
type block struct {
	blockKey
	wire   uint64
	refs   int      // running requests that hold it
	stored bool     // findable; Invariant: a block on the free list is stored
	copyOf *block   // next physical copy with the same key
	origin *kvEvent // what told of the block first, where the host tier has to tell it again

	prev, next *block // free list; nil while held
}

// sequence is a token sequence and the blocks that a running request holds for it.
type sequence struct {
	tokens  []Token // prompt and the whole answer, known beforehand
	chain   []link  // the full blocks of tokens
	salt    string
	adapter string

	loaded int        // leading blocks that were loaded from the host tier when it was admitted
	held   [][]*block // by group and block index; nil where the group keeps no block
	stored int        // Invariant: blocks [0, stored) are stored or not kept, in every group
}

// cache is the pool.
type cache struct {
	blockTokens int
	groups      []cacheGroup
	index       map[blockKey]*block
	free        blockList // unheld stored blocks, next to be evicted first
	host        hostTier
	blank       int // blocks that hold nothing
	total       int
	resident    int // stored blocks, copies counted
	evictions   int64
	unique      bool // the trees of SGLang and TensorRT-LLM keep one copy of a page
	events      []kvEvent
	wantEvents  bool
}

// cacheGroup is what one group needs for a hit and keeps for a running request.
type cacheGroup struct {
	Group
	// reach is the number of blocks before a hit's end that the group needs; 0 means all.
	reach int
}

func newCache(cfg *Config) *cache {
	c := &cache{blockTokens: cfg.BlockTokens, index: map[blockKey]*block{}, unique: cfg.Kind != KindVLLM}
	c.total = int(cfg.CapacityTokens/int64(cfg.BlockTokens)) * len(cfg.Groups)
	c.blank = c.total
	c.free.init()
	c.host.init(cfg)
	c.wantEvents = cfg.KVEvents.Endpoint != "" || cfg.Kind == KindTRTLLM && cfg.EventBuffer > 0
	for _, g := range cfg.Groups {
		c.groups = append(c.groups, cacheGroup{Group: g, reach: reach(g, cfg.BlockTokens)})
	}
	return c
}

// reach: a sliding window of w tokens looks back w − 1 tokens; a mamba state stands for all that came before.
func reach(g Group, blockTokens int) int {
	switch g.Kind {
	case GroupSliding:
		return (g.Window - 1 + blockTokens - 1) / blockTokens
	case GroupMamba:
		return 1
	}
	return 0
}

// keepFrom is the first block that the group still needs once n tokens are computed.
func (g *cacheGroup) keepFrom(n, blockTokens int) int {
	switch g.Kind {
	case GroupSliding:
		return max(0, n-g.Window+1) / blockTokens
	case GroupMamba:
		return max(0, n/blockTokens-1)
	}
	return 0
}

// hit returns how many leading blocks of a prompt of n tokens every group can reuse. The last token is always computed:
// it gives the first token of the answer.
func (c *cache) hit(chain []link, n int) int {
	return c.prefix(chain, min((n-1)/c.blockTokens, len(chain)))
}

// prefix returns the largest number of leading blocks, at most limit, that every group can reuse.
func (c *cache) prefix(chain []link, limit int) int {
	blocks := limit
	for {
		before := blocks
		for i := range c.groups {
			blocks = c.groupHit(i, chain, blocks)
		}
		if blocks == before {
			return blocks
		}
	}
}

// groupHit is the longest hit of at most limit blocks in one group.
func (c *cache) groupHit(group int, chain []link, limit int) int {
	if c.groups[group].reach == 0 {
		n := 0
		for n < limit && c.reusable(group, chain[n]) {
			n++
		}
		return n
	}
	run := 0
	for i := limit - 1; i >= 0; i-- {
		if !c.reusable(group, chain[i]) {
			run = 0
			continue
		}
		if run++; run == c.groups[group].reach {
			return i + run
		}
	}
	return run
}

func (c *cache) find(group int, l link) *block { return c.index[blockKey{group, l.key}] }

// admit gives a request the blocks for its first n tokens and returns how many of them were cached, those that are loaded
// from the host included; it changes nothing and returns false when there are not enough blocks. read is false for
// requests that must compute everything.
func (c *cache) admit(s *sequence, n int, read bool) (hit int, ok bool) {
	if read {
		hit = c.hit(s.chain, n)
	}
	if !c.fits(s, n, hit) {
		return 0, false
	}
	s.held = make([][]*block, len(c.groups))
	s.stored = c.onGPU(s.chain, n, hit)
	s.loaded = hit - s.stored
	for g := range c.groups {
		c.pin(s, g, n, hit)
	}
	for g := range c.groups {
		for i := c.groups[g].keepFrom(n, c.blockTokens); i < c.blocksFor(n); i++ {
			if s.held[g][i] == nil {
				s.held[g][i] = c.allocate()
			}
		}
	}
	return hit, true
}

// fits counts without touching: what is needed, less what can be had, less hits that pinning takes from the free list.
func (c *cache) fits(s *sequence, n, hit int) bool {
	need := 0
	for g := range c.groups {
		keep := c.groups[g].keepFrom(n, c.blockTokens)
		need += c.blocksFor(n) - max(hit, keep)
		for i := keep; i < hit; i++ {
			if b := c.find(g, s.chain[i]); b == nil || b.refs == 0 {
				need++
			}
		}
	}
	return need <= c.available()
}

// pin takes one group's blocks that are cached on the GPU. Those that were only needed to find the hit count as used, and
// are let go.
func (c *cache) pin(s *sequence, g, n, hit int) {
	s.held[g] = make([]*block, c.blocksFor(n))
	grp := &c.groups[g]
	keep := grp.keepFrom(n, c.blockTokens)
	if grp.reach > 0 {
		for i := max(0, hit-grp.reach); i < min(keep, hit); i++ {
			if b := c.find(g, s.chain[i]); b != nil && b.refs == 0 {
				c.free.remove(b)
				c.free.push(b)
			}
		}
	}
	for i := keep; i < hit; i++ {
		b := c.find(g, s.chain[i])
		if b == nil {
			c.host.touch(blockKey{g, s.chain[i].key})
			continue
		}
		if b.refs == 0 {
			c.free.remove(b)
		}
		b.refs++
		s.held[g][i] = b
	}
}

func (c *cache) blocksFor(n int) int { return (n + c.blockTokens - 1) / c.blockTokens }
func (c *cache) available() int      { return c.blank + c.free.len }

// used is the number of blocks held by running requests.
func (c *cache) used() int { return c.total - c.available() }

// allocate takes a blank block, or evicts. The caller has checked available.
func (c *cache) allocate() *block {
	if c.blank > 0 {
		c.blank--
		return &block{refs: 1}
	}
	b := c.free.first()
	c.free.remove(b)
	c.unstore(b)
	c.evictions++
	c.offload(b)
	c.emitRemoved(b)
	b.refs, b.stored, b.origin = 1, false, nil
	return b
}

// commit makes the full blocks of the first n tokens, now computed or loaded, findable.
func (c *cache) commit(s *sequence, n int) {
	full := min(n/c.blockTokens, len(s.chain))
	if full <= s.stored {
		return
	}
	for g := range c.groups {
		kept := make([]link, 0, full-s.stored)
		for i := s.stored; i < full; i++ {
			if b := s.held[g][i]; b != nil && !b.stored && c.store(b, g, s.chain[i]) {
				kept = append(kept, s.chain[i])
				c.remember(b, s, i)
			}
		}
		c.emitStored(s, g, full, kept)
	}
	s.stored = full
}

func (c *cache) store(b *block, g int, l link) bool {
	k := blockKey{g, l.key}
	first := c.index[k]
	if first != nil && c.unique {
		return false
	}
	b.blockKey, b.wire, b.stored = k, l.wire, true
	c.resident++
	if first == nil {
		c.index[k] = b
		return true
	}
	for first.copyOf != nil {
		first = first.copyOf
	}
	first.copyOf = b // the oldest copy stays the one that is found
	return true
}

func (c *cache) unstore(b *block) {
	c.resident--
	first := c.index[b.blockKey]
	switch {
	case first != b:
		for first.copyOf != b {
			first = first.copyOf
		}
		first.copyOf = b.copyOf
	case b.copyOf == nil:
		delete(c.index, b.blockKey)
	default:
		c.index[b.blockKey] = b.copyOf
	}
	b.copyOf = nil
}

// extend gives a running request room for n tokens and lets go what its windows have left behind. It returns false when
// there is no block.
func (c *cache) extend(s *sequence, n int) bool {
	need := 0
	for g := range c.groups {
		last := min(c.groups[g].keepFrom(n, c.blockTokens), len(s.held[g]))
		for i := last - 1; i >= 0 && s.held[g][i] != nil; i-- {
			c.drop(s, g, i)
		}
		need += c.blocksFor(n) - len(s.held[g])
	}
	if need > c.available() {
		return false
	}
	for g := range c.groups {
		for len(s.held[g]) < c.blocksFor(n) {
			s.held[g] = append(s.held[g], c.allocate())
		}
	}
	return true
}

// release lets go all blocks of a request, tail first, so that eviction takes the leaves of a shared prefix first.
func (c *cache) release(s *sequence) {
	for g := range s.held {
		for i := range slices.Backward(s.held[g]) {
			c.drop(s, g, i)
		}
	}
	s.held, s.stored = nil, 0
}

func (c *cache) drop(s *sequence, g, i int) {
	b := s.held[g][i]
	if b == nil {
		return
	}
	s.held[g][i] = nil
	if b.refs--; b.refs > 0 {
		return
	}
	if b.stored {
		c.free.push(b)
	} else {
		c.blank++
	}
}

// clear forgets everything, unless a running request holds blocks; the host tier only when host is set.
func (c *cache) clear(host bool) bool {
	if c.used() > 0 {
		return false
	}
	if host {
		c.host.clear()
	}
	c.index, c.blank, c.resident = map[blockKey]*block{}, c.total, 0
	c.free.init()
	c.emitCleared()
	return true
}

// blockList is a doubly linked list in the order of push.
type blockList struct {
	root block
	len  int
}

func (l *blockList) init() {
	l.root.prev, l.root.next = &l.root, &l.root
	l.len = 0
}

func (l *blockList) first() *block { return l.root.next }

func (l *blockList) push(b *block) {
	last := l.root.prev
	b.prev, b.next = last, &l.root
	last.next, l.root.prev = b, b
	l.len++
}

func (l *blockList) remove(b *block) {
	b.prev.next, b.next.prev = b.next, b.prev
	b.prev, b.next = nil, nil
	l.len--
}
