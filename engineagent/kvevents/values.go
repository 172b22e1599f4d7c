package kvevents

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// readHashes reads a list of hashes.
func (d *Decoder) readHashes(p []byte) ([]uint64, bool) {
	n, p, ok := list(p)
	if !ok {
		return nil, false
	}
	from := len(d.hashes)
	d.hashes = slices.Grow(d.hashes, n)
	for range n {
		var h uint64
		if h, p, ok = readHash(p); !ok {
			return nil, false
		}
		d.hashes = append(d.hashes, h)
	}
	return d.hashes[from:len(d.hashes):len(d.hashes)], true
}

// readHash reads the first value of p: an integer, signed (SGLang, TensorRT-LLM) or not (vLLM), or a digest, of which
// vLLM's own integers are the last eight bytes.
func readHash(p []byte) (h uint64, rest []byte, ok bool) {
	switch msgp.NextType(p) {
	case msgp.UintType:
		if p[0] == 0xcf && len(p) > 8 { // most are as large as that
			return binary.BigEndian.Uint64(p[1:]), p[9:], true
		}
		h, rest, err := msgp.ReadUint64Bytes(p)
		return h, rest, err == nil
	case msgp.IntType:
		v, rest, err := msgp.ReadInt64Bytes(p)
		return uint64(v), rest, err == nil
	case msgp.BinType:
		digest, rest, err := msgp.ReadBytesZC(p)
		for _, c := range digest[max(0, len(digest)-8):] {
			h = h<<8 | uint64(c)
		}
		return h, rest, err == nil
	default:
		return 0, nil, false
	}
}

// readTokens reads a list of token ids; nil is an empty one.
func (d *Decoder) readTokens(p []byte) ([]uint32, bool) {
	if len(p) > 0 && missing(p) {
		return nil, true
	}
	n, p, ok := list(p)
	if !ok {
		return nil, false
	}
	from := len(d.tokens)
	d.tokens = slices.Grow(d.tokens, n)
	for range n {
		var id uint32
		switch { // most ids, quickly
		case len(p) > 0 && p[0] < 0x80:
			id, p = uint32(p[0]), p[1:]
		case len(p) > 2 && p[0] == 0xcd:
			id, p = uint32(binary.BigEndian.Uint16(p[1:])), p[3:]
		case len(p) > 4 && p[0] == 0xce:
			id, p = binary.BigEndian.Uint32(p[1:]), p[5:]
		default:
			if id, p, ok = readToken(p); !ok {
				return nil, false
			}
		}
		d.tokens = append(d.tokens, id)
	}
	return d.tokens[from:len(d.tokens):len(d.tokens)], true
}

// readToken reads the first value of p: an id, which may be negative, or a pair of ids. With EAGLE, SGLang holds a token
// together with the next one; prompts are taught by single ids, so the first of the two stands for the pair.
func readToken(p []byte) (id uint32, rest []byte, ok bool) {
	n, inner, pair := list(p)
	if !pair {
		return readID(p)
	}
	if n != 2 {
		return 0, nil, false
	}
	first, inner, ok := readID(inner)
	if !ok {
		return 0, nil, false
	}
	_, rest, ok = readID(inner)
	return first, rest, ok
}

func readID(p []byte) (id uint32, rest []byte, ok bool) {
	v, rest, err := msgp.ReadInt64Bytes(p)
	return uint32(v), rest, err == nil && v >= math.MinInt32 && v <= math.MaxUint32
}
