package simengine

import "slices"

// dumbCache is the twin of cache: a list of blocks with a time of release each, searched from end to end.
type dumbCache struct {
	blockTokens int
	groups      []Group
	unique      bool
	blocks      []*dumbBlock
	clock       int
	removed     []blockKey
	host        []blockKey // least recently used first
	hostSize    int
	hostRemoved []blockKey
}

type dumbBlock struct {
	key    blockKey
	stored bool
	age    int // when it was stored: the oldest copy is found first
	refs   int
	freed  int
}

type dumbSequence struct {
	chain []link
	held  map[blockKey]*dumbBlock // by group and index
	done  int
}

func newDumbCache(total, blockTokens int, groups []Group, unique bool) *dumbCache {
	c := &dumbCache{blockTokens: blockTokens, groups: groups, unique: unique}
	for range total {
		c.blocks = append(c.blocks, &dumbBlock{})
	}
	return c
}

func (c *dumbCache) find(group int, l link) *dumbBlock {
	var found []*dumbBlock
	for _, b := range c.blocks {
		if b.stored && b.key == (blockKey{group, l.key}) {
			found = append(found, b)
		}
	}
	if found == nil {
		return nil
	}
	return slices.MinFunc(found, func(a, b *dumbBlock) int { return a.age - b.age })
}

func (c *dumbCache) reusable(group int, l link) bool {
	return c.find(group, l) != nil || slices.Contains(c.host, blockKey{group, l.key})
}

// offload moves a block to the end of the host tier, which it may have to enter.
func (c *dumbCache) offload(k blockKey, enter bool) {
	i := slices.Index(c.host, k)
	switch {
	case c.hostSize == 0 || i < 0 && !enter:
		return
	case i >= 0:
		c.host = slices.Delete(c.host, i, i+1)
	case len(c.host) == c.hostSize:
		c.hostRemoved = append(c.hostRemoved, c.host[0])
		c.host = c.host[1:]
	}
	c.host = append(c.host, k)
}

// needed says whether group g needs block i for what follows n tokens.
func (c *dumbCache) needed(g, i, n int) bool {
	end := (i + 1) * c.blockTokens // the block's last token is end − 1
	switch c.groups[g].Kind {
	case GroupSliding:
		return end-1 > n-c.groups[g].Window // seen by token n
	case GroupMamba:
		return i >= n/c.blockTokens-1
	}
	return true
}

// usable tries hits from the longest down.
func (c *dumbCache) usable(chain []link, n int) int {
	for hit := min((n-1)/c.blockTokens, len(chain)); hit > 0; hit-- {
		ok := true
		for g := range c.groups {
			for i := range hit {
				if c.needed(g, i, hit*c.blockTokens) && !c.reusable(g, chain[i]) {
					ok = false
				}
			}
		}
		if ok {
			return hit
		}
	}
	return 0
}

func (c *dumbCache) tick() int { c.clock++; return c.clock }

func (c *dumbCache) admit(s *dumbSequence, n int) (int, bool) {
	hit := c.usable(s.chain, n)
	pins, fresh, free := 0, 0, 0
	for g := range c.groups {
		for i := range (n + c.blockTokens - 1) / c.blockTokens {
			switch {
			case !c.needed(g, i, n):
			case i >= hit:
				fresh++
			case c.find(g, s.chain[i]) == nil || c.find(g, s.chain[i]).refs == 0:
				pins++
			}
		}
	}
	for _, b := range c.blocks {
		if b.refs == 0 {
			free++
		}
	}
	if pins+fresh > free {
		return 0, false
	}
	s.held, s.done = map[blockKey]*dumbBlock{}, hit
	for g := range c.groups {
		for i := range hit {
			if b := c.find(g, s.chain[i]); b != nil && c.needed(g, i, hit*c.blockTokens) && !c.needed(g, i, n) && b.refs == 0 {
				b.freed = c.tick()
			}
		}
		for i := range hit {
			if !c.needed(g, i, n) {
				continue
			}
			if b := c.find(g, s.chain[i]); b != nil {
				b.refs++
				s.held[blockKey{g, uint64(i)}] = b
				continue
			}
			s.done = min(s.done, i)
			c.offload(blockKey{g, s.chain[i].key}, false)
		}
	}
	for g := range c.groups {
		for i := range (n + c.blockTokens - 1) / c.blockTokens {
			if k := (blockKey{g, uint64(i)}); c.needed(g, i, n) && s.held[k] == nil {
				s.held[k] = c.take()
			}
		}
	}
	return hit, true
}

// take prefers a block that holds nothing, then the one released longest ago.
func (c *dumbCache) take() *dumbBlock {
	var best *dumbBlock
	for _, b := range c.blocks {
		switch {
		case b.refs > 0:
		case best == nil, best.stored && !b.stored, best.stored && b.stored && b.freed < best.freed:
			best = b
		}
	}
	was := *best
	*best = dumbBlock{refs: 1}
	if was.stored {
		c.removed = append(c.removed, was.key)
		if c.find(was.key.group, link{key: was.key.key}) == nil {
			c.offload(was.key, true)
		}
	}
	return best
}

func (c *dumbCache) commit(s *dumbSequence, n int) {
	full := min(n/c.blockTokens, len(s.chain))
	for g := range c.groups {
		for i := s.done; i < full; i++ {
			b := s.held[blockKey{g, uint64(i)}]
			if b != nil && !b.stored && (!c.unique || c.find(g, s.chain[i]) == nil) {
				b.key, b.stored, b.age = blockKey{g, s.chain[i].key}, true, c.tick()
			}
		}
	}
	s.done = max(s.done, full)
}

func (c *dumbCache) extend(s *dumbSequence, n int) bool {
	blocks := (n + c.blockTokens - 1) / c.blockTokens
	need, free := 0, 0
	for g := range c.groups {
		for i := blocks - 1; i >= 0; i-- {
			if !c.needed(g, i, n) {
				c.drop(s, blockKey{g, uint64(i)})
			} else if s.held[blockKey{g, uint64(i)}] == nil {
				need++
			}
		}
	}
	for _, b := range c.blocks {
		if b.refs == 0 {
			free++
		}
	}
	if need > free {
		return false
	}
	for g := range c.groups {
		for i := range blocks {
			if k := (blockKey{g, uint64(i)}); c.needed(g, i, n) && s.held[k] == nil {
				s.held[k] = c.take()
			}
		}
	}
	return true
}

func (c *dumbCache) drop(s *dumbSequence, k blockKey) {
	b := s.held[k]
	delete(s.held, k)
	if b == nil {
		return
	}
	if b.refs--; b.refs == 0 {
		b.freed = c.tick()
	}
}

func (c *dumbCache) release(s *dumbSequence, most int) {
	for g := range c.groups {
		for i := most; i >= 0; i-- {
			c.drop(s, blockKey{g, uint64(i)})
		}
	}
}

func (c *dumbCache) resident() int {
	n := 0
	for _, b := range c.blocks {
		if b.stored {
			n++
		}
	}
	return n
}
