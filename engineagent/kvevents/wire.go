package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// Bounds of one message. A step of an engine stores what one prefill computes: thousands of tokens, and a page of
// SGLang may be a single one.
const (
	MaxPayload = 64 << 20
	maxEvents  = 1 << 20
	maxItems   = 4 << 20 // of one list, and hashes and tokens of one event
	maxText    = 64 << 10
	maxDepth   = 16
)

var (
	errShort  = errors.New("it ends in the middle of a value")
	errLead   = errors.New("0xc1 begins no value")
	errBounds = fmt.Errorf("more than %d bytes, %d events, %d items in a list, %d bytes in a text, or %d levels",
		MaxPayload, maxEvents, maxItems, maxText, maxDepth)
)

// widths are the bytes of a value by its first one, 0 where more must be read to know them.
var widths = func() (w [256]uint8) {
	for lead := range 0x80 {
		w[lead] = 1      // 0 to 127
		w[lead|0x80] = 1 // -32 to -1, and others that are set below
	}
	for lead := 0x81; lead < 0xa0; lead++ {
		w[lead] = 0 // maps and lists that are not empty
	}
	w[0x90] = 1
	for n := range 32 {
		w[0xa0+n] = uint8(1 + n) // short texts
	}
	copy(w[0xc0:0xe0], []uint8{
		1, 0, 1, 1, // nil, nothing, false, true
		0, 0, 0, 0, 0, 0, // binary, extensions
		5, 9, // floats
		2, 3, 5, 9, 2, 3, 5, 9, // integers
		3, 4, 6, 10, 18, // extensions of a fixed size
		0, 0, 0, 0, 0, 0, 0, // texts, lists, maps
	})
	return w
}()

// take splits p into its first value and the rest. The value is well-formed and within bounds, all that is in it too.
func take(p []byte, depth int) (value, rest []byte, err error) {
	rest, err = skip(p, depth)
	if err != nil {
		return nil, nil, err
	}
	return p[:len(p)-len(rest)], rest, nil
}

// skip returns what follows the first value of p, which lies depth levels deep.
func skip(p []byte, depth int) ([]byte, error) {
	if len(p) == 0 {
		return nil, errShort
	}
	if n := int(widths[p[0]]); n > 0 {
		if len(p) < n {
			return nil, errShort
		}
		return p[n:], nil
	}
	head, bytes, items, err := extent(p)
	switch {
	case err != nil:
		return nil, err
	case len(p)-head < bytes || len(p)-head < items: // an item takes a byte at least
		return nil, errShort
	case bytes > maxText || items > maxItems || items > 0 && depth >= maxDepth:
		return nil, errBounds
	}
	p = p[head+bytes:]
	for range items {
		if len(p) > 0 { // a token, mostly
			if n := int(widths[p[0]]); n > 0 && n <= len(p) {
				p = p[n:]
				continue
			}
		}
		if p, err = skip(p, depth+1); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// extent reads the head of a value whose first byte does not tell its width: the bytes of its head, and either the
// bytes or the items that follow.
func extent(p []byte) (head, bytes, items int, err error) {
	switch lead := p[0]; lead {
	case 0xc1:
		return 0, 0, 0, errLead
	case 0xc4, 0xd9: // binary, text
		head, bytes = size(p, 1)
	case 0xc5, 0xda:
		head, bytes = size(p, 2)
	case 0xc6, 0xdb:
		head, bytes = size(p, 4)
	case 0xc7, 0xc8, 0xc9: // extension, with a byte for its type
		head, bytes = size(p, 1<<(lead-0xc7))
		bytes++
	case 0xdc: // list
		head, items = size(p, 2)
	case 0xdd:
		head, items = size(p, 4)
	case 0xde: // map
		head, items = size(p, 2)
		items *= 2
	case 0xdf:
		head, items = size(p, 4)
		items *= 2
	default: // a short list, or a short map
		head, items = 1, int(lead&0xf)
		if lead < 0x90 {
			items *= 2
		}
	}
	if head == 0 {
		return 0, 0, 0, errShort
	}
	return head, bytes, items, nil
}

// size reads a big-endian number of so many bytes after the first one. head is 0 when p is too short.
func size(p []byte, width int) (head, n int) {
	if len(p) <= width {
		return 0, 0
	}
	switch width {
	case 1:
		return 2, int(p[1])
	case 2:
		return 3, int(binary.BigEndian.Uint16(p[1:]))
	default:
		return 5, int(min(binary.BigEndian.Uint32(p[1:]), math.MaxInt32/2))
	}
}

// list reads the head of a list. ok is false when p is none.
func list(p []byte) (n int, rest []byte, ok bool) {
	if len(p) == 0 {
		return 0, nil, false
	}
	head := 0
	switch lead := p[0]; {
	case lead&0xf0 == 0x90:
		head, n = 1, int(lead&0xf)
	case lead == 0xdc:
		head, n = size(p, 2)
	case lead == 0xdd:
		head, n = size(p, 4)
	}
	return n, p[head:], head > 0
}

// text returns the bytes of a text, which is whole. ok is false when v is none.
func text(v []byte) (s []byte, ok bool) {
	if len(v) == 0 {
		return nil, false
	}
	head := 0
	switch lead := v[0]; {
	case lead&0xe0 == 0xa0:
		head = 1
	case lead == 0xd9:
		head, _ = size(v, 1)
	case lead == 0xda:
		head, _ = size(v, 2)
	case lead == 0xdb:
		head, _ = size(v, 4)
	}
	return v[head:], head > 0
}

// missing reports whether a field is not there, or nil.
func missing(v []byte) bool { return len(v) == 0 || msgp.IsNil(v) }

// count reads a number from 0 to most; a missing one is 0.
func count(v []byte, most int64) (n int, ok bool) {
	if missing(v) {
		return 0, true
	}
	i, _, err := msgp.ReadInt64Bytes(v)
	return int(i), err == nil && i >= 0 && i <= most
}
