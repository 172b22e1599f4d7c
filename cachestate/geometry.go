package cachestate

import (
	"errors"
	"fmt"
	"math/bits"
)

// Geometry is the shape that all digests of a mesh share, so that one row of the peer index means the same bit for
// every engine.
type Geometry struct {
	Bits   uint32 // of a digest; a power of two
	Hashes uint8  // bits that stand for a key
}

// The limits of a geometry. They bound what a peer can make us allocate: 2^24 bits are 2 MiB, enough for 1.6 million
// keys.
const (
	MinBits   = 1 << 6
	MaxBits   = 1 << 24
	MaxHashes = 8
)

// DefaultGeometry has 10 bits a key for 13,000 keys, one and a half times what an engine with two million tokens of
// KV memory holds. With five hashes a walk over 8,000 keys is misled by one probe in 700, which costs nothing
// measurable, because a walk stops at the first miss. Fewer bits mislead more; more make digests sparse, and each
// change longer on the wire.
func DefaultGeometry() Geometry { return Geometry{Bits: 1 << 17, Hashes: 5} }

// MaxKeys is how many keys a digest takes with about one false hit in forty: 8 bits a key.
func (g Geometry) MaxKeys() int { return int(g.Bits / 8) }

// Validate reports every way in which g cannot be used.
func (g Geometry) Validate() error {
	var errs []error
	if g.Bits < MinBits || g.Bits > MaxBits || bits.OnesCount32(g.Bits) != 1 {
		errs = append(errs, fmt.Errorf("bits (%d) must be a power of two from %d to %d", g.Bits, MinBits, MaxBits))
	}
	if g.Hashes < 1 || g.Hashes > MaxHashes {
		errs = append(errs, fmt.Errorf("hashes (%d) must be from 1 to %d", g.Hashes, MaxHashes))
	}
	return errors.Join(errs...)
}

// String returns the geometry as operators read it.
func (g Geometry) String() string { return fmt.Sprintf("%d bits and %d hashes", g.Bits, g.Hashes) }

// Locations fills the first Hashes elements of out with the bits that stand for k:
//
//	location i = (low + i × (high | 1)) mod Bits
//
// where low and high are the halves of k (double hashing, Kirsch and Mitzenmacher 2006). Keys are hashes already, so
// nothing more is mixed in. The step is odd and Bits a power of two, so the locations of one key all differ.
func (g Geometry) Locations(k Key, out *[MaxHashes]uint32) {
	at, step, mask := uint32(k), uint32(k>>32)|1, g.Bits-1
	for i := range min(g.Hashes, MaxHashes) {
		out[i] = at & mask
		at += step
	}
}

func (g Geometry) words() int { return int(g.Bits / 64) }

// mixLocation is what a set bit adds to a digest's checksum: the splitmix64 finisher of its location. The checksum is
// the sum over all set bits modulo 2^64, so that a flip changes it in one step, in any order.
func mixLocation(at uint32) uint64 {
	z := (uint64(at) + 1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
