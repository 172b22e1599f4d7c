package cachestate

import "slices"

// Estimate is what a Blocks expects an engine to find of a prompt.
type Estimate struct {
	Keys     int     // leading keys that are known and resident in some tier
	Tokens   int     // tokens that the engine need not compute
	Weighted float64 // the same, each token with the weight of its tier
	Prompt   int     // length of the prompt in tokens; 0 when it was not rendered before
	// Known is how many tokens lie before the last key that is known, and Rest the bytes behind it.
	Known int
	Rest  int64

	// What the estimate assumes of tokens behind the last key that is known.

	answer answer // the prompt repeats an answer
	gap    gap    // the prompt parts from an earlier one before its next key
}

// gap is the part of an estimate that lies between two keys.
type gap struct {
	kind   gapKind
	from   int // tokens before it
	tokens int // its length
}

// gapKind says what lies before a gap.
type gapKind uint8

const (
	gapInside gapKind = iota // a boundary inside a text
	gapBehind                // the end of a message
	numGaps
)

// answer is the part of an estimate that rests on habits: the prompt goes on where one ended that had an answer.
type answer struct {
	turn   Turn
	from   int // where the answer begins, in tokens
	output int // its length
}

// Estimate returns what the engine would find of a prompt now.
func (b *Blocks) Estimate(p *Prompt) Estimate {
	r, out := &b.renderings, Estimate{}
	if b.block == 0 {
		return out
	}
	var last, known *rendering
	out.Rest = p.Bytes
	for i, k := range p.Keys {
		e := r.get(k)
		if e == nil {
			break
		}
		known, out.Known, out.Rest = e, int(e.tokens), p.Bytes-int64(p.Offsets[i])
		if !b.stands(e) {
			continue
		}
		last = e
		if e.shown != 0 {
			out.Keys = i + 1
		}
	}
	if known != nil && known.exact && known.key == p.Keys[len(p.Keys)-1] && int64(p.Offsets[len(p.Keys)-1]) == p.Bytes {
		out.Prompt = int(known.tokens)
	}
	if last == nil && out.Prompt == 0 {
		return out
	}
	if last == nil {
		last = &r.list[r.keys[p.Keys[0]]]
	}
	if out.Prompt > 0 && b.safeEnough(known) { // this very prompt was rendered, whatever becomes of its like
		last = known
	}
	end := last.node // the hit may end before it, also between two keys
	if len(b.layout.sparse) > 0 && !last.exact {
		end = b.parting(end)
	} else if known == last && known.key != p.Keys[len(p.Keys)-1] {
		end = b.along(end, int(last.tokens)+b.behind(&out, last, p))
	}
	b.measure(&out, end)
	return out
}

// behind returns how many tokens a prompt can be expected to share with earlier ones behind the last key that is known.
func (b *Blocks) behind(out *Estimate, last *rendering, p *Prompt) int {
	h := &b.renderings.habits
	if last.output > 0 {
		out.answer = answer{last.turn, int(last.tokens), int(last.output)}
		return int(h.repeat[last.turn]*float64(last.output) + 0.5)
	}
	i, _ := slices.BinarySearch(p.Offsets, uint32(p.Bytes-out.Rest))
	for i < len(p.Keys) && p.Keys[i] != last.key { // two keys can share an offset
		i++
	}
	if i+1 >= len(p.Keys) {
		return 0
	}
	tokens := b.renderings.density.tokens(between(p.features(i), p.features(i+1)))
	out.gap = gap{gapBehind, int(last.tokens), int(tokens)}
	if nextBoundary(int64(p.Offsets[i])-1) == int64(p.Offsets[i]) {
		out.gap.kind = gapInside
	}
	// Never far beyond what is known: where it turns out to part at once, little was claimed in vain.
	return min(int(h.shared[out.gap.kind]*tokens+0.5), max(b.block, int(last.tokens)/64))
}

// along returns the node to which the youngest path from n on is held, at most to a position in tokens.
func (b *Blocks) along(n int32, position int) int32 {
	nodes := b.tree.nodes
	for int(nodes[n].depth+1)*b.block <= position {
		c := nodes[n].child
		if c == noNode || nodes[c].linked == 0 {
			break
		}
		n = c
	}
	return n
}

// reckonedOff is by how many blocks the reckoned position of a key is expected to be off. Where less is assumed, a position
// that lies too far reaches states of another text; where more is, hits that end close to the key are missed.
const reckonedOff = 2

// parting returns the node at which the text up to a reckoned position ends, n lying before that position. Where other
// prompts part from this one at n or closely behind it, that is the node, and it matters which: what a sliding window keeps
// of a text that many prompts begin with is what hits need that end just there. Where a key lies between that has several
// others behind it, they part behind that key, and this prompt, which does not have it, parted before. Else n may lie in the
// text of one prompt alone, and the node is one that is before the position even so; but not before a fork: what lies before
// that is the text of many again.
func (b *Blocks) parting(n int32) int32 {
	at := n
	for range reckonedOff + 1 {
		if b.tree.branches(at, fork) == fork {
			return at
		}
		at = b.tree.nodes[at].child
		if at == noNode || b.renderings.divide(&b.tree, at) {
			break
		}
	}
	for range reckonedOff {
		if n == rootNode || b.tree.branches(n, fork) == fork {
			break
		}
		n = b.tree.nodes[n].parent
	}
	return n
}

// measure fills in the tokens of a hit that ends at a node or above, tier by tier.
func (b *Blocks) measure(out *Estimate, end int32) {
	if out.Prompt > 0 { // the last token is computed again
		end = b.tree.ancestor(end, int32((out.Prompt-1)/b.block))
	}
	for t := range numTiers {
		if b.layout.tiers[t] == 0 {
			continue
		}
		tokens := int(b.tree.nodes[b.hit(end, b.layout.tiers[t])].depth) * b.block
		if tokens > out.Tokens {
			out.Weighted += float64(tokens-out.Tokens) * t.Weight()
			out.Tokens = tokens
		}
	}
}

// Observe takes how many tokens the engine found of the prompt that an estimate was made for.
func (b *Blocks) Observe(e Estimate, cached int) {
	if e.gap.tokens > 0 {
		b.renderings.habits.parted(e.gap.kind, float64(cached+b.block/2-e.gap.from)/float64(e.gap.tokens))
	}
	if e.answer.output > 0 {
		share := float64(cached+b.block/2-e.answer.from) / float64(e.answer.output)
		b.renderings.habits.repeated(e.answer.turn, share)
	}
}

// Answered says how many tokens of answer followed a prompt, by its last key. A prompt that goes on from there repeats
// them, more or less.
func (b *Blocks) Answered(last Key, output int) {
	if e := b.renderings.get(last); e != nil {
		e.output = int32(min(max(output, 0), maxAnswer))
	}
}

// maxAnswer bounds the length of an answer, which an engine says.
const maxAnswer = 1 << 24

// Unmapped returns how many tokens of a prompt lie behind the last key whose rendering is known, by their share of its
// bytes; all when none is.
func (b *Blocks) Unmapped(p *Prompt, bytesPerToken float64) int {
	known := int64(0)
	for i, k := range p.Keys {
		if b.renderings.get(k) == nil {
			break
		}
		known = int64(p.Offsets[i])
	}
	return int(tokensAt(p.Bytes-known, bytesPerToken))
}

// Known reports whether the rendering of a key is known.
func (b *Blocks) Known(k Key) bool { return b.renderings.get(k) != nil }

// Unstable reports whether prompts with equal keys are rendered so differently that residency is of no use.
func (b *Blocks) Unstable() bool { return b.renderings.habits.unstable() }

// Each tells every key that is resident in a tier, as NewBlocks's changed would.
func (b *Blocks) Each(tell func(t Tier, k Key, resident bool)) {
	for k, i := range b.renderings.keys {
		for t := range numTiers {
			if b.renderings.list[i].shown>>t&1 == 1 {
				tell(t, k, true)
			}
		}
	}
}

// Sparse reports whether the engine has cache groups that do not keep every block: what it finds then depends on more than
// which keys a prompt has.
func (b *Blocks) Sparse() bool { return len(b.layout.sparse) > 0 }

// ShowsExtras reports whether the engine's events name salts and adapters, so that prompts that have them can be told
// from others.
func (b *Blocks) ShowsExtras() bool { return b.showsExtras }
