package cachestate

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// A delta is told shorter by the keys that came and went than by the bits that they flipped: a key is 33 bits at the default
// geometry, and its five locations, each coded by itself, twice that. The bits of a key that came are all set afterwards. Of
// one that went, those are named that no other key holds. A list of keys is written as
//
//	keys = count uvarint ‖ parameter byte ‖ size uvarint ‖ size bytes of codes
//
// A code is the gap between first locations in Rice's code, as in a list of bits but without taking one off, then half of the
// step to the next location, whose lowest bit is always set, then, of keys that went, a bit for each location.

// keyBits is what of a key is told: enough for its locations.
type keyBits struct {
	at, step uint32 // the first location, and the way to the next; step is odd
	named    uint8  // bit i: location i is meant
}

// keyBitsOf returns a key of which all locations are meant.
func (g Geometry) keyBitsOf(k Key) keyBits {
	mask := g.Bits - 1
	return keyBits{at: uint32(k) & mask, step: (uint32(k>>32) | 1) & mask, named: uint8(1<<g.Hashes - 1)}
}

// appendLocations appends those that are meant.
func (g Geometry) appendLocations(list []uint32, k keyBits) []uint32 {
	for named := k.named; named != 0; named &= named - 1 {
		list = append(list, (k.at+uint32(bits.TrailingZeros8(named))*k.step)&(g.Bits-1))
	}
	return list
}

// stepBits is how many bits half of a step takes.
func (g Geometry) stepBits() uint8 { return uint8(bits.TrailingZeros32(g.Bits)) - 1 }

// namedBits is how many bits tell which locations are meant.
func (g Geometry) namedBits(went bool) uint8 {
	if went {
		return g.Hashes
	}
	return 0
}

// codeBits returns how many bits the codes of keys take, which are in the order of at.
func (g Geometry) codeBits(keys []keyBits, parameter uint8, went bool) int {
	total, last := 0, uint32(0)
	for _, k := range keys {
		total += int((k.at-last)>>parameter) + 1
		last = k.at
	}
	return total + len(keys)*int(parameter+g.stepBits()+g.namedBits(went))
}

// keysBytes returns the size of the wire form of keys.
func (g Geometry) keysBytes(keys []keyBits, went bool) int {
	codes := (g.codeBits(keys, riceParameter(len(keys), g.Bits), went) + 7) / 8
	return uvarintBytes(uint64(len(keys))) + 1 + uvarintBytes(uint64(codes)) + codes
}

func appendKeys(b []byte, g Geometry, keys []keyBits, went bool) []byte {
	k := riceParameter(len(keys), g.Bits)
	b = binary.AppendUvarint(b, uint64(len(keys)))
	b = append(b, k)
	b = binary.AppendUvarint(b, uint64((g.codeBits(keys, k, went)+7)/8))
	w := bitWriter{b: b}
	last := uint32(0)
	for _, key := range keys {
		gap := key.at - last
		w.unary(gap >> k)
		w.low(gap, k)
		w.low(key.step>>1, g.stepBits())
		w.low(uint32(key.named), g.namedBits(went))
		last = key.at
	}
	return w.flush()
}

// parseKeys reads keys and returns their locations, ascending. A code's least bits bound the count by the bytes that are there
// before anything is allocated.
func parseKeys(r *engine.Reader, g Geometry, went bool) ([]uint32, error) {
	n := r.Int(uint64(g.Bits))
	parameter := r.Byte()
	codes := r.Bytes(MaxBits)
	if err := r.Err(); err != nil {
		return nil, err
	}
	least := int(parameter) + 1 + int(g.stepBits()+g.namedBits(went))
	if parameter > maxRice || n*least > len(codes)*8 || n == 0 && len(codes) > 0 {
		return nil, errCodes
	}
	list := make([]uint32, 0, n*int(g.Hashes))
	reader, at := bitReader{b: codes}, uint64(0)
	for range n {
		high, ok := reader.unary()
		low, ok2 := reader.low(parameter)
		at += uint64(high)<<parameter + uint64(low)
		k, ok3 := reader.rest(g, went)
		if !ok || !ok2 || !ok3 || at >= uint64(g.Bits) {
			return nil, errCodes
		}
		k.at = uint32(at)
		list = g.appendLocations(list, k)
	}
	if (reader.pos+7)/8 != len(codes) {
		return nil, errCodes
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// rest reads what follows the first location of a key.
func (r *bitReader) rest(g Geometry, went bool) (k keyBits, ok bool) {
	half, ok := r.low(g.stepBits())
	k = keyBits{step: half<<1 | 1, named: uint8(1<<g.Hashes - 1)}
	if went {
		named, ok2 := r.low(g.Hashes)
		k.named, ok = uint8(named), ok && ok2
	}
	return k, ok
}

// cover returns the keys among came and went that tell a delta: the bits of the ones contain Set and are all set at its end,
// the named bits of the others contain Clear and are all clear. It returns false when there are no such keys.
func (d *Delta) cover(came, went []Key, isSet func(at uint32) bool) (in, out []keyBits, ok bool) {
	in, ok = d.pick(d.Set, came, func(at uint32) bool { return !isSet(at) })
	if !ok {
		return nil, nil, false
	}
	out, ok = d.pick(d.Clear, went, nil)
	return in, out, ok
}

// pick returns keys whose bits contain a list. Keys with a bit that is ruled out are not taken; where none is, of each key those
// bits are named that the list has and no key before names.
func (d *Delta) pick(list []uint32, keys []Key, ruledOut func(at uint32) bool) (picked []keyBits, ok bool) {
	found, missing := make([]bool, len(list)), len(list)
	var at [MaxHashes]uint32
	for _, key := range keys {
		d.Geometry.Locations(key, &at)
		all := at[:d.Geometry.Hashes]
		if ruledOut != nil && slices.ContainsFunc(all, ruledOut) {
			continue
		}
		named := uint8(0)
		for h, a := range all {
			if i, ok := slices.BinarySearch(list, a); ok && !found[i] {
				found[i] = true
				named |= 1 << h
				missing--
			}
		}
		if named == 0 {
			continue
		}
		k := d.Geometry.keyBitsOf(key)
		if ruledOut == nil {
			k.named = named
		}
		picked = append(picked, k)
	}
	slices.SortFunc(picked, func(a, b keyBits) int { return int(int64(a.at) - int64(b.at)) })
	return picked, missing == 0
}
