package node

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// What a leader changes the digest geometry by.
const (
	// fullDigest is the fill at which a digest is too small: above it, it has fewer than ten bits a key.
	fullDigest = 0.4
	bitsPerKey = 10
	// fullFor is how long a digest must be that full: a burst of prompts goes by itself.
	fullFor = time.Minute
	// completeFor is how long all must have the next digests before reading moves to them: two digest periods of the
	// largest mesh.
	completeFor = 10 * time.Second
	// incompleteFor is how long they may take. An agent that cannot publish them has an older version.
	incompleteFor = 2 * time.Minute
	// keepFor is how long the old digests are published after that, so that the change can be taken back.
	keepFor = time.Minute
	// restFor is the least time between two changes that nobody asked for.
	restFor = 10 * time.Minute
	// maxIndexBytes bounds the index of a tier that a change nobody asked for may lead to.
	maxIndexBytes = 256 << 20
)

// digestsSeen is what an agent knows of the digests of the engines whose agents it can reach.
type digestsSeen struct {
	engines  int
	fill     float64     // of the fullest digest in the geometry in force
	fullest  engine.ID   // whose that is
	nextFill float64     // likewise in the next one
	missing  []engine.ID // engines of which a digest is not here in the next one
}

// resizer decides when the digest geometry changes. It remembers what has been so for how long; a new leader begins anew.
type resizer struct {
	fullSince, completeSince time.Time
}

// step returns the next command, or false when there is nothing to do.
func (r *resizer) step(c agreed.GeometryChange, seen *digestsSeen, now time.Time) (agreed.Command, bool) {
	var kind agreed.Kind
	switch c.Phase {
	case agreed.PhaseStable:
		return r.grow(c, seen, now)
	case agreed.PhaseBoth:
		r.fullSince = time.Time{}
		kind = r.both(c, seen, now)
	case agreed.PhaseSwitched:
		if now.Sub(c.Since) >= keepFor {
			kind = agreed.KindGeometryFinish
		}
	}
	return agreed.Command{Kind: kind, Author: byItself}, kind != ""
}

// byItself is who proposes what nobody asked for.
const byItself = "kvmesh"

// grow proposes a larger geometry when a digest has been too full for a while.
func (r *resizer) grow(c agreed.GeometryChange, seen *digestsSeen, now time.Time) (agreed.Command, bool) {
	r.completeSince = time.Time{}
	if !lasts(&r.fullSince, seen.fill > fullDigest, fullFor, now) || !c.Since.IsZero() && now.Sub(c.Since) < restFor {
		return agreed.Command{}, false
	}
	g, err := geometryOf(c.Current)
	if err != nil {
		return agreed.Command{}, false
	}
	next := enlarge(g, seen)
	return agreed.Command{
		Kind: agreed.KindGeometry, Author: byItself,
		Geometry: &agreed.Geometry{Bits: uint64(next.Bits), Hashes: int(next.Hashes)},
	}, next != g
}

// enlarge returns the next geometry: the next power of two above ten bits for each key of the fullest digest. Its fill f
// tells of n = −m/k × ln(1 − f) keys.
func enlarge(g cachestate.Geometry, seen *digestsSeen) cachestate.Geometry {
	const full = 0.99 // beyond it nothing can be told of the keys
	keys := -float64(g.Bits) / float64(g.Hashes) * math.Log1p(-min(seen.fill, full))
	want := uint32(1) << bits.Len32(uint32(bitsPerKey*keys))
	words := (seen.engines + 63) / 64
	most := uint32(1) << (bits.Len32(uint32(maxIndexBytes/8/max(words, 1))) - 1)
	g.Bits = max(g.Bits, min(want, most, cachestate.MaxBits))
	return g
}

// both goes on when all have the next digests, and back when they do not come or are too small.
func (r *resizer) both(c agreed.GeometryChange, seen *digestsSeen, now time.Time) agreed.Kind {
	switch {
	case seen.nextFill > fullDigest:
		return agreed.KindGeometryRollback
	case lasts(&r.completeSince, len(seen.missing) == 0, completeFor, now):
		return agreed.KindGeometrySwitch
	case len(seen.missing) > 0 && now.Sub(c.Since) >= incompleteFor:
		return agreed.KindGeometryRollback
	}
	return ""
}

// lasts reports whether something has been so for a while, of which it keeps the beginning.
func lasts(since *time.Time, so bool, d time.Duration, now time.Time) bool {
	switch {
	case !so:
		*since = time.Time{}
		return false
	case since.IsZero():
		*since = now
	}
	return now.Sub(*since) >= d
}

// geometryOf returns an agreed geometry as digests have it.
func geometryOf(a agreed.Geometry) (cachestate.Geometry, error) {
	if a.Bits == 0 && a.Hashes == 0 {
		return cachestate.DefaultGeometry(), nil
	}
	if a.Bits > cachestate.MaxBits || a.Hashes < 0 || a.Hashes > cachestate.MaxHashes {
		return cachestate.Geometry{}, fmt.Errorf("no digest can have %d bits and %d hashes", a.Bits, a.Hashes)
	}
	g := cachestate.Geometry{Bits: uint32(a.Bits), Hashes: uint8(a.Hashes)}
	return g, g.Validate()
}
