package cachestate

import "slices"

// Rekey takes a prompt's keys in the forms that it comes in. Keys of a Next that is alike stand for the same blocks as those
// of the prompt at the same boundaries, so they need not be taught. Of a prompt that comes in one form the keys of the other
// one, if it had any, are not told any more but for the sake of prompts behind them; they go as the longest unused.
func (b *Blocks) Rekey(p *Prompt) {
	switch {
	case p.Next == nil:
		b.renderings.retireTwins(b, p.Keys)
	case p.Next.Alike:
		for _, k := range pairs(p, p.Next) {
			b.renderings.pair(b, k)
		}
	}
}

// keyPair is the two keys of one boundary, and those of the last boundary before it that has two; 0 for none.
type keyPair struct{ key, next, keyBefore, nextBefore Key }

// pairs returns the boundaries that two forms of a prompt share.
func pairs(p, next *Prompt) []keyPair {
	var out []keyPair
	j := 0
	for i := range min(len(p.Keys), len(p.Offsets)) {
		for j < min(len(next.Keys), len(next.Offsets)) && next.Offsets[j] < p.Offsets[i] {
			j++
		}
		if j == min(len(next.Keys), len(next.Offsets)) {
			break
		}
		if next.Offsets[j] != p.Offsets[i] {
			continue
		}
		k := keyPair{key: p.Keys[i], next: next.Keys[j]}
		if n := len(out); n > 0 {
			k.keyBefore, k.nextBefore = out[n-1].key, out[n-1].next
		}
		out = append(out, k)
		j++
	}
	return out
}

// retireTwins ends what keys of the other form are told for.
func (r *renderings) retireTwins(b *Blocks, keys []Key) {
	if r.twins == 0 {
		return
	}
	for _, k := range slices.Backward(keys) { // those behind first: what is before them is told for their sake
		e := r.get(k)
		if e == nil || e.twin == 0 {
			continue
		}
		other, known := r.keys[e.twin]
		r.setTwin(e, 0)
		if known {
			r.setTwin(&r.list[other], 0)
			r.list[other].retired = true
			r.refresh(b, other)
		}
	}
}

// pair makes both keys of a boundary stand for the blocks of the one that is known, or is known better.
func (r *renderings) pair(b *Blocks, k keyPair) {
	from, to, before := k.key, k.next, k.nextBefore
	if e := r.get(from); e == nil || e.retired {
		from, to, before = k.next, k.key, k.keyBefore
	}
	if from == to || r.get(from) == nil {
		return
	}
	r.use(r.keys[from]) // so that it is not forgotten to make room
	at, known := r.keys[to]
	if !known {
		at = r.add(&b.tree, to)
	}
	r.use(at)
	source, e := r.get(from), &r.list[at]
	r.setTwin(source, to)
	r.setTwin(e, from)
	e.retired = false
	e.tokens, e.exact, e.safe, e.relax, e.passed = source.tokens, source.exact, source.safe, source.relax, source.passed
	e.turn, e.fickle, e.output = source.turn, source.fickle, source.output
	r.hang(b, at, r.indexOf(before), source.node)
}

// indexOf returns the rendering of a key, noRendering when there is none.
func (r *renderings) indexOf(k Key) int32 {
	if i, ok := r.keys[k]; ok && k != 0 {
		return i
	}
	return noRendering
}

// setTwin notes the key of the same boundary in the other form, 0 for none.
func (r *renderings) setTwin(e *rendering, twin Key) {
	if e.twin != 0 {
		r.twins--
	}
	if e.twin = twin; twin != 0 {
		r.twins++
	}
}

// hang puts a rendering at a node, behind the one before it in its prompt.
func (r *renderings) hang(b *Blocks, at, before, node int32) {
	e := &r.list[at]
	if e.before != before {
		r.show(at, 0)
		e.before = before
	}
	if node != e.node {
		old := e.node
		r.show(at, 0)
		r.leave(&b.tree, at)
		r.place(&b.tree, at, node)
		b.tree.prune(old)
	}
	r.refresh(b, at)
}
