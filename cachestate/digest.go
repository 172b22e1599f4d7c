package cachestate

import (
	"math"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Digest is the owner's side of one digest: the Bloom filter of one engine's residency in one tier, with a counter
// behind every bit so that keys can leave, and with the memory of its past versions. It is for one goroutine.
type Digest struct {
	engine     engine.ID
	tier       Tier
	generation engine.Generation
	geometry   Geometry

	filter *filter
	counts []uint8 // keys behind each bit. Invariant: a bit is set if and only if its count is not 0
	keys   int
	ones   int    // bits set now
	sum    uint64 // checksum now

	version   uint64   // last published
	published uint64   // checksum of that version
	flipped   []uint64 // words of the bits that differ from the published version
	moved     moves    // keys since that version
	history   history
}

// saturated is a counter that has lost count. It stays, and so does its bit, as long as the digest: with half the bits
// set, a counter reaches 255 by chance less than once in 10^400.
const saturated = math.MaxUint8

// NewDigest returns the empty digest of one life of an engine's cache, at version 0. A restart of the engine needs a
// new one, with a higher generation. The geometry must be valid.
func NewDigest(id engine.ID, t Tier, gen engine.Generation, g Geometry) *Digest {
	return &Digest{
		engine: id, tier: t, generation: gen, geometry: g,
		filter:  newFilter(g),
		counts:  make([]uint8, g.Bits),
		flipped: make([]uint64, g.words()),
	}
}

// Add says that the engine now holds k. A key that is added twice must be removed twice.
func (d *Digest) Add(k Key) {
	d.keys++
	d.moved.add([]Key{k}, nil, d.maxMoves())
	var at [MaxHashes]uint32
	d.geometry.Locations(k, &at)
	for _, a := range at[:d.geometry.Hashes] {
		if d.counts[a] == 0 {
			d.flip(a, true)
		}
		if d.counts[a] < saturated {
			d.counts[a]++
		}
	}
}

// Remove says that the engine no longer holds k, which was added before.
func (d *Digest) Remove(k Key) {
	d.keys = max(d.keys-1, 0)
	d.moved.add(nil, []Key{k}, d.maxMoves())
	var at [MaxHashes]uint32
	d.geometry.Locations(k, &at)
	for _, a := range at[:d.geometry.Hashes] {
		if d.counts[a] == 0 || d.counts[a] == saturated {
			continue
		}
		if d.counts[a]--; d.counts[a] == 0 {
			d.flip(a, false)
		}
	}
}

func (d *Digest) flip(at uint32, on bool) {
	d.filter.set(at, on)
	d.flipped[at/64] ^= 1 << (at % 64)
	if on {
		d.ones++
		d.sum += mixLocation(at)
	} else {
		d.ones--
		d.sum -= mixLocation(at)
	}
}

// maxMoves is how many keys of a version are kept, of those that came and of those that went. The bits that more of them flip
// lie so close that a list of bits is shorter.
func (d *Digest) maxMoves() int { return int(d.geometry.Bits / 64) }

// Fill returns the share of bits that are set, 0 to 1. Peers take a digest above MaxFill for unknown.
func (d *Digest) Fill() float64 { return float64(d.ones) / float64(d.geometry.Bits) }

// Version returns the version that was published last.
func (d *Digest) Version() Version {
	return Version{Generation: d.generation, Number: d.version, Checksum: d.published}
}

// Publish makes the changes since the last version a version of their own and returns the way to it: their delta, or
// the whole digest when that is shorter. Without changes the version stays and the delta is empty, so that its version
// and checksum can still be told. The time is kept to forget old versions by.
func (d *Digest) Publish(now time.Time) Delta {
	flips, moved := setBits(d.flipped), d.moved
	d.moved = moves{}
	if len(flips) == 0 {
		return d.delta(d.version)
	}
	clear(d.flipped)
	d.version++
	d.published = d.sum
	d.history.add(step{to: d.version, at: now, flips: flips, keys: moved}, int(d.geometry.Bits/flipsPerFull))
	if delta, ok := d.Since(d.version - 1); ok {
		return delta
	}
	return d.Full()
}

// Full returns the whole digest at the last published version.
func (d *Digest) Full() Delta {
	delta := d.delta(0)
	delta.Words = make([]uint64, d.geometry.words())
	for i, w := range d.filter.words() {
		delta.Words[i] = w ^ d.flipped[i]
	}
	return delta
}

// Since returns the way from a version of this generation to the last published one, or false when it is not
// remembered, is ahead, or would be longer than the whole digest.
func (d *Digest) Since(version uint64) (Delta, bool) {
	flips, ok := d.history.since(version, d.version)
	if !ok || len(flips) > max(d.ones, 1) { // a whole digest lists d.ones bits
		return Delta{}, false
	}
	delta := d.delta(version)
	for _, at := range flips {
		if d.isPublished(at) {
			delta.Set = append(delta.Set, at)
		} else {
			delta.Clear = append(delta.Clear, at)
		}
	}
	if moved := d.history.movesSince(version, d.version, d.maxMoves()); !moved.many {
		delta.came, delta.went, delta.covered = delta.cover(moved.came, moved.went, d.isPublished)
	}
	return delta, true
}

// isPublished reports whether a bit is set in the published version.
func (d *Digest) isPublished(at uint32) bool {
	return d.filter.test(at) != (d.flipped[at/64]>>(at%64)&1 == 1)
}

// delta returns what every delta to the published version says.
func (d *Digest) delta(from uint64) Delta {
	return Delta{
		Engine: d.engine, Tier: d.tier, Generation: d.generation, Geometry: d.geometry,
		From: from, To: d.version, Checksum: d.published, Keys: uint32(min(d.keys, math.MaxUint32)),
	}
}
