package cachestate

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// shownKeys follows what a Blocks says of its keys.
type shownKeys map[Tier]map[Key]bool

func (s shownKeys) change(t *testing.T) func(Tier, Key, bool) {
	return func(tier Tier, k Key, on bool) {
		if s[tier] == nil {
			s[tier] = map[Key]bool{}
		}
		if s[tier][k] == on {
			t.Errorf("key %x in tier %v: told twice that resident is %v", k, tier, on)
		}
		s[tier][k] = on
		if !on {
			delete(s[tier], k)
		}
	}
}

// promptOf makes a prompt whose keys lie at every step bytes of a text of so many bytes: equal texts, equal keys.
func promptOf(step int, text ...byte) *Prompt {
	p := &Prompt{Bytes: int64(len(text))}
	h := uint64(7)
	p.Keys, p.Offsets = append(p.Keys, Key(h)), append(p.Offsets, 0)
	for i, c := range text {
		h = (h ^ uint64(c)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
		if (i+1)%step == 0 || i == len(text)-1 {
			p.Keys, p.Offsets = append(p.Keys, Key(h)), append(p.Offsets, uint32(i+1))
		}
	}
	p.Sure, p.Odd, p.High = len(p.Keys), make([]uint32, len(p.Keys)), make([]uint32, len(p.Keys))
	return p
}

// tokensOf renders a text with one token a byte.
func tokensOf(text []byte) []uint32 {
	out := make([]uint32, 0, len(text))
	for _, c := range text {
		out = append(out, uint32(c))
	}
	return out
}

// toyEngine stores and removes blocks of token sequences as an engine would, and knows what it holds.
type toyEngine struct {
	block int
	group int
	kind  GroupKind
	tier  Tier
	held  map[uint64]int // copies, by hash of everything up to the block's end
}

func (e *toyEngine) hashes(tokens []uint32) []uint64 {
	var out []uint64
	h := uint64(99)
	for i, id := range tokens {
		h = (h ^ uint64(id)) * 0xd6e8feb86659fd93
		h ^= h >> 31
		if (i+1)%e.block == 0 {
			out = append(out, h)
		}
	}
	return out
}

// store returns the event of blocks [from, to) of a sequence.
func (e *toyEngine) store(tokens []uint32, from, to int) *BlockEvent {
	hashes := e.hashes(tokens)
	for _, h := range hashes[from:to] {
		e.held[h]++
	}
	ev := &BlockEvent{
		Kind: BlocksStored, Group: e.group, GroupKind: e.kind, Tier: e.tier, Hashes: hashes[from:to],
		Tokens: tokens[from*e.block : to*e.block], BlockTokens: e.block,
	}
	if from > 0 {
		ev.HasParent, ev.Parent = true, hashes[from-1]
	}
	return ev
}

func (e *toyEngine) remove(hashes ...uint64) *BlockEvent {
	for _, h := range hashes {
		if e.held[h]--; e.held[h] == 0 {
			delete(e.held, h)
		}
	}
	return &BlockEvent{Kind: BlocksRemoved, Group: e.group, Tier: e.tier, Hashes: hashes}
}

// hit is how many tokens the engine has of a sequence, from its start.
func (e *toyEngine) hit(tokens []uint32) int {
	n := 0
	for _, h := range e.hashes(tokens) {
		if e.held[h] == 0 {
			break
		}
		n += e.block
	}
	return n
}

// TestBlocksFollowAnEngine compares with the engine itself, under random stores and evictions of leaves.
func TestBlocksFollowAnEngine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	shown := shownKeys{}
	b := NewBlocks(4, 1<<20, 1<<16, shown.change(t))
	e := &toyEngine{block: 4, held: map[uint64]int{}}
	var texts [][]byte
	for range 3000 {
		text := grow(rng, texts)
		texts = append(texts, text)
		tokens := tokensOf(text)
		all := e.hashes(tokens)
		if rng.IntN(2) == 0 { // events may come before the answer that teaches, or after it
			b.Teach(Lesson{Prompt: promptOf(5, text...), Tokens: tokens})
		}
		if from := e.hit(tokens) / 4; from < len(all) {
			b.Apply(0, e.store(tokens, from, len(all)))
			if rng.IntN(4) == 0 { // two requests with the same new prefix
				b.Apply(0, e.store(tokens, from, len(all)))
			}
		}
		b.Teach(Lesson{Prompt: promptOf(5, text...), Tokens: tokens})
		evict(rng, b, e, texts)
		if len(texts) > 40 {
			texts = texts[1:]
		}
		for _, text := range texts {
			compareWith(t, b, e, text)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	b.Apply(0, &BlockEvent{Kind: BlocksCleared})
	if n := len(shown[TierGPU]); n != 0 {
		t.Errorf("cleared, and still %d keys are shown", n)
	}
}

// grow makes a text that often goes on from an earlier one.
func grow(rng *rand.Rand, texts [][]byte) []byte {
	var text []byte
	if len(texts) > 0 && rng.IntN(4) > 0 {
		old := texts[rng.IntN(len(texts))]
		text = slices.Clone(old[:rng.IntN(len(old)+1)])
	}
	for range 1 + rng.IntN(40) {
		text = append(text, byte(rng.IntN(3)))
	}
	return text
}

// evict removes leaves until few blocks are left.
func evict(rng *rand.Rand, b *Blocks, e *toyEngine, texts [][]byte) {
	for len(e.held) > 120 {
		text := tokensOf(texts[rng.IntN(len(texts))])
		hashes := e.hashes(text)
		if n := e.hit(text) / e.block; n > 0 && leaf(e, texts, text, n) {
			b.Apply(0, e.remove(hashes[n-1]))
		} else {
			left := slices.Collect(maps.Keys(e.held)) // of prompts that are forgotten
			b.Apply(0, e.remove(left[rng.IntN(len(left))]))
		}
	}
}

func leaf(e *toyEngine, texts [][]byte, text []uint32, n int) bool {
	for _, other := range texts {
		o := tokensOf(other)
		if len(o) >= n*e.block && slices.Equal(o[:n*e.block], text[:n*e.block]) && e.hit(o) > n*e.block {
			return false
		}
	}
	return true
}

// compareWith asks of one prompt that was taught.
func compareWith(t *testing.T, b *Blocks, e *toyEngine, text []byte) {
	t.Helper()
	p, tokens := promptOf(5, text...), tokensOf(text)
	got := b.Estimate(p)
	want := min(e.hit(tokens), (len(tokens)-1)/e.block*e.block)
	if got.Tokens != want {
		t.Errorf("estimate %d tokens of %d, the engine has %d", got.Tokens, len(tokens), want)
	}
}
