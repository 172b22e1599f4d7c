package cachestate

import "maps"

// Blocks is the residency of an engine that tells its KV events: which blocks it holds, and which prompt keys lie in
// them. It is pure and for one goroutine or under one lock.
//
// Events say which blocks come and go, as a tree of token sequences. Lessons say how the engine rendered a prompt, which
// maps the prompt's keys to that tree. A key is resident while all blocks before its boundary are.
type Blocks struct {
	tree     blockTree
	layout   layout
	block    int                 // tokens in a block of the tree; 0 until known
	copies   map[copyOf]int      // physical copies beyond the first
	pending  map[rankHash]uint64 // places of blocks that were named by a hash which is not known yet
	stack    []int32
	maxNodes int

	showsExtras bool // the last stored event's form does

	renderings renderings
	stats      BlockStats
}

type copyOf struct {
	node  int32
	place uint8
}

type rankHash struct {
	rank uint8
	hash uint64
}

// BlockStats counts what events brought. All but Nodes, Detached and Unverified only grow.
type BlockStats struct {
	Stored, Removed, Cleared uint64 // blocks, and events that cleared a rank
	Unknown                  uint64 // blocks named by a hash that is not known
	Odd                      uint64 // events whose tokens and hashes do not fit together, or that there is no room for
	Lessons                  uint64
	Nodes                    int
	Detached                 int  // blocks whose parent is not known
	Unverified               bool // a cache group is of an unknown kind: what a hit needs is not known
}

const (
	// maxPending bounds the hashes that wait for their block.
	maxPending = 1 << 14
	// overfull is how many times maxBlocks may be held before stored blocks are not taken in: a cache can be larger than
	// was thought, a stream without removals has no end. A block that is left out costs a cache miss.
	overfull = 2
)

// NewBlocks returns the index of an empty cache. Blocks have so many tokens; 0 takes the size from the first event.
// maxBlocks bounds memory, at about 120 bytes a block (twice that while the engine holds more), and maxKeys the keys that
// are remembered. changed is told of every key that becomes resident in a tier or ceases to be, at the moment it does; it
// must not call the Blocks. A key that is resident in a tier is so in the slower tiers too that the engine uses: see Tier.
func NewBlocks(blockTokens, maxBlocks, maxKeys int, changed func(t Tier, k Key, resident bool)) *Blocks {
	b := &Blocks{
		tree: newBlockTree(), block: blockTokens, copies: map[copyOf]int{}, pending: map[rankHash]uint64{},
		maxNodes: max(maxBlocks, 1), renderings: newRenderings(maxKeys, changed),
	}
	b.renderings.stands = b.stands
	return b
}

// Stats returns what events brought so far.
func (b *Blocks) Stats() BlockStats {
	s := b.stats
	s.Nodes, s.Detached, s.Unverified = b.tree.size(), b.tree.detached, b.layout.other
	return s
}

// BlockTokens returns the tokens in a block, 0 when that is not known yet.
func (b *Blocks) BlockTokens() int { return b.block }

// SetMaxKeys says how many keys renderings are remembered of. What is beyond goes with the next lessons.
func (b *Blocks) SetMaxKeys(n int) { b.renderings.setMaxKeys(n) }

// Apply takes one event of a rank. Nothing of it is kept.
func (b *Blocks) Apply(rank int, e *BlockEvent) {
	switch e.Kind {
	case BlocksStored:
		b.stored(rank, e)
	case BlocksRemoved:
		b.removed(rank, e)
	case BlocksCleared:
		b.stats.Cleared++
		b.empty(rank)
	}
}

// Forget says that what a rank holds is not known any more. Its hashes keep their meaning, so that what it says from now
// on is understood.
func (b *Blocks) Forget(rank int) { b.empty(rank) }

// Restart says that a rank's process is gone with its cache. How prompts are rendered is still known.
func (b *Blocks) Restart(rank int) {
	b.empty(rank)
	b.tree.forgetRank(rank)
}

// RestartAll says so of every rank.
func (b *Blocks) RestartAll() {
	for rank := range maxRanks {
		b.Restart(rank)
	}
}

func (b *Blocks) stored(rank int, e *BlockEvent) {
	if rank < 0 || rank >= maxRanks || e.Group < 0 || e.Group >= maxPlaces {
		b.stats.Odd++
		return
	}
	if len(e.Tokens) == 0 || e.BlockTokens <= 0 {
		b.storedByHash(rank, e)
		return
	}
	if b.tree.size() >= overfull*b.maxNodes {
		b.stats.Odd++
		return
	}
	if b.block == 0 {
		b.block = e.BlockTokens
	}
	if e.BlockTokens%b.block != 0 { // part of a block: it is stored again when it is whole
		b.stats.Odd++
		return
	}
	b.showsExtras = e.ShowsExtras
	b.describe(e)
	if len(e.Tokens) != len(e.Hashes)*e.BlockTokens { // a sparse group leaves blocks out
		b.storedByHash(rank, e)
		return
	}
	b.storedByTokens(rank, e)
}

// describe takes what an event says of its group.
func (b *Blocks) describe(e *BlockEvent) {
	g := group{known: true, kind: e.GroupKind, blocks: e.BlockTokens / b.block}
	if e.GroupKind == GroupSliding {
		// A hit of length L needs the window-1 tokens before L.
		g.window = max((e.Window-1+b.block-1)/b.block, 1)
	}
	if b.layout.addGroup(e.Group, g) {
		b.relevel()
	}
}

// bit returns the bit of a place, which it makes when need be.
func (b *Blocks) bit(rank int, t Tier, group int) (int, bool) {
	p := place{rank, t, group}
	if bit, ok := b.layout.place(p); ok {
		return bit, true
	}
	if !b.layout.addPlace(p) {
		return 0, false
	}
	b.relevel()
	return b.layout.place(p)
}

func (b *Blocks) storedByTokens(rank int, e *BlockEvent) {
	bit, ok := b.bit(rank, e.Tier, e.Group)
	if !ok {
		b.stats.Odd++
		return
	}
	at := int32(rootNode)
	if e.HasParent {
		at = b.tree.lookup(rank, e.Parent)
	}
	if e.GroupKind == GroupFull && e.Tier == TierGPU && at > rootNode {
		b.imply(at, bit)
	}
	parts := e.BlockTokens / b.block
	for i, hash := range e.Hashes {
		extra := uint64(0)
		if i < len(e.Extras) {
			extra = e.Extras[i]
		}
		for part := range parts {
			from := (i*parts + part) * b.block
			at = b.step(at, e.Tokens[from:from+b.block], extra)
			if e.GroupKind != GroupMamba || part == parts-1 {
				b.put(at, bit)
			}
		}
		b.stats.Stored++
		b.tree.name(rank, hash, at)
		b.settle(rank, hash, at)
	}
	b.bound()
}

// step returns the child of a node for the next block, which it makes when need be. Below noNode it is detached.
func (b *Blocks) step(at int32, tokens []uint32, extra uint64) int32 {
	token := b.tree.tokenHash(tokens, extra)
	if n := b.tree.find(at, token); n != noNode {
		return n
	}
	n := b.tree.add(at, token)
	b.relink(n)
	return n
}

// imply marks a block and those before it as held: an engine computes a block for a request that holds all before it.
// After a gap, or for who came late, events of what was there before are missing.
func (b *Blocks) imply(n int32, bit int) {
	nodes, top := b.tree.nodes, int32(noNode)
	for at := n; at > rootNode && nodes[at].linked&b.layout.levelsOf[bit] == 0; at = nodes[at].parent {
		nodes[at].have |= 1 << bit
		top = at
	}
	if top != noNode {
		b.moved(top, bit)
	}
}

// storedByHash takes an event that names blocks by their hashes alone: offload, and groups that leave blocks out.
func (b *Blocks) storedByHash(rank int, e *BlockEvent) {
	bit, ok := b.bit(rank, e.Tier, e.Group)
	if !ok {
		b.stats.Odd++
		return
	}
	for _, hash := range e.Hashes {
		b.stats.Stored++
		if n := b.tree.lookup(rank, hash); n != noNode {
			b.put(n, bit)
			continue
		}
		b.stats.Unknown++
		if len(b.pending) < maxPending {
			b.pending[rankHash{uint8(rank), hash}] |= 1 << bit
		}
	}
}

// settle gives a block that has become known the places that named it before.
func (b *Blocks) settle(rank int, hash uint64, n int32) {
	if len(b.pending) == 0 {
		return
	}
	k := rankHash{uint8(rank), hash}
	places := b.pending[k]
	delete(b.pending, k)
	for bit := 0; places>>bit != 0; bit++ {
		if places>>bit&1 == 1 {
			b.put(n, bit)
		}
	}
}

func (b *Blocks) removed(rank int, e *BlockEvent) {
	bit, ok := b.layout.place(place{rank, e.Tier, e.Group})
	if !ok {
		b.stats.Unknown += uint64(len(e.Hashes))
		return
	}
	parts := 1
	if e.Group < len(b.layout.groups) && b.layout.groups[e.Group].kind != GroupMamba {
		parts = b.layout.groups[e.Group].blocks
	}
	for _, hash := range e.Hashes {
		b.stats.Removed++
		n := b.tree.lookup(rank, hash)
		if n == noNode {
			b.stats.Unknown++
			b.unsettle(rank, hash, bit)
			continue
		}
		for range parts {
			above := b.tree.nodes[n].parent
			b.take(n, bit)
			if n = above; n <= rootNode {
				break
			}
		}
	}
}

func (b *Blocks) unsettle(rank int, hash uint64, bit int) {
	k := rankHash{uint8(rank), hash}
	if places, ok := b.pending[k]; ok {
		if places &^= 1 << bit; places == 0 {
			delete(b.pending, k)
		} else {
			b.pending[k] = places
		}
	}
}

// put counts one physical copy of a block.
func (b *Blocks) put(n int32, bit int) {
	node := &b.tree.nodes[n]
	if node.have>>bit&1 == 1 {
		b.copies[copyOf{n, uint8(bit)}]++
		return
	}
	node.have |= 1 << bit
	b.moved(n, bit)
}

// take undoes one put.
func (b *Blocks) take(n int32, bit int) {
	node := &b.tree.nodes[n]
	if node.have>>bit&1 == 0 {
		return
	}
	if len(b.copies) > 0 {
		k := copyOf{n, uint8(bit)}
		if c := b.copies[k]; c > 0 {
			if c == 1 {
				delete(b.copies, k)
			} else {
				b.copies[k] = c - 1
			}
			return
		}
	}
	node.have &^= 1 << bit
	b.moved(n, bit)
	b.tree.prune(n)
}

// empty takes all blocks of a rank away, those too that were named by a hash which is not known yet.
func (b *Blocks) empty(rank int) {
	maps.DeleteFunc(b.pending, func(k rankHash, _ uint64) bool { return int(k.rank) == rank })
	gone := b.layout.of(rank)
	for k := range b.copies {
		if gone>>k.place&1 == 1 {
			delete(b.copies, k)
		}
	}
	for n := range b.tree.nodes {
		b.tree.nodes[n].have &^= gone
	}
	b.relevel()
	for n := len(b.tree.nodes) - 1; n > rootNode; n-- {
		if b.tree.nodes[n].depth > 0 {
			b.tree.prune(int32(n))
		}
	}
}

// bound forgets how prompts were rendered, the longest unused first, until the tree is within its bound. What the engine
// holds cannot be forgotten: a cache beyond the bound stays, up to overfull times that, and keys of it are dropped.
func (b *Blocks) bound() {
	for b.tree.size() > b.maxNodes && b.renderings.dropOldest(&b.tree) {
	}
}
