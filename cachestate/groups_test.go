package cachestate

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// hybridEngine has several cache groups, and finds the longest prefix on which all agree by trying every length.
type hybridEngine struct {
	groups  []*toyEngine
	windows []int // of sliding groups, in tokens
}

func (e *hybridEngine) hit(tokens []uint32) int {
	for n := len(tokens) / e.groups[0].block; n > 0; n-- {
		if e.agree(tokens, n) {
			return n * e.groups[0].block
		}
	}
	return 0
}

func (e *hybridEngine) agree(tokens []uint32, n int) bool {
	for i, g := range e.groups {
		hashes := g.hashes(tokens)[:n]
		from := 0
		switch g.kind {
		case GroupSliding:
			from = max(0, n-(e.windows[i]-1+g.block-1)/g.block)
		case GroupMamba:
			from = n - 1
		case GroupFull, GroupOther:
		}
		for _, h := range hashes[from:] {
			if g.held[h] == 0 {
				return false
			}
		}
	}
	return true
}

// TestHybridEngines compares an estimate with what the engine really finds, with groups that keep few blocks.
func TestHybridEngines(t *testing.T) {
	for name, kind := range map[string]GroupKind{"sliding": GroupSliding, "mamba": GroupMamba} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			shown := shownKeys{}
			b := NewBlocks(4, 1<<20, 1<<16, shown.change(t))
			full := &toyEngine{block: 4, held: map[uint64]int{}}
			rare := &toyEngine{block: 4, group: 1, kind: kind, held: map[uint64]int{}}
			e := &hybridEngine{groups: []*toyEngine{full, rare}, windows: []int{0, 10}}
			var texts [][]byte
			for range 1000 {
				text := grow(rng, texts)
				texts = append(texts, text)
				store(rng, b, e, tokensOf(text))
				b.Teach(Lesson{Prompt: promptOf(5, text...), Tokens: tokensOf(text)})
				evictAny(rng, b, full, 150)
				evictAny(rng, b, rare, 60)
				if len(texts) > 40 {
					texts = texts[1:]
				}
				for _, text := range texts {
					compareHybrid(t, b, e, text)
				}
				if t.Failed() {
					t.FailNow()
				}
			}
		})
	}
}

// TestHitsEndWherePromptsPart: of a text that many prompts begin with, a sliding window may keep no more than what a hit needs
// that ends just where they part.
func TestHitsEndWherePromptsPart(t *testing.T) {
	const begin = 40 // bytes that all prompts begin with
	for name, c := range map[string]struct {
		kind    GroupKind
		tokens  int   // of the beginning
		kept    []int // blocks that the sparse group keeps
		prompts int   // that were taught
		want    int   // tokens
	}{
		"its position is right":                  {GroupSliding, 40, []int{7, 8, 9}, 2, 40},
		"reckoned a block too low":               {GroupSliding, 48, []int{9, 10, 11}, 2, 48},
		"reckoned two blocks too low":            {GroupSliding, 52, []int{10, 11, 12}, 2, 52},
		"reckoned three too low, two prompts":    {GroupSliding, 60, []int{12, 13, 14}, 2, 0},
		"reckoned three too low, five prompts":   {GroupSliding, 60, []int{12, 13, 14}, 5, 60},
		"reckoned a block too high":              {GroupSliding, 32, []int{5, 6, 7}, 2, 32},
		"a hit would end a block later":          {GroupSliding, 40, []int{8, 9, 10}, 2, 0},
		"nothing shows where it ends":            {GroupSliding, 40, []int{5, 6, 7, 8, 9}, 1, 32},
		"state at its end":                       {GroupMamba, 40, []int{9}, 2, 40},
		"state of another text, a block too far": {GroupMamba, 32, []int{8}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, full, _ := newToy(t)
			rare := &toyEngine{block: 4, group: 1, kind: c.kind, held: map[uint64]int{}}
			for i := range c.prompts {
				p, tokens := parted(begin, c.tokens, byte(90+25*i))
				keep(b, full, rare, tokens, c.kept)
				b.Teach(Lesson{Prompt: p, Tokens: tokens})
			}
			p, _ := parted(begin, c.tokens, 200)
			if got := b.Estimate(p).Tokens; got != c.want {
				t.Errorf("estimate %d tokens, want %d", got, c.want)
			}
		})
	}
}

// TestHitsEndBeforeTheTextOfOnePrompt: a key a block behind the place where prompts part lies in the text of one of them. A hit
// of a prompt that parts at that key ends where they all part.
func TestHitsEndBeforeTheTextOfOnePrompt(t *testing.T) {
	const begin, shared = 40, 5
	b, full, _ := newToy(t)
	rare := &toyEngine{block: 4, group: 1, kind: GroupSliding, held: map[uint64]int{}}
	for _, own := range []byte{150, 100} {
		p, tokens := parted(begin, begin, own)
		keep(b, full, rare, tokens, []int{7, 8, 9})
		b.Teach(Lesson{Prompt: p, Tokens: tokens})
	}
	text := append(numbered(begin, 0), numbered(shared, 100)...)
	if got := b.Estimate(promptOf(5, append(text, numbered(35, 200)...)...)); got.Tokens != begin {
		t.Errorf("estimate %d tokens, want %d", got.Tokens, begin)
	}
}

// TestHitsEndBeforeAKeyThatIsMissing: prompts part behind the last key of the text that they begin with. One that has changed
// the end of that text shares no more than it has keys of it.
func TestHitsEndBeforeAKeyThatIsMissing(t *testing.T) {
	const begin, shared = 40, 35
	b, full, _ := newToy(t)
	rare := &toyEngine{block: 4, group: 1, kind: GroupSliding, held: map[uint64]int{}}
	for _, own := range []byte{100, 125, 150} {
		p, tokens := parted(begin, begin, own)
		keep(b, full, rare, tokens, []int{7, 8, 9, 17, 18, 19})
		b.Teach(Lesson{Prompt: p, Tokens: tokens})
	}
	text := append(numbered(shared, 0), numbered(45, 200)...)
	if got := b.Estimate(promptOf(5, text...)); got.Tokens != 0 {
		t.Errorf("estimate %d tokens, want none: no hit can end before block 10", got.Tokens)
	}
}

// keep has an engine compute a sequence of which its sparse group, a window of ten tokens or states, keeps some blocks.
func keep(b *Blocks, full, rare *toyEngine, tokens []uint32, kept []int) {
	b.Apply(0, wholly(full, tokens))
	e := wholly(rare, tokens)
	e.Window, e.Hashes = 10, pick(e.Hashes, kept)
	b.Apply(0, e)
}

// parted returns a prompt that parts from others behind its beginning, and how it is rendered: the beginning to so many
// tokens, and each byte behind it to one.
func parted(begin, tokens int, own byte) (*Prompt, []uint32) {
	rest := numbered(40, own)
	out := make([]uint32, tokens)
	for i := range out {
		out[i] = 1000 + uint32(i)
	}
	return promptOf(5, append(numbered(begin, 0), rest...)...), append(out, tokensOf(rest)...)
}

func pick(hashes []uint64, at []int) []uint64 {
	var out []uint64
	for _, i := range at {
		out = append(out, hashes[i])
	}
	return out
}

// store has an engine compute a sequence. The sparse group names the blocks it keeps among the tokens of all.
func store(rng *rand.Rand, b *Blocks, e *hybridEngine, tokens []uint32) {
	from, all := e.hit(tokens)/4, len(tokens)/4
	if from == all {
		return
	}
	full, rare := e.groups[0], e.groups[1]
	b.Apply(0, full.store(tokens, from, all))
	ev := rare.store(tokens, from, all)
	ev.Window = 10
	keep := func(i int) bool { return i >= len(ev.Hashes)-3 }
	if rare.kind == GroupMamba {
		keep = func(i int) bool { return i == len(ev.Hashes)-1 || rng.IntN(6) == 0 }
	}
	var kept []uint64
	for i, h := range ev.Hashes {
		if keep(i) {
			kept = append(kept, h)
		} else if rare.held[h]--; rare.held[h] == 0 {
			delete(rare.held, h)
		}
	}
	ev.Hashes = kept
	b.Apply(0, ev)
}

// evictAny removes blocks at random: leaves of the full group only, since an engine evicts those first.
func evictAny(rng *rand.Rand, b *Blocks, e *toyEngine, most int) {
	for len(e.held) > most {
		hashes := make([]uint64, 0, len(e.held))
		for h := range e.held {
			hashes = append(hashes, h)
		}
		slices.Sort(hashes)
		b.Apply(0, e.remove(hashes[rng.IntN(len(hashes))]))
	}
}

func compareHybrid(t *testing.T, b *Blocks, e *hybridEngine, text []byte) {
	t.Helper()
	tokens := tokensOf(text)
	got := b.Estimate(promptOf(5, text...))
	most := (len(tokens) - 1) / 4 * 4
	truth := 0
	for n := most; n > 0; n -= 4 {
		if e.agree(tokens, n/4) {
			truth = n
			break
		}
	}
	if got.Tokens != truth {
		t.Errorf("estimate %d of %d tokens, the engine finds %d", got.Tokens, len(tokens), truth)
	}
}
