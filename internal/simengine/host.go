package simengine

// hostTier keeps blocks that the GPU gave up in CPU memory, the least recently used one goes first. A block is copied
// when the GPU is about to reuse it, as vLLM's lazy offloading and SGLang's write-back do it, and stays when it is loaded
// back. There is one copy of a block. The cache's lock covers it.
type hostTier struct {
	capacity int // blocks; 0: there is no such tier
	index    map[blockKey]*block
	order    blockList // least recently used first
}

func (h *hostTier) init(cfg *Config) {
	h.capacity = int(cfg.OffloadTokens/int64(cfg.BlockTokens)) * len(cfg.Groups)
	h.clear()
}

func (h *hostTier) clear() {
	h.index = map[blockKey]*block{}
	h.order.init()
}

// touch makes a block the most recently used one and reports whether it is there.
func (h *hostTier) touch(k blockKey) bool {
	b := h.index[k]
	if b == nil {
		return false
	}
	h.order.remove(b)
	h.order.push(b)
	return true
}

// offload copies a block of which the GPU has no other copy to the host. Its event comes before that of the block's
// removal from the GPU, which can only reuse it when the copy is done.
func (c *cache) offload(b *block) {
	if c.host.capacity == 0 || c.index[b.blockKey] != nil || c.host.touch(b.blockKey) {
		return
	}
	if c.host.order.len == c.host.capacity {
		old := c.host.order.first()
		c.host.order.remove(old)
		delete(c.host.index, old.blockKey)
		c.emitHostRemoved(old)
	}
	copied := &block{blockKey: b.blockKey, wire: b.wire, origin: b.origin}
	c.host.index[b.blockKey] = copied
	c.host.order.push(copied)
	c.emitHostStored(copied)
}

// remember keeps with a block what SGLang tells of it again when it is copied to the host.
func (c *cache) remember(b *block, s *sequence, i int) {
	if c.wantEvents && c.unique && c.host.capacity > 0 {
		b.origin = new(c.storedEvent(s, b.group, i, i+1))
		b.origin.hashes = []uint64{b.wire}
	}
}

// emitHostStored tells of a copy in the host tier: SGLang in full, vLLM with nothing but the hash.
func (c *cache) emitHostStored(b *block) {
	if !c.wantEvents {
		return
	}
	e := kvEvent{kind: eventStored, group: b.group, hashes: []uint64{b.wire}}
	if b.origin != nil {
		e = *b.origin
	}
	e.host = true
	c.events = append(c.events, e)
}

func (c *cache) emitHostRemoved(b *block) {
	if c.wantEvents {
		c.events = append(c.events, kvEvent{kind: eventRemoved, group: b.group, hashes: []uint64{b.wire}, host: true})
	}
}

// reusable reports whether a block is on the GPU or can be loaded to it.
func (c *cache) reusable(group int, l link) bool {
	return c.find(group, l) != nil || c.host.index[blockKey{group, l.key}] != nil
}

// onGPU returns how many of the first hit blocks need no loading.
func (c *cache) onGPU(chain []link, n, hit int) int {
	first := hit
	for g := range c.groups {
		for i := c.groups[g].keepFrom(n, c.blockTokens); i < first; i++ {
			if c.find(g, chain[i]) == nil {
				first = i
			}
		}
	}
	return first
}
