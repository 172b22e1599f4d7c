package cachestate

import "slices"

// moved brings the levels up to date after a block came to a place or left it.
func (b *Blocks) moved(n int32, bit int) {
	changed := b.relink(n)
	if len(b.layout.sparse) == 0 {
		return
	}
	if len(changed) == 0 && slices.Contains(b.layout.sparse, b.layout.places[bit].group) {
		changed = append(changed, n)
	}
	b.rehit(changed)
}

// relink computes which levels hold a block and all before it, and the same for what lies below as far as it changes.
// It returns the changed nodes, each after its parent; they are valid until the next call.
func (b *Blocks) relink(n int32) []int32 {
	b.stack = append(b.stack[:0], n)
	for i := 0; i < len(b.stack); i++ {
		n := b.stack[i]
		node := &b.tree.nodes[n]
		linked := uint32(0)
		if node.parent != noNode {
			linked = b.tree.nodes[node.parent].linked & b.layout.holds(node.have)
		}
		if linked == node.linked {
			b.stack[i] = noNode
			continue
		}
		node.linked = linked
		for c := node.child; c != noNode; c = b.tree.nodes[c].next {
			b.stack = append(b.stack, c)
		}
		if len(b.layout.sparse) == 0 {
			b.renderings.blockChanged(b, n)
		}
	}
	b.stack = slices.DeleteFunc(b.stack, func(n int32) bool { return n == noNode })
	return b.stack
}

// rehit brings through up to date after the given nodes changed, which stand behind their parents. With sliding windows
// a block matters to the hits that end in its window too.
func (b *Blocks) rehit(changed []int32) {
	if len(changed) == 0 {
		return
	}
	reach := int32(1)
	for _, g := range b.layout.sparse {
		reach = max(reach, int32(b.layout.groups[g].window))
	}
	end := b.tree.nodes[changed[0]].depth + reach
	below := changed[:1:1]
	for i := 0; i < len(below); i++ {
		for c := b.tree.nodes[below[i]].child; c != noNode; c = b.tree.nodes[c].next {
			if b.tree.nodes[c].depth < end {
				below = append(below, c)
			}
		}
	}
	for _, n := range changed {
		if b.tree.nodes[n].depth >= end {
			below = append(below, n)
		}
	}
	for _, n := range slices.Backward(below) {
		b.rethrough(n)
	}
}

// rethrough computes through of a node and, as far as it changes, of those above.
func (b *Blocks) rethrough(n int32) {
	for n > rootNode {
		node := &b.tree.nodes[n]
		through := b.valid(n)
		for c := node.child; c != noNode && through != node.linked; c = b.tree.nodes[c].next {
			through |= b.tree.nodes[c].through
		}
		if through == node.through {
			return
		}
		node.through = through
		b.renderings.blockChanged(b, n)
		n = node.parent
	}
}

// valid returns the levels in which a hit can end at a node.
func (b *Blocks) valid(n int32) uint32 {
	set := b.tree.nodes[n].linked
	for i := range b.layout.levels {
		for j, g := range b.layout.sparse {
			if set>>i&1 == 1 && !b.covers(n, b.layout.levels[i].rare[j], &b.layout.groups[g]) {
				set &^= 1 << i
			}
		}
	}
	return set
}

// covers reports whether a sparse group, in the given places, has what a hit that ends at a node needs.
func (b *Blocks) covers(n int32, places uint64, g *group) bool {
	if g.kind == GroupMamba {
		return b.tree.nodes[n].have&places != 0
	}
	for range g.window {
		if n <= rootNode {
			return true
		}
		if b.tree.nodes[n].have&places == 0 {
			return false
		}
		n = b.tree.nodes[n].parent
	}
	return true
}

// relevel computes all levels anew, after places or groups became known, or a rank lost everything.
func (b *Blocks) relevel() {
	nodes := b.tree.nodes
	order := []int32{rootNode}
	for i := 0; i < len(order); i++ {
		n := order[i]
		if n > rootNode {
			nodes[n].linked = nodes[nodes[n].parent].linked & b.layout.holds(nodes[n].have)
			nodes[n].through = 0
		}
		for c := nodes[n].child; c != noNode; c = nodes[c].next {
			order = append(order, c)
		}
	}
	for _, n := range slices.Backward(order) {
		if n > rootNode && len(b.layout.sparse) > 0 {
			nodes[n].through |= b.valid(n)
			nodes[nodes[n].parent].through |= nodes[n].through
		}
	}
	b.renderings.refreshAll(b)
}

// resident returns the levels that hold what a key at a node needs.
func (b *Blocks) resident(n int32) uint32 {
	if len(b.layout.sparse) > 0 {
		return b.tree.nodes[n].through
	}
	return b.tree.nodes[n].linked
}

// hit returns the deepest node, at n or above, at which a hit can end in one of the levels.
func (b *Blocks) hit(n int32, levels uint32) int32 {
	if len(b.layout.sparse) == 0 {
		for n > rootNode && b.tree.nodes[n].linked&levels == 0 {
			n = b.tree.nodes[n].parent
		}
		return max(n, rootNode)
	}
	for n > rootNode && b.valid(n)&levels == 0 {
		n = b.tree.nodes[n].parent
	}
	return max(n, rootNode)
}
