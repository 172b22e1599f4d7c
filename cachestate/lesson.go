package cachestate

import "slices"

// Lesson is one prompt with the tokens that the engine rendered it to.
type Lesson struct {
	Prompt *Prompt
	Tokens []uint32
	// First and Rest are the BlockExtra of the prompt's first block and of the others.
	First, Rest uint64
}

// Teach maps the keys of a prompt to the blocks that the engine rendered it to. Nothing of the lesson is kept but hashes.
// It does nothing while the size of a block is not known.
func (b *Blocks) Teach(l Lesson) {
	p := l.Prompt
	if b.block == 0 || len(p.Keys) == 0 || len(l.Tokens) == 0 {
		return
	}
	b.stats.Lessons++
	r := &b.renderings
	before := r.habits
	path := b.walk(l)
	last := int32(rootNode)
	if len(path) > 0 {
		last = path[len(path)-1]
	}
	b.tree.kept = last // the others have a child
	s := lesson{b: b, p: p, path: path, tokens: int32(len(l.Tokens))}
	s.recall()
	s.locate()
	s.commit()
	b.tree.kept = noNode
	b.tree.prune(last) // blocks behind the last key
	for t := range numTurns {
		if before.stays(t) != r.habits.stays(t) {
			r.refreshAll(b)
			break
		}
	}
	b.bound()
}

// walk returns the nodes of a prompt's whole blocks, the first block's first. It makes those that are missing.
func (b *Blocks) walk(l Lesson) []int32 {
	path := make([]int32, 0, len(l.Tokens)/b.block)
	at := int32(rootNode)
	for from := 0; from+b.block <= len(l.Tokens); from += b.block {
		extra := l.Rest
		if from == 0 {
			extra = l.First
		}
		token := b.tree.tokenHash(l.Tokens[from:from+b.block], extra)
		next := b.tree.find(at, token)
		if next == noNode && b.tree.detached > 0 {
			next = b.adopt(at, token, l, from)
		}
		if next == noNode {
			next = b.tree.add(at, token)
		}
		path, at = append(path, next), next
	}
	return path
}

// adoptTokens is how many tokens must agree before a detached block is believed to be the one of a prompt.
const adoptTokens = 16

// adopt finds the detached block that the tokens at from are, and hangs it where it belongs. Such blocks come from events
// about prompts whose beginning was not heard of.
func (b *Blocks) adopt(at int32, token uint64, l Lesson, from int) int32 {
	n := b.tree.find(noNode, token)
	if n == noNode {
		return noNode
	}
	end := from + b.block
	for c := n; end-from < adoptTokens; end += b.block {
		if end+b.block > len(l.Tokens) {
			return noNode
		}
		if c = b.tree.find(c, b.tree.tokenHash(l.Tokens[end:end+b.block], l.Rest)); c == noNode {
			return noNode
		}
	}
	b.tree.detach(n)
	b.tree.attach(n, at)
	b.redepth(n)
	b.rejoin(n)
	return n
}

// redepth counts the depths below a node anew.
func (b *Blocks) redepth(n int32) {
	b.stack = append(b.stack[:0], n)
	for i := 0; i < len(b.stack); i++ {
		at := b.stack[i]
		for c := b.tree.nodes[at].child; c != noNode; c = b.tree.nodes[c].next {
			b.tree.nodes[c].depth = b.tree.nodes[at].depth + 1
			b.stack = append(b.stack, c)
		}
	}
}

// rejoin brings levels up to date after a detached block got its parent: what a rank holds of it, it was computed behind
// all before it.
func (b *Blocks) rejoin(n int32) {
	parent := b.tree.nodes[n].parent
	for bit, p := range b.layout.places {
		full := p.group < len(b.layout.groups) && b.layout.groups[p.group].kind == GroupFull
		if full && p.tier == TierGPU && parent > rootNode && b.tree.nodes[n].have>>bit&1 == 1 {
			b.imply(parent, bit)
		}
	}
	if changed := b.relink(n); len(b.layout.sparse) > 0 {
		b.rehit(changed)
	}
}

// lesson is one call of Teach.
type lesson struct {
	b      *Blocks
	p      *Prompt
	path   []int32 // nodes of the whole blocks
	tokens int32

	shared   int     // leading keys that are known from earlier prompts
	same     int     // leading keys of those that are rendered as they were
	position []int32 // of each key, in tokens
}

// node returns the node in which the last whole block before a position ends.
func (s *lesson) node(tokens int32) int32 {
	depth := int(tokens) / s.b.block
	if depth = min(depth, len(s.path)); depth <= 0 {
		return rootNode
	}
	return s.path[depth-1]
}

// onPath reports whether a node is one of this prompt.
func (s *lesson) onPath(n int32) bool {
	depth := int(s.b.tree.nodes[n].depth)
	return depth == 0 || depth <= len(s.path) && s.path[depth-1] == n
}

// recall compares this prompt with what is known of its keys.
func (s *lesson) recall() {
	b, r := s.b, &s.b.renderings
	block, steady := int32(b.block), true
	s.position = make([]int32, len(s.p.Keys))
	for i, k := range s.p.Keys {
		e := r.get(k)
		if e == nil {
			break
		}
		s.shared++
		r.use(r.keys[k]) // so that none is forgotten to make room for the others
		common := int32(unlimited)
		if !s.onPath(e.node) {
			common = s.common(e.node)*block + block - 1
		}
		e.compare(common)
		same := common >= e.tokens-b.slack(e)
		if e.fickle {
			r.habits.stayed(e.turn, same)
			e.fickle = !same
		}
		// Prompts that part a little before a position that was reckoned show where it is.
		s.position[i] = min(e.tokens, common, s.tokens)
		if steady = steady && same; steady {
			s.same++
		}
	}
	if s.shared > 1 { // the root alone says nothing
		e := r.get(s.p.Keys[s.shared-1])
		if e.node != rootNode || e.tokens > block {
			r.habits.compared(s.evenness(e))
		}
	}
}

// evenness is the share of a known key's blocks that this prompt repeats.
func (s *lesson) evenness(e *rendering) float64 {
	depth := s.b.tree.nodes[e.node].depth
	if depth == 0 {
		return 1
	}
	return float64(s.common(e.node)) / float64(depth)
}

// common returns how many blocks from the start a node's path shares with this prompt.
func (s *lesson) common(n int32) int32 {
	n = s.b.tree.ancestor(n, int32(len(s.path)))
	for !s.onPath(n) {
		n = s.b.tree.nodes[n].parent
	}
	return s.b.tree.nodes[n].depth
}

// compare takes the length of the prefix that two prompts through the key share, unlimited when they share all up to it.
func (e *rendering) compare(common int32) {
	if common < e.safe {
		e.safe, e.relax, e.passed = common, unlimited, 0
		return
	}
	if e.safe == unlimited {
		return
	}
	e.relax = min(e.relax, common)
	if e.passed++; e.passed == relaxAfter {
		e.safe, e.relax, e.passed = e.relax, unlimited, 0
	}
}

// locate finds the position of every key: those that are known keep it, the last one lies at the end of the tokens, and
// the others lie between two of these as their bytes do.
func (s *lesson) locate() {
	p := s.p
	fromTokens := int32(0)
	if s.same > 0 {
		fromTokens = s.position[s.same-1]
	}
	if s.same > 1 && s.same < len(p.Keys) && !s.b.renderings.get(p.Keys[s.same-1]).exact {
		fromTokens = s.refine(s.same - 1)
		s.position[s.same-1] = fromTokens
	}
	s.reckon(fromTokens)
}

// reckon puts the keys behind the last known position where their bytes say, each class of bytes by its tokens, so that
// the whole makes the tokens that are there. It learns from them too.
func (s *lesson) reckon(fromTokens int32) {
	p, d := s.p, &s.b.renderings.density
	last := len(p.Keys) - 1
	if s.same > last {
		return
	}
	var from [numClasses]float64
	if s.same > 0 {
		from = p.features(s.same - 1)
	}
	whole := between(from, p.features(last))
	rest := float64(p.Bytes - int64(p.Offsets[last])) // bytes behind the last key of a very long prompt
	spread := float64(s.tokens - fromTokens)
	if rest == 0 && spread > 0 {
		d.learn(whole, spread)
	}
	total := d.tokens(whole) + rest*d.rates[0]
	if total <= 0 {
		total = 1
	}
	for i := s.same; i <= last; i++ {
		part := d.tokens(between(from, p.features(i))) / total
		s.position[i] = fromTokens + int32(min(part, 1)*spread)
	}
}

// refine corrects the position of the last key that this prompt shares with earlier ones. Between it and the next key the
// texts part, so the tokens do too: at the first fork of the tree behind it. The key cannot lie further before the fork
// than the text up to the next key is long, nor so far where many prompts part: of n that part evenly over a length, the
// first is expected to do so after a part in n+1 of it. A part in n-1 is allowed.
func (s *lesson) refine(i int) int32 {
	p, block := s.p, int32(s.b.block)
	at, rest := s.position[i], p.Bytes-int64(p.Offsets[i])
	if rest <= 0 {
		return at
	}
	perByte := float64(s.tokens-at) / float64(rest)
	gap := int32(float64(p.Offsets[i+1]-p.Offsets[i])*perByte*1.5) + block
	depth, branches := s.parted(int(at/block), int((at+gap)/block)+1)
	return max(at, int32(depth)*block-gap/int32(max(branches-1, 1)))
}

// maxBranches bounds how many branches of a fork are counted.
const maxBranches = 32

// parted returns the first depth in [from, to] at which other prompts leave this one's path, and how many ways lead on
// from there; 0 when none does.
func (s *lesson) parted(from, to int) (depth, branches int) {
	for depth := from; depth <= min(to, len(s.path)-1); depth++ {
		n := int32(rootNode)
		if depth > 0 {
			n = s.path[depth-1]
		}
		if branches = s.b.tree.branches(n, maxBranches); branches >= fork {
			return depth, branches
		}
	}
	return 0, 0
}

// commit makes this prompt the latest rendering of its keys.
func (s *lesson) commit() {
	b, r, before := s.b, &s.b.renderings, int32(noRendering)
	for i, k := range s.p.Keys {
		at, known := r.keys[k]
		if !known {
			at = r.add(&b.tree, k)
			e := &r.list[at]
			e.turn, e.fickle = s.p.Turn, i >= s.p.Sure
		}
		s.move(at, i, before)
		before = at
	}
	for _, k := range slices.Backward(s.p.Keys) { // the first key is the last to be forgotten
		if at, ok := r.keys[k]; ok {
			r.use(at)
		}
	}
}

// move puts a rendering where key i of this prompt ends.
func (s *lesson) move(at int32, i int, before int32) {
	b, r := s.b, &s.b.renderings
	e := &r.list[at]
	e.retired = false
	if e.tokens != s.position[i] {
		e.tokens, e.exact = s.position[i], false
	}
	if i == len(s.p.Keys)-1 && int64(s.p.Offsets[i]) == s.p.Bytes {
		e.tokens, e.exact = s.tokens, true
	}
	r.hang(b, at, before, s.node(e.tokens))
}
