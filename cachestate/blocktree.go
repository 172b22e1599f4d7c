package cachestate

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// blockTree holds one node for each block that is known: a path from the root is a sequence of blocks, told apart by
// their tokens and extras alone. Hashes of an engine lead to nodes; they mean something within one process only.
//
// Nodes are indices into one slice, since there are as many as the engine has blocks. Node 0 is the root. A node is
// freed when nothing refers to it: no place, no rendering, no child.
type blockTree struct {
	nodes    []blockNode
	free     []int32
	children map[uint64]int32 // by childKey
	detached int              // nodes whose parent is not known
	ranks    []rankHashes
	kept     int32 // a node that is not to be freed although nothing refers to it; noNode for none
	scratch  []byte
}

// blockNode is one block.
type blockNode struct {
	token                     uint64 // stands for its tokens and extras
	have                      uint64 // places that hold it
	linked                    uint32 // levels that hold it and everything before it
	through                   uint32 // levels in which a hit can end here or below; kept up with sparse groups only
	parent, child, next, prev int32  // parent is noNode for a detached one; next and prev are its siblings
	depth                     int32  // blocks from the root, itself included; counted from the first known one when detached
	renderings                int32  // first of the renderings that end here
	hashes                    uint32 // ranks whose hash of it is known
}

const (
	rootNode = 0
	noNode   = -1
)

// rankHashes are the engine's hashes of one rank.
type rankHashes struct {
	nodes map[uint64]int32
	of    []uint64 // by node: its hash, where the node says that it is known
}

func newBlockTree() blockTree {
	root := blockNode{linked: ^uint32(0), through: ^uint32(0), parent: noNode, child: noNode, next: noNode, prev: noNode, renderings: noNode}
	return blockTree{nodes: []blockNode{root}, children: map[uint64]int32{}, kept: noNode}
}

// size is the number of nodes, without the root.
func (t *blockTree) size() int { return len(t.nodes) - len(t.free) - 1 }

// tokenHash stands for a block's own tokens and extra.
func (t *blockTree) tokenHash(tokens []uint32, extra uint64) uint64 {
	b := binary.LittleEndian.AppendUint64(t.scratch[:0], extra)
	for _, id := range tokens {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	t.scratch = b
	return xxhash.Sum64(b)
}

// childKey names the child of a node with given tokens. Node indices are reused only after all children are gone.
func childKey(parent int32, token uint64) uint64 {
	x := token ^ (uint64(uint32(parent))+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// find returns the child of a node, or noNode.
func (t *blockTree) find(parent int32, token uint64) int32 {
	if n, ok := t.children[childKey(parent, token)]; ok && t.nodes[n].token == token && t.nodes[n].parent == parent {
		return n
	}
	return noNode
}

// add makes a child of a node, or a detached node.
func (t *blockTree) add(parent int32, token uint64) int32 {
	n := int32(len(t.nodes))
	if last := len(t.free) - 1; last >= 0 {
		n, t.free = t.free[last], t.free[:last]
	} else {
		t.nodes = append(t.nodes, blockNode{})
	}
	t.nodes[n] = blockNode{token: token, child: noNode, renderings: noNode}
	t.attach(n, parent)
	return n
}

// attach hangs a node without a parent below one.
func (t *blockTree) attach(n, parent int32) {
	node := &t.nodes[n]
	node.parent, node.next, node.prev, node.depth = parent, noNode, noNode, 1
	t.children[childKey(parent, node.token)] = n
	if parent == noNode {
		t.detached++
		return
	}
	p := &t.nodes[parent]
	node.depth = p.depth + 1
	node.next = p.child
	if p.child != noNode {
		t.nodes[p.child].prev = n
	}
	p.child = n
}

// detach undoes attach.
func (t *blockTree) detach(n int32) {
	node := &t.nodes[n]
	if k := childKey(node.parent, node.token); t.children[k] == n {
		delete(t.children, k)
	}
	if node.parent == noNode {
		t.detached--
		return
	}
	if node.next != noNode {
		t.nodes[node.next].prev = node.prev
	}
	if node.prev != noNode {
		t.nodes[node.prev].next = node.next
	} else {
		t.nodes[node.parent].child = node.next
	}
}

// prune frees a node that nothing refers to, and those above it that nothing else refers to.
func (t *blockTree) prune(n int32) {
	for n > rootNode {
		node := &t.nodes[n]
		if node.have != 0 || node.child != noNode || node.renderings != noNode || n == t.kept {
			return
		}
		parent := node.parent
		t.forgetHashes(n)
		t.detach(n)
		t.nodes[n] = blockNode{parent: noNode, child: noNode, renderings: noNode}
		t.free = append(t.free, n)
		n = parent
	}
}

// lookup returns the node of an engine's hash, or noNode.
func (t *blockTree) lookup(rank int, hash uint64) int32 {
	if rank < len(t.ranks) {
		if n, ok := t.ranks[rank].nodes[hash]; ok {
			return n
		}
	}
	return noNode
}

// name lets an engine's hash lead to a node.
func (t *blockTree) name(rank int, hash uint64, n int32) {
	for len(t.ranks) <= rank {
		t.ranks = append(t.ranks, rankHashes{nodes: map[uint64]int32{}})
	}
	r := &t.ranks[rank]
	if was, ok := r.nodes[hash]; ok {
		if was == n {
			return
		}
		t.unname(rank, was)
	}
	t.unname(rank, n)
	for len(r.of) <= int(n) {
		r.of = append(r.of, 0)
	}
	r.nodes[hash], r.of[n] = n, hash
	t.nodes[n].hashes |= 1 << rank
}

// unname forgets the hash of a node.
func (t *blockTree) unname(rank int, n int32) {
	if t.nodes[n].hashes>>rank&1 == 0 {
		return
	}
	t.nodes[n].hashes &^= 1 << rank
	delete(t.ranks[rank].nodes, t.ranks[rank].of[n])
}

func (t *blockTree) forgetHashes(n int32) {
	for rank := range t.ranks {
		t.unname(rank, n)
	}
}

// forgetRank forgets all hashes of a rank: its process is gone.
func (t *blockTree) forgetRank(rank int) {
	if rank >= len(t.ranks) {
		return
	}
	for _, n := range t.ranks[rank].nodes {
		t.nodes[n].hashes &^= 1 << rank
	}
	clear(t.ranks[rank].nodes)
}

// fork is the least number of branches at which prompts part.
const fork = 2

// branches counts the children of a node, up to a bound.
func (t *blockTree) branches(n int32, most int) int {
	count := 0
	for c := t.nodes[n].child; c != noNode && count < most; c = t.nodes[c].next {
		count++
	}
	return count
}

// ancestor returns the node at a depth on the way to n, which is at least as deep.
func (t *blockTree) ancestor(n int32, depth int32) int32 {
	for t.nodes[n].depth > depth {
		n = t.nodes[n].parent
	}
	return n
}
