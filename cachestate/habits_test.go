package cachestate

import (
	"math/rand/v2"
	"testing"
)

// wholly has an engine hold all of a sequence and returns its event.
func wholly(e *toyEngine, tokens []uint32) *BlockEvent {
	return e.store(tokens, 0, len(tokens)/e.block)
}

func newToy(t *testing.T) (*Blocks, *toyEngine, shownKeys) {
	t.Helper()
	shown := shownKeys{}
	return NewBlocks(4, 1<<20, 1<<16, shown.change(t)), &toyEngine{block: 4, held: map[uint64]int{}}, shown
}

func numbered(n int, from byte) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = from + byte(i)
	}
	return out
}

// TestLateJoin: blocks whose beginning was never heard of find their place when a prompt is taught that holds them.
func TestLateJoin(t *testing.T) {
	b, e, shown := newToy(t)
	text := numbered(40, 0)
	tokens := tokensOf(text)
	wholly(e, tokens[:20])                                          // nobody listens
	b.Apply(0, e.store(tokens, 5, 10))                              // the parent is not known
	if s := b.Stats(); s.Detached != 1 || len(shown[TierGPU]) > 0 { // a chain hangs on one detached block
		t.Fatalf("%+v, %d keys shown", s, len(shown[TierGPU]))
	}
	p := promptOf(5, text...)
	b.Teach(Lesson{Prompt: p, Tokens: tokens})
	if got := b.Estimate(p); got.Tokens != 36 || got.Keys != len(p.Keys) {
		t.Errorf("estimate %+v after the lesson, want 36 tokens", got)
	}
	b.Apply(0, e.remove(e.hashes(tokens)[9]))
	if got := b.Estimate(p); got.Tokens != 36 { // the last block would be computed again anyway
		t.Errorf("estimate %+v without the last block", got)
	}
	b.Apply(0, e.remove(e.hashes(tokens)[6]))
	if got := b.Estimate(p); got.Tokens != 24 {
		t.Errorf("estimate %+v without block 6, want 24 tokens", got)
	}
}

// TestForgetAndRestart: a gap empties what is believed, and what is stored later is understood; so does a restart, after
// which only the renderings are still known.
func TestForgetAndRestart(t *testing.T) {
	b, e, shown := newToy(t)
	text := numbered(40, 0)
	tokens := tokensOf(text)
	p := promptOf(5, text...)
	b.Apply(0, wholly(e, tokens[:32]))
	b.Teach(Lesson{Prompt: p, Tokens: tokens})
	if got := b.Estimate(p).Tokens; got != 32 {
		t.Fatalf("%d tokens, want 32", got)
	}
	b.Forget(0)
	if got := b.Estimate(p).Tokens; got != 0 || len(shown[TierGPU]) > 0 {
		t.Fatalf("%d tokens and %d keys after a gap", got, len(shown[TierGPU]))
	}
	b.Apply(0, e.store(tokens, 8, 10)) // computed behind blocks that are there, so they are
	if got := b.Estimate(p).Tokens; got != 36 {
		t.Errorf("%d tokens after a block behind the gap, want 36", got)
	}
	b.Restart(0)
	if got := b.Estimate(p).Tokens; got != 0 || len(shown[TierGPU]) > 0 {
		t.Fatalf("%d tokens and %d keys after a restart", got, len(shown[TierGPU]))
	}
	b.Apply(0, e.store(tokens, 8, 10)) // an old process's hashes mean nothing
	if got := b.Estimate(p).Tokens; got != 0 {
		t.Errorf("%d tokens by the hash of a process that is gone", got)
	}
	b.Apply(0, wholly(e, tokens))
	if got := b.Estimate(p).Tokens; got != 36 {
		t.Errorf("%d tokens after the restart, want 36 without a new lesson", got)
	}
}

// TestBlocksThatWaitForTheirNameAreEmptiedToo: what a rank held before it was cleared, or events were missed, is gone also
// where only a hash was told that meant nothing yet.
func TestBlocksThatWaitForTheirNameAreEmptiedToo(t *testing.T) {
	empty := map[string]func(*Blocks){
		"cleared":   func(b *Blocks) { b.Apply(0, &BlockEvent{Kind: BlocksCleared}) },
		"forgotten": func(b *Blocks) { b.Forget(0) },
		"restarted": func(b *Blocks) { b.Restart(0) },
	}
	for name, f := range empty {
		b, e, _ := newToy(t)
		text := numbered(40, 0)
		tokens := tokensOf(text)
		p := promptOf(5, text...)
		b.Apply(0, &BlockEvent{Kind: BlocksStored, Tier: TierCPU, Hashes: e.hashes(tokens)})
		f(b)
		b.Apply(0, wholly(e, tokens))
		b.Teach(Lesson{Prompt: p, Tokens: tokens})
		b.Apply(0, e.remove(e.hashes(tokens)...))
		if got := b.Estimate(p).Tokens; got != 0 {
			t.Errorf("%s: %d tokens are believed in the host's memory", name, got)
		}
	}
}

// TestTiersAreCumulative: a key is in a slower tier when its blocks are there or in a faster one, and weighs less.
func TestTiersAreCumulative(t *testing.T) {
	b, e, shown := newToy(t)
	text := numbered(40, 0)
	tokens := tokensOf(text)
	p := promptOf(5, text...)
	b.Apply(0, wholly(e, tokens))
	b.Teach(Lesson{Prompt: p, Tokens: tokens})
	hashes := e.hashes(tokens)
	host := &BlockEvent{Kind: BlocksStored, Tier: TierCPU, Hashes: hashes[4:]} // offload events name hashes only
	b.Apply(0, host)
	b.Apply(0, e.remove(hashes[6:]...))
	got := b.Estimate(p)
	if want := 24 + 12*TierCPU.Weight(); got.Tokens != 36 || got.Weighted != want {
		t.Errorf("estimate %+v, want 36 tokens that weigh %v", got, want)
	}
	if g, c := len(shown[TierGPU]), len(shown[TierCPU]); g != 6 || c != len(p.Keys) {
		t.Errorf("%d keys in the GPU and %d in the host's memory, want 6 and %d", g, c, len(p.Keys))
	}
	b.Apply(0, &BlockEvent{Kind: BlocksRemoved, Tier: TierCPU, Hashes: hashes[7:8]})
	if got := b.Estimate(p); got.Tokens != 28 {
		t.Errorf("%d tokens with a hole in both tiers, want 28", got.Tokens)
	}
}

// TestPrefixesThatAreRenderedAnew: a key whose prompts differ in their rendering is not claimed past what they share,
// until they have agreed for a while.
func TestPrefixesThatAreRenderedAnew(t *testing.T) {
	b, e, _ := newToy(t)
	text := numbered(80, 0)
	dated := func(day byte) []uint32 {
		tokens := tokensOf(text)
		tokens[1] = 1000 + uint32(day)
		return tokens
	}
	p := promptOf(5, text...)
	teach := func(day byte) int {
		b.Apply(0, wholly(e, dated(day)))
		b.Teach(Lesson{Prompt: p, Tokens: dated(day)})
		return b.Estimate(p).Tokens
	}
	if got := teach(1); got != 76 {
		t.Fatalf("%d tokens, want 76", got)
	}
	// Two blocks are within what a position may be off.
	if got := teach(2); got > 8 {
		t.Errorf("%d tokens on the next day, want none: nothing says which day the next prompt has", got)
	}
	for range relaxAfter - 1 {
		teach(2)
	}
	if got := teach(2); got != 76 {
		t.Errorf("%d tokens after the day has lasted, want 76", got)
	}
}

// TestFickleKeys: keys behind an answer count only while such keys turn out to stay as they were.
func TestFickleKeys(t *testing.T) {
	for name, stays := range map[string]bool{"plain": true, "drops what was thought": false} {
		t.Run(name, func(t *testing.T) {
			b, e, _ := newToy(t)
			rng := rand.New(rand.NewPCG(5, 6))
			got := 0
			for range 20 {
				text := make([]byte, 600)
				for i := range text {
					text[i] = byte(rng.IntN(256))
				}
				for turn := 200; turn <= 600; turn += 200 {
					tokens := tokensOf(text[:turn])
					if turn == 400 && !stays {
						tokens[205] = 7777 // a thought, which later turns do not have
					}
					p := promptOf(5, text[:turn]...)
					p.Sure = min(41, len(p.Keys)) // the answer begins at byte 200
					if turn == 600 {
						got = b.Estimate(p).Tokens
					}
					b.Apply(0, wholly(e, tokens))
					b.Teach(Lesson{Prompt: p, Tokens: tokens})
				}
			}
			if want := map[bool]int{true: 400, false: 200}[stays]; got != want {
				t.Errorf("%d tokens are expected of the third turn, want %d", got, want)
			}
		})
	}
}

func TestUnstableLayoutIsSeen(t *testing.T) {
	b, e, shown := newToy(t)
	rng := rand.New(rand.NewPCG(7, 8))
	for range 3 * evenPairs {
		text := numbered(60, 0)
		tokens := tokensOf(text)
		tokens[0] = rng.Uint32() // what comes last is rendered first
		b.Apply(0, wholly(e, tokens))
		b.Teach(Lesson{Prompt: promptOf(5, text...), Tokens: tokens})
	}
	if !b.Unstable() || len(shown[TierGPU]) > 0 {
		t.Errorf("unstable %v, %d keys shown", b.Unstable(), len(shown[TierGPU]))
	}
}

func TestAnswersAreRepeated(t *testing.T) {
	b, e, _ := newToy(t)
	rng := rand.New(rand.NewPCG(9, 10))
	var last Estimate
	for range 40 {
		text := make([]byte, 64)
		for i := range text {
			text[i] = byte(rng.IntN(256))
		}
		first := promptOf(5, text[:20]...)
		b.Apply(0, wholly(e, tokensOf(text[:40]))) // twenty tokens of prompt, twenty of answer
		b.Teach(Lesson{Prompt: first, Tokens: tokensOf(text[:20])})
		b.Answered(first.Keys[len(first.Keys)-1], 20)
		last = b.Estimate(promptOf(5, text...))
		b.Observe(last, 40)
	}
	if last.Tokens != 40 {
		t.Errorf("%d tokens are expected of a prompt that repeats its answer, want 40", last.Tokens)
	}
}

// TestBlocksBehindTheLastKeyAreNotKept: nothing refers to the blocks of a prompt that is longer than its keys reach, so
// nothing would ever free them.
func TestBlocksBehindTheLastKeyAreNotKept(t *testing.T) {
	b, _, _ := newToy(t)
	text := numbered(80, 0)
	p := promptOf(5, text...)
	p.Keys, p.Offsets, p.Odd, p.High = p.Keys[:9], p.Offsets[:9], p.Odd[:9], p.High[:9] // 40 bytes
	b.Apply(0, &BlockEvent{Kind: BlocksStored, Hashes: []uint64{1}, Tokens: []uint32{9, 9, 9, 9}, BlockTokens: 4})
	b.Teach(Lesson{Prompt: p, Tokens: tokensOf(text)})
	if n := b.Stats().Nodes; n != 1+10 {
		t.Errorf("%d nodes, want the stored one and the 10 up to the last key", n)
	}
}

// TestLastBlockOfALessonStays: making room for a prompt's keys may forget the only rendering that its last block had.
func TestLastBlockOfALessonStays(t *testing.T) {
	shown := shownKeys{}
	b, e := NewBlocks(4, 1<<20, 0, shown.change(t)), &toyEngine{block: 4, held: map[uint64]int{}}
	b.Apply(0, &BlockEvent{Kind: BlocksStored, Hashes: []uint64{1}, Tokens: []uint32{9, 9, 9, 9}, BlockTokens: 4})
	tokens := tokensOf(numbered(40, 0))
	b.Teach(Lesson{Prompt: promptOf(5, numbered(40, 0)...), Tokens: tokens})
	for i := range 4*MaxKeys - 9 { // one new key each
		b.Teach(Lesson{Prompt: promptOf(8, 77, byte(i), byte(i>>8), 77, 77, 77, 77, 77), Tokens: []uint32{7, 7, 7, 7, 7}})
	}
	p := promptOf(5, numbered(40, 100)...) // other bytes, and so other keys, that are rendered to the same tokens
	b.Teach(Lesson{Prompt: p, Tokens: tokens})
	b.Apply(0, &BlockEvent{Kind: BlocksStored, Hashes: []uint64{2}, Tokens: []uint32{5, 5, 5, 5}, BlockTokens: 4})
	b.Apply(0, wholly(e, tokens))
	if got := b.Estimate(p); got.Tokens != 36 || got.Keys != len(p.Keys) {
		t.Errorf("estimate %+v, want 36 tokens and all %d keys", got, len(p.Keys))
	}
}

func TestMemoryIsBounded(t *testing.T) {
	shown := shownKeys{}
	b := NewBlocks(4, 3000, 4*MaxKeys, shown.change(t))
	e := &toyEngine{block: 4, held: map[uint64]int{}}
	rng := rand.New(rand.NewPCG(11, 12))
	for range 3000 {
		text := make([]byte, 40)
		for i := range text {
			text[i] = byte(rng.IntN(256))
		}
		tokens := tokensOf(text)
		b.Apply(0, wholly(e, tokens))
		b.Teach(Lesson{Prompt: promptOf(5, text...), Tokens: tokens})
		b.Apply(0, e.remove(e.hashes(tokens)...))
	}
	if n := b.Stats().Nodes; n > 3000 {
		t.Errorf("%d nodes, want at most 3,000", n)
	}
	if n := len(b.renderings.keys); n > 4*MaxKeys {
		t.Errorf("%d keys, want at most %d", n, 4*MaxKeys)
	}
}

// TestStreamWithoutRemovalsIsBounded: what the engine says that it holds is not believed without end.
func TestStreamWithoutRemovalsIsBounded(t *testing.T) {
	const most = 100
	b, e := NewBlocks(4, most, 0, shownKeys{}.change(t)), &toyEngine{block: 4, held: map[uint64]int{}}
	for i := range 10 * most {
		b.Apply(0, wholly(e, []uint32{uint32(i), 1, 2, 3, 4, 5, 6, 7}))
	}
	if s := b.Stats(); s.Nodes != overfull*most || s.Odd == 0 {
		t.Errorf("%+v, want %d nodes", s, overfull*most)
	}
	b.Apply(0, &BlockEvent{Kind: BlocksCleared})
	b.Apply(0, wholly(e, []uint32{1, 1, 2, 3}))
	if n := b.Stats().Nodes; n != 1 {
		t.Errorf("%d nodes after the engine was cleared and stored one block", n)
	}
}

func BenchmarkSingleTokenBlocks(b *testing.B) {
	x := NewBlocks(1, 1<<22, 1<<16, func(Tier, Key, bool) {})
	token := []uint32{0}
	hash := []uint64{0}
	ev := BlockEvent{Kind: BlocksStored, Hashes: hash, Tokens: token, BlockTokens: 1}
	gone := BlockEvent{Kind: BlocksRemoved, Hashes: []uint64{0}}
	b.ReportAllocs()
	for i := range b.N {
		token[0], hash[0] = uint32(i), uint64(i)+1
		ev.HasParent, ev.Parent = i%1000 != 0, uint64(i)
		x.Apply(0, &ev)
		if i > 1_000_000 {
			gone.Hashes[0] = uint64(i - 1_000_000)
			x.Apply(0, &gone)
		}
	}
}
