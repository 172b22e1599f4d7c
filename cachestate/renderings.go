package cachestate

import "math"

// rendering is how the engine last rendered the prompt up to one key.
type rendering struct {
	key    Key
	node   int32 // last block that lies before the boundary; the root when none does
	tokens int32 // position of the boundary
	exact  bool  // it is known: a prompt ended there. Else it was reckoned between two known ones
	safe   int32 // shortest common prefix seen of two prompts through the key, in tokens
	relax  int32 // the shortest of the comparisons since then
	passed uint8 // how many those were
	turn   Turn  // of the prompt that brought it
	fickle bool  // no later prompt has shown yet that the rendering stays: see Prompt.Sure
	shown  uint8 // tiers in which the key counts as resident

	twin    Key  // of the same boundary in the prompt's other form, which it came in too; else 0
	retired bool // prompts with the key came in the other form alone since then

	output int32 // tokens of the answer that followed, where the key ends a prompt; else 0
	before int32 // the key before it in its prompt, or noRendering
	after  int32 // shown renderings that have this one before them

	nextHere, prevHere int32 // renderings at the same node
	newer, older       int32 // in the order of use
}

const (
	noRendering = -1
	// unlimited is a safe length when no two prompts through a key have differed before it.
	unlimited = math.MaxInt32
	// relaxAfter is how many comparisons in a row must go better before a safe length is given up: a date in the prompt
	// changes once a day.
	relaxAfter = 4
)

// renderings maps keys to the blocks that the engine rendered them to. Beyond its bound, the longest unused go.
type renderings struct {
	list    []rendering
	free    []int32
	keys    map[Key]int32
	maxKeys int
	changed func(t Tier, k Key, resident bool)
	stands  func(*rendering) bool // Blocks.stands

	newest, oldest int32
	twins          int // renderings that have one
	habits         habits
	density        density
}

func newRenderings(maxKeys int, changed func(t Tier, k Key, resident bool)) renderings {
	r := renderings{
		keys: map[Key]int32{}, changed: changed, newest: noRendering, oldest: noRendering,
		habits: newHabits(), density: newDensity(),
	}
	r.setMaxKeys(maxKeys)
	return r
}

// setMaxKeys bounds the keys, at more than the longest prompt has.
func (r *renderings) setMaxKeys(n int) { r.maxKeys = max(n, 4*MaxKeys) }

// get returns the rendering of a key, nil when there is none. It is valid until the next add.
func (r *renderings) get(k Key) *rendering {
	if i, ok := r.keys[k]; ok {
		return &r.list[i]
	}
	return nil
}

// add makes a rendering for a key that has none, at the root.
func (r *renderings) add(t *blockTree, k Key) int32 {
	for len(r.keys) >= r.maxKeys && r.dropOldest(t) {
	}
	i := int32(len(r.list))
	if last := len(r.free) - 1; last >= 0 {
		i, r.free = r.free[last], r.free[:last]
	} else {
		r.list = append(r.list, rendering{})
	}
	r.list[i] = rendering{
		key: k, safe: unlimited, relax: unlimited, before: noRendering,
		nextHere: noRendering, prevHere: noRendering, newer: noRendering, older: noRendering,
	}
	r.keys[k] = i
	r.place(t, i, rootNode)
	r.use(i)
	return i
}

// dropOldest forgets the rendering that was not used for longest. It returns false when there is none.
func (r *renderings) dropOldest(t *blockTree) bool {
	i := r.oldest
	if i == noRendering {
		return false
	}
	r.show(i, 0)
	e := &r.list[i]
	r.unlink(i)
	r.leave(t, i)
	r.setTwin(e, 0)
	delete(r.keys, e.key)
	node := e.node
	for j := range r.list { // keys behind it are older still, so there is seldom one
		if e.after == 0 {
			break
		}
		if r.list[j].before == i {
			r.list[j].before = noRendering
		}
	}
	*e = rendering{before: noRendering}
	r.free = append(r.free, i)
	t.prune(node)
	return true
}

// use makes a rendering the newest.
func (r *renderings) use(i int32) {
	r.unlink(i)
	e := &r.list[i]
	e.older, e.newer = r.newest, noRendering
	if r.newest != noRendering {
		r.list[r.newest].newer = i
	} else {
		r.oldest = i
	}
	r.newest = i
}

func (r *renderings) unlink(i int32) {
	e := &r.list[i]
	if e.newer != noRendering {
		r.list[e.newer].older = e.older
	} else if r.newest == i {
		r.newest = e.older
	}
	if e.older != noRendering {
		r.list[e.older].newer = e.newer
	} else if r.oldest == i {
		r.oldest = e.newer
	}
	e.newer, e.older = noRendering, noRendering
}

// place notes that a rendering ends at a node.
func (r *renderings) place(t *blockTree, i, node int32) {
	e, n := &r.list[i], &t.nodes[node]
	e.node, e.prevHere, e.nextHere = node, noRendering, n.renderings
	if n.renderings != noRendering {
		r.list[n.renderings].prevHere = i
	}
	n.renderings = i
}

// leave undoes place. The node is not pruned.
func (r *renderings) leave(t *blockTree, i int32) {
	e := &r.list[i]
	if e.nextHere != noRendering {
		r.list[e.nextHere].prevHere = e.prevHere
	}
	if e.prevHere != noRendering {
		r.list[e.prevHere].nextHere = e.nextHere
	} else {
		t.nodes[e.node].renderings = e.nextHere
	}
}

// blockChanged looks at the keys that end at a node again.
func (r *renderings) blockChanged(b *Blocks, node int32) {
	if node == rootNode {
		return
	}
	for i := b.tree.nodes[node].renderings; i != noRendering; i = r.list[i].nextHere {
		r.refresh(b, i)
	}
}

// divide reports whether several resident keys follow one that ends at a node.
func (r *renderings) divide(t *blockTree, node int32) bool {
	i := t.nodes[node].renderings
	for i != noRendering && r.list[i].after < fork {
		i = r.list[i].nextHere
	}
	return i != noRendering
}

// refreshAll looks at every key again.
func (r *renderings) refreshAll(b *Blocks) {
	for _, i := range r.keys {
		r.refresh(b, i)
	}
}

// refresh decides in which tiers a key counts as resident.
func (r *renderings) refresh(b *Blocks, i int32) {
	e := &r.list[i]
	switch {
	case b.stands(e):
		r.show(i, b.tiersOf(e))
	case e.after == 0:
		r.show(i, 0)
	case e.shown == 0:
		r.show(i, 1<<TierGPU)
	}
}

// stands reports whether a key counts for itself. One that lies in no block, or whose rendering cannot be relied on, is
// there for the sake of those behind it: a walk over keys ends at the first that is missing.
func (b *Blocks) stands(e *rendering) bool { return e.node != rootNode && !e.retired && b.trusts(e) }

// tiersOf returns the tiers in which a rendering's key is resident.
func (b *Blocks) tiersOf(e *rendering) uint8 {
	levels, tiers := b.resident(e.node), uint8(0)
	for t := range numTiers {
		if levels&b.layout.tiers[t] != 0 {
			tiers |= 1 << t
		}
	}
	return tiers
}

// trusts reports whether a prompt with the key can be expected to be rendered as the last one was.
func (b *Blocks) trusts(e *rendering) bool {
	return b.safeEnough(e) && (!e.fickle || b.renderings.habits.stays(e.turn))
}

// safeEnough reports whether the prompts through a key have been rendered alike.
func (b *Blocks) safeEnough(e *rendering) bool { return e.safe >= e.tokens-b.slack(e) }

// slack is how far the reckoned position of a key may be off, in tokens: only a shortfall beyond it says that renderings
// differ.
func (b *Blocks) slack(e *rendering) int32 { return int32(2*b.block) + e.tokens/16 }

// show makes the tiers of a key known, and those of the keys before it that are there for its sake.
func (r *renderings) show(i int32, tiers uint8) {
	for {
		e := &r.list[i]
		was := e.shown
		if was == tiers {
			return
		}
		e.shown = tiers
		for t := range numTiers {
			if (was^tiers)>>t&1 == 1 {
				r.changed(t, e.key, tiers>>t&1 == 1)
			}
		}
		i = e.before
		if i == noRendering {
			return
		}
		above := &r.list[i]
		if was == 0 {
			above.after++
		} else if tiers == 0 {
			above.after--
		}
		if r.stands(above) {
			return
		}
		if tiers |= above.shown; above.after == 0 {
			tiers = 0 // else a tier too many costs nothing: the key stands for no token
		}
	}
}
