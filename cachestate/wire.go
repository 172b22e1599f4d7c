package cachestate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// The bodies of an encoded delta.
const (
	bodyLists byte = iota // two lists: set, clear
	bodyList              // a whole digest as the list of its set bits
	bodyWords             // a whole digest as its words, little endian
	bodyKeys              // two lists of keys: came, went
)

// maxName bounds an engine's name on the wire, as internal/engine does.
const maxName = 256

// AppendDelta appends the wire form of d; DESIGN.md draws it. The name of the engine's owner is not in it: the carrier
// of the message vouches for its sender. A whole digest is written as a list or as words, whichever is shorter.
func AppendDelta(b []byte, d *Delta) []byte {
	start := len(b)
	b = appendFields(b, d)
	var size [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(size[:], uint64(len(b)-start))
	return slices.Insert(b, start, size[:n]...)
}

func appendFields(b []byte, d *Delta) []byte { return appendBody(appendHead(b, d), d) }

func appendHead(b []byte, d *Delta) []byte {
	b = engine.AppendString(b, d.Engine.Name())
	b = append(b, byte(d.Tier))
	b = binary.AppendUvarint(b, uint64(d.Generation))
	b = AppendGeometry(b, d.Geometry)
	b = binary.AppendUvarint(b, d.To)
	b = binary.AppendUvarint(b, d.To-d.From)
	b = binary.LittleEndian.AppendUint64(b, d.Checksum)
	return binary.AppendUvarint(b, uint64(d.Keys))
}

// AppendGeometry appends the wire form of g: log2 of its bits, its hashes.
func AppendGeometry(b []byte, g Geometry) []byte {
	return append(b, byte(bits.TrailingZeros32(g.Bits)), g.Hashes)
}

// ReadGeometry reads what AppendGeometry wrote. It may be of no use: see Geometry.Validate.
func ReadGeometry(r *engine.Reader) Geometry {
	return Geometry{Bits: 1 << min(r.Byte(), 31), Hashes: r.Byte()}
}

func appendBody(b []byte, d *Delta) []byte {
	size := d.Geometry.Bits
	if !d.Full() {
		if d.shorterByKeys() {
			b = appendKeys(append(b, bodyKeys), d.Geometry, d.came, false)
			return appendKeys(b, d.Geometry, d.went, true)
		}
		b = appendList(append(b, bodyLists), d.Set, size)
		return appendList(b, d.Clear, size)
	}
	if list := setBits(d.Words); listBytes(list, size) < int(size/8) {
		return appendList(append(b, bodyList), list, size)
	}
	b = append(b, bodyWords)
	for _, w := range d.Words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// shorterByKeys reports whether keys are worth the work that they make at the other end.
func (d *Delta) shorterByKeys() bool {
	if !d.covered {
		return false
	}
	lists := listBytes(d.Set, d.Geometry.Bits) + listBytes(d.Clear, d.Geometry.Bits)
	return d.Geometry.keysBytes(d.came, false)+d.Geometry.keysBytes(d.went, true) < lists*7/8
}

// ErrGeometry is returned for a delta of another geometry than the mesh's.
var ErrGeometry = errors.New("digest of another geometry")

// ParseDelta reads one delta of an engine of owner and returns the bytes after it. What it returns keeps nothing of b. Fields
// that a newer version writes behind those known here are skipped. The geometries that the mesh takes digests of must be valid.
// A delta of another one is an ErrGeometry before its body is looked at, so that at most 43 times what was given is allocated,
// and for a whole digest an eighth of its bits; of it alone the engine and the bytes after it are returned.
func ParseDelta(b []byte, owner string, taken ...Geometry) (d Delta, rest []byte, err error) {
	r := engine.NewReader(b)
	fields := r.Bytes(math.MaxInt32)
	if err = r.Err(); err == nil {
		d, err = parseFields(fields, owner, taken)
	}
	if errors.Is(err, ErrGeometry) {
		return Delta{Engine: d.Engine}, r.Rest(), fmt.Errorf("parse delta: %w", err)
	}
	if err != nil {
		return Delta{}, nil, fmt.Errorf("parse delta: %w", err)
	}
	return d, r.Rest(), nil
}

func parseFields(b []byte, owner string, taken []Geometry) (d Delta, err error) {
	r := engine.NewReader(b)
	body := parseHead(r, &d, owner)
	if err = r.Err(); err != nil {
		return d, err
	}
	if !slices.Contains(taken, d.Geometry) {
		return d, fmt.Errorf("%w: %v in a mesh of %v", ErrGeometry, d.Geometry, taken)
	}
	if err = parseBody(r, &d, body); err != nil {
		return d, err
	}
	return d, d.validate()
}

// parseHead reads what stands before the body, and the body's kind.
func parseHead(r *engine.Reader, d *Delta, owner string) (body byte) {
	d.Engine = engine.MakeID(owner, r.Name(maxName))
	d.Tier = Tier(r.Byte())
	d.Generation = engine.Generation(r.Uvarint())
	d.Geometry = ReadGeometry(r)
	d.To = r.Uvarint()
	d.From = d.To - r.Uvarint() // wraps above To when the difference lies; validate refuses that
	d.Checksum = r.Uint64()
	d.Keys = uint32(r.Int(math.MaxUint32))
	return r.Byte()
}

func parseBody(r *engine.Reader, d *Delta, body byte) (err error) {
	size := d.Geometry.Bits
	switch body {
	case bodyLists:
		if d.Set, err = parseList(r, size); err == nil {
			d.Clear, err = parseList(r, size)
		}
	case bodyKeys:
		if d.Set, err = parseKeys(r, d.Geometry, false); err == nil {
			d.Clear, err = parseKeys(r, d.Geometry, true)
		}
	case bodyList:
		var list []uint32
		if list, err = parseList(r, size); err == nil {
			d.Words = wordsOf(list, d.Geometry)
		}
	case bodyWords:
		d.Words, err = parseWords(r, d.Geometry.words())
	default:
		err = errors.New("unknown body")
	}
	return err
}

func parseWords(r *engine.Reader, n int) ([]uint64, error) {
	if len(r.Rest()) < n*8 {
		return nil, engine.ErrTruncated
	}
	words := make([]uint64, n)
	for i := range words {
		words[i] = r.Uint64()
	}
	return words, r.Err()
}

func wordsOf(list []uint32, g Geometry) []uint64 {
	words := make([]uint64, g.words())
	for _, at := range list {
		words[at/64] |= 1 << (at % 64)
	}
	return words
}

// setBits lists the bits of words that are set, ascending.
func setBits(words []uint64) []uint32 {
	n := 0
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	list := make([]uint32, 0, n)
	for i, w := range words {
		for ; w != 0; w &= w - 1 {
			list = append(list, uint32(i*64+bits.TrailingZeros64(w)))
		}
	}
	return list
}
