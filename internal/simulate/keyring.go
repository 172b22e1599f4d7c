package simulate

import (
	"encoding/binary"

	"github.com/kvmesh/kvmesh/cachestate"
)

// bytesPerToken is what a prompt weighs here: English text.
const bytesPerToken = 4

// The fields of a simulated canonical prompt.
const (
	fieldModel   byte = 0x10
	fieldContent byte = 0x40
)

// keyring turns prompts of blocks into production keys, and knows which keys lie in which block. An owner learns the keys
// of a block from the prompts that it serves.
type keyring struct {
	scheme      cachestate.Scheme
	blockTokens int
	covered     bool
	of          []keySpan // by block
	keys        []cachestate.Key
	text        []byte // scratch: one block's content
}

type keySpan struct {
	first uint32
	n     uint32
}

func newKeyring(w *world) *keyring {
	return &keyring{
		scheme: cachestate.DefaultScheme(), blockTokens: w.blockTokens, covered: w.trace.covered,
		text: make([]byte, w.blockTokens*bytesPerToken),
	}
}

// prompt computes the keys of r's prompt into p.
func (k *keyring) prompt(r *request, p *cachestate.Prompt) {
	k.scheme.Prompt(func(yield func(byte, []byte) bool) { k.walk(r, yield) }, p)
}

// walk is the canonical prompt of r: one message to each of its ends, or one message that is not closed where the trace
// tells no ends.
func (k *keyring) walk(r *request, yield func(byte, []byte) bool) {
	yield(fieldModel, []byte(modelName))
	yield(fieldModel|cachestate.CloseField, nil)
	yield(cachestate.EndRoot, nil)
	ends, at := r.ends, 0
	for at < r.input {
		i := at / k.blockTokens
		first := i * k.blockTokens
		size := min(k.blockTokens, r.input-first)
		text := k.content(r.block(i), size)[(at-first)*bytesPerToken:]
		n := first + size - at
		if len(ends) > 0 {
			n = min(n, ends[0]-at)
		}
		yield(fieldContent, text[:n*bytesPerToken])
		at += n
		if len(ends) > 0 && at == ends[0] {
			ends = ends[1:]
			yield(fieldContent|cachestate.CloseField, nil)
			yield(cachestate.EndMessage, nil)
		}
	}
}

// content is the text of the first tokens of a block: numbers that the block's own seeds, so that other blocks differ in
// every eight bytes.
func (k *keyring) content(b block, tokens int) []byte {
	seed := mix(uint64(b))
	text := k.text[:tokens*bytesPerToken]
	for i := 0; i+8 <= len(text); i += 8 {
		seed = seed*0x5851f42d4c957f2d + 0x14057b7ef767814f
		binary.LittleEndian.PutUint64(text[i:], seed)
	}
	return text
}

// home returns the block that a key at an offset, in canonical bytes, lies in; -1 for one that lies in none.
func (k *keyring) home(offset uint32) int {
	size := uint32(k.blockTokens * bytesPerToken)
	if k.covered {
		return int((offset+size-1)/size) - 1
	}
	return int(offset/size) - 1
}

// learn notes which blocks of the chain the prompt's keys lie in. Blocks that are known to have keys may get more: another
// prompt had ended within them.
func (k *keyring) learn(p *cachestate.Prompt, chain []block) {
	for i := 0; i < len(p.Keys); {
		home := k.home(p.Offsets[i])
		end := i + 1
		for end < len(p.Keys) && k.home(p.Offsets[end]) == home {
			end++
		}
		if home >= 0 && home < len(chain) {
			k.add(chain[home], p.Keys[i:end])
		}
		i = end
	}
}

func (k *keyring) add(b block, keys []cachestate.Key) {
	for int(b) >= len(k.of) {
		k.of = append(k.of, keySpan{})
	}
	s := &k.of[b]
	if int(s.n) >= len(keys) {
		return
	}
	known := k.keys[s.first : s.first+s.n]
	if int(s.first+s.n) != len(k.keys) { // move to the end, where there is room
		s.first = uint32(len(k.keys))
		k.keys = append(k.keys, known...)
	}
	k.keys = append(k.keys, keys[s.n:]...)
	s.n = uint32(len(keys))
}

// lying returns the keys that are known to lie in b.
func (k *keyring) lying(b block) []cachestate.Key {
	if int(b) >= len(k.of) {
		return nil
	}
	s := k.of[b]
	return k.keys[s.first : s.first+s.n]
}

// advertise puts into the digest what is known to lie in a resident block and is not in it yet. The key of the root is
// there as long as any block is resident.
func (n *node) advertise(b block, e *cacheEntry) {
	keys := n.w.keys.lying(b)
	for _, key := range keys[e.advertised:] {
		n.digest.Add(key)
	}
	e.advertised = int32(len(keys))
}

// withdraw takes out what advertise put in.
func (n *node) withdraw(b block, e *cacheEntry) {
	for _, key := range n.w.keys.lying(b)[:e.advertised] {
		n.digest.Remove(key)
	}
}

// learn teaches the owner the keys of a prompt that it has accepted. Of blocks that are resident already it tells them at
// once.
func (n *node) learn(p *cachestate.Prompt, chain []block) {
	n.w.keys.learn(p, chain)
	for _, b := range chain {
		i, ok := n.cache.at[b]
		if !ok {
			return
		}
		n.advertise(b, &n.cache.entries[i])
	}
}
