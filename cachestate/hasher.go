package cachestate

import (
	"encoding/binary"
	"math"

	"github.com/cespare/xxhash/v2"
)

// hasher is one pass over a canonical walk. The hash runs over
//
//	field   = tag ‖ bytes ‖ tag|CloseField ‖ length of bytes, 8 bytes little endian
//	prompt  = field* ‖ EndRoot ‖ (field* ‖ EndMessage)* ‖ field*
//
// The length stands behind the bytes, so that a key inside a field depends only on what precedes it. Read from its
// end, the stream can be taken apart in one way only: lengths stay below 2^56, so the last byte of a field is 0.
type hasher struct {
	prompt *Prompt
	yield  func(tag byte, piece []byte) bool // step, bound once

	digest xxhash.Digest
	inRoot bool
	field  byte   // the tag of the open field, 0 when none is
	length uint64 // bytes of the open field
	count  int64  // content bytes after the root
	next   int64  // Invariant: the first boundary above count
	buf    [9]byte
	role   [10]byte // of the message under way, cut off
	named  int      // bytes of it
	dense  classes  // of the content after the root
}

func newHasher(p *Prompt) *hasher {
	h := &hasher{prompt: p}
	h.yield = h.step
	return h
}

func (h *hasher) reset(seed uint64) {
	h.digest.ResetWithSeed(seed)
	h.inRoot, h.field, h.length, h.count, h.next = true, 0, 0, 0, nextBoundary(0)
	h.prompt.Keys, h.prompt.Offsets = h.prompt.Keys[:0], h.prompt.Offsets[:0]
	h.prompt.Odd, h.prompt.High = h.prompt.Odd[:0], h.prompt.High[:0]
	h.prompt.Sure, h.prompt.Turn, h.dense = MaxKeys, TurnUser, classes{}
}

// step takes one pair of the walk.
func (h *hasher) step(tag byte, piece []byte) bool {
	switch {
	case tag == EndRoot:
		h.inRoot = false
		h.mark(tag)
	case tag == EndMessage:
		h.dense.odd += markup
		h.mark(tag)
	case tag&CloseField != 0:
		h.close(tag)
	default:
		h.open(tag)
		h.content(piece)
	}
	return true
}

// write hashes b. It never fails.
func (h *hasher) write(b []byte) { _, _ = h.digest.Write(b) }

// full reports that no key can follow, so that nothing needs to be hashed any more.
func (h *hasher) full() bool { return len(h.prompt.Keys) == MaxKeys }

func (h *hasher) mark(tag byte) {
	h.field = 0
	if h.full() {
		return
	}
	h.buf[0] = tag
	h.write(h.buf[:1])
	if !h.inRoot {
		h.key()
	}
}

func (h *hasher) open(tag byte) {
	if h.field == tag {
		return
	}
	h.field, h.length = tag, 0
	h.buf[0] = tag
	h.write(h.buf[:1])
}

func (h *hasher) close(tag byte) {
	h.open(tag &^ CloseField)
	if h.field == RoleField && h.length > 0 {
		h.enter(string(h.role[:h.named]))
	}
	h.buf[0] = tag
	binary.LittleEndian.PutUint64(h.buf[1:], h.length)
	h.write(h.buf[:])
	h.field = 0
}

// enter notes whose message begins.
func (h *hasher) enter(role string) {
	p := h.prompt
	p.Turn = TurnUser
	switch role {
	case "assistant":
		p.Sure = min(p.Sure, len(p.Keys))
	case "tool":
		p.Turn = TurnTools
	}
}

func (h *hasher) content(piece []byte) {
	if h.field == RoleField {
		if h.length == 0 {
			h.named = 0
		}
		h.named += copy(h.role[h.named:], piece)
	}
	h.length += uint64(len(piece))
	if h.inRoot {
		h.write(piece)
		return
	}
	for len(piece) > 0 && !h.full() {
		n := min(int64(len(piece)), h.next-h.count)
		h.write(piece[:n])
		if !unsampled(h.count, n) {
			h.dense.addAt(h.count, piece[:n])
		}
		h.count += n
		piece = piece[n:]
		if h.count == h.next {
			h.key()
			h.next = nextBoundary(h.count)
		}
	}
	h.count += int64(len(piece))
}

// key makes a key of what was hashed so far, unless there is one at this offset: a boundary without content before it
// stands for no block.
func (h *hasher) key() {
	p := h.prompt
	if n := len(p.Offsets); n > 0 && int64(p.Offsets[n-1]) == h.count {
		return
	}
	p.Keys = append(p.Keys, Key(h.digest.Sum64()))
	p.Offsets = append(p.Offsets, uint32(min(h.count, math.MaxUint32)))
	p.Odd, p.High = append(p.Odd, h.dense.odd), append(p.High, h.dense.high)
}
