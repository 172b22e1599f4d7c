package simulate

import (
	"slices"
	"testing"

	"github.com/kvmesh/kvmesh/cachestate"
)

func testKeyring(blockTokens int, covered bool) *keyring {
	return &keyring{
		scheme: cachestate.DefaultScheme(), blockTokens: blockTokens, covered: covered, text: make([]byte, blockTokens*bytesPerToken),
	}
}

func TestPromptsShareKeysAsFarAsTheyShareBlocks(t *testing.T) {
	k := testKeyring(traceBlockTokens, true)
	var a, b cachestate.Prompt
	k.prompt(&request{chain: []block{1, 2, 3}, input: 3 * traceBlockTokens}, &a)
	k.prompt(&request{chain: []block{1, 2, 4, 5}, input: 3*traceBlockTokens + 10}, &b)
	same := 0
	for same < len(a.Keys) && a.Keys[same] == b.Keys[same] {
		same++
	}
	// The root's key, then one at every 512 bytes of two blocks of 2,048.
	if same != 1+8 || a.Bytes != 3*traceBlockTokens*bytesPerToken || b.Bytes != a.Bytes+10*bytesPerToken {
		t.Errorf("%d keys in common; %d and %d bytes", same, a.Bytes, b.Bytes)
	}
}

func TestKeysLieInBlocks(t *testing.T) {
	for _, c := range []struct {
		tokens  int
		covered bool
		offset  uint32
		want    int
	}{
		{512, true, 0, -1},
		{512, true, 512, 0},
		{512, true, 2048, 0},
		{512, true, 2049, 1},
		{16, false, 0, -1},
		{16, false, 63, -1},
		{16, false, 64, 0},
		{16, false, 130, 1},
	} {
		if got := testKeyring(c.tokens, c.covered).home(c.offset); got != c.want {
			t.Errorf("blocks of %d: a key at %d lies in block %d; want %d", c.tokens, c.offset, got, c.want)
		}
	}
}

func TestBlocksGetKeysWithLaterPrompts(t *testing.T) {
	k := testKeyring(chatBlockTokens, false)
	var first, second cachestate.Prompt
	chain := make([]block, 30)
	for i := range chain {
		chain[i] = block(i)
	}
	k.prompt(&request{chain: chain[:12], tail: 12, input: 200, ends: []int{64, 200}}, &first)
	k.learn(&first, chain[:12])
	before := len(k.lying(11))
	k.prompt(&request{chain: chain[:25], tail: 25, input: 410, ends: []int{64, 200, 206, 410}}, &second)
	k.learn(&second, chain[:25])
	k.learn(&first, chain[:12])
	total := 0
	for b := range chain {
		total += len(k.lying(block(b)))
	}
	// Message ends at 64, 200, 206 and 410 tokens, and every 512 bytes: 128, 256 and 384 tokens. All lie in whole blocks, the
	// second and third in the same.
	if before != 1 || total != 7 {
		t.Errorf("block 11 had %d keys; there are %d in all", before, total)
	}
	ends := k.lying(11)
	if len(ends) != 2 || !slices.Contains(first.Keys, ends[0]) || !slices.Contains(second.Keys, ends[1]) {
		t.Errorf("block 11 has keys %v", ends)
	}
}

func TestOwnerTellsKeysOfBlocksThatItHoldsAlready(t *testing.T) {
	w := bench(t, "kvmesh", 1, MachineStep)
	n := w.nodes[0]
	first := w.ask(100, 4, 40)
	first.ends = []int{64}
	first.answer = []block{104, 105}
	var p cachestate.Prompt
	w.keys.prompt(first, &p)
	n.learn(&p, first.chain)
	w.give(first)
	w.drain()
	before := n.digest.Fill()
	second := w.ask(100, 6, 1)
	second.ends = []int{64, 90, 96}
	w.keys.prompt(second, &p)
	n.learn(&p, second.chain)
	if n.digest.Fill() <= before {
		t.Error("the keys of the answer are not told, though it is resident")
	}
	if got, ok := n.cache.at[104]; !ok || n.cache.entries[got].advertised == 0 {
		t.Error("the block of the answer's end has no key")
	}
}
