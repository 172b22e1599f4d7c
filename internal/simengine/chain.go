package simengine

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// link is one full block of a token sequence: key identifies the block and everything before it inside this engine, wire
// is the hash that KV events show.
type link struct {
	key  uint64
	wire uint64
}

// chainer computes block chains in the manner of one kind of engine.
type chainer struct {
	kind        string
	seed        uint64
	blockTokens int
	wire        bool // whether SGLang's and TensorRT-LLM's wire hashes, which cost a SHA-256 a block, are wanted
}

// chain returns the links of all full blocks of tokens. realm separates caches; salt is the part of it that SGLang's wire
// hashes show.
func (h *chainer) chain(tokens []Token, realm, salt string) []link {
	links := make([]link, 0, len(tokens)/h.blockTokens)
	root := xxhash.NewWithSeed(h.seed) // vLLM seeds its hashes at random, so they differ from process to process
	_, _ = root.WriteString(realm)     // a hash takes everything
	parent := root.Sum64()
	sha := shaRoot(salt)
	buf := make([]byte, 8+4*h.blockTokens)
	for len(tokens) >= h.blockTokens {
		for i, t := range tokens[:h.blockTokens] {
			binary.LittleEndian.PutUint32(buf[8+4*i:], t)
		}
		binary.LittleEndian.PutUint64(buf, parent)
		parent = xxhash.Sum64(buf)
		l := link{key: parent, wire: parent}
		if h.kind != KindVLLM && h.wire {
			sum := sha256.Sum256(append(sha, buf[8:]...))
			sha = append(sha[:0], sum[:]...)
			l.wire = binary.BigEndian.Uint64(sha)
		}
		links = append(links, l)
		tokens = tokens[h.blockTokens:]
	}
	return links
}

// shaRoot is the start of SGLang's chain: nothing, or the hash of the salt under SGLang's label. LoRA adapters are not
// in it: two adapters show the same hashes for the same tokens, as in the real engine.
func shaRoot(salt string) []byte {
	if salt == "" {
		return nil
	}
	sum := sha256.Sum256([]byte("sglang-cache-salt-v1\x00" + salt))
	return sum[:]
}
