package cachestate

import (
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Digests is the owner's side of all digests of one engine in one life of its cache: in each geometry that is published one
// for each tier that the engine has ever used. Outside of a change of geometry there is one geometry, within it there are
// two. It is for one goroutine.
type Digests struct {
	engine     engine.ID
	generation engine.Generation
	sets       []digestSet // Invariant: no two of one geometry
}

// digestSet is the digests of one geometry by tier, nil for a tier that was never used.
type digestSet struct {
	geometry Geometry
	tiers    [numTiers]*Digest
}

// NewDigests returns empty digests of one life of an engine's cache in each of some valid geometries.
func NewDigests(id engine.ID, gen engine.Generation, geometries []Geometry) *Digests {
	d := &Digests{engine: id, generation: gen}
	d.Use(geometries, func(func(Tier, Key)) {})
	return d
}

// Use makes these the geometries that are published. Digests of geometries that stay are not touched; each of a new one is
// filled with the keys that resident tells, which must be those that were added and not removed, as often as they were.
func (d *Digests) Use(geometries []Geometry, resident func(tell func(t Tier, k Key))) {
	var sets, fresh []digestSet
	for _, g := range geometries {
		i := slices.IndexFunc(d.sets, func(s digestSet) bool { return s.geometry == g })
		if i >= 0 {
			sets = append(sets, d.sets[i])
			continue
		}
		s := digestSet{geometry: g}
		s.tiers[TierGPU] = NewDigest(d.engine, TierGPU, d.generation, g)
		fresh = append(fresh, s)
	}
	if len(fresh) > 0 {
		resident(func(t Tier, k Key) {
			for i := range fresh {
				d.digest(&fresh[i], t).Add(k)
			}
		})
	}
	d.sets = append(sets, fresh...)
}

func (d *Digests) digest(s *digestSet, t Tier) *Digest {
	if s.tiers[t] == nil {
		s.tiers[t] = NewDigest(d.engine, t, d.generation, s.geometry)
	}
	return s.tiers[t]
}

// Add says that the engine now holds k in a tier. A key that is added twice must be removed twice.
func (d *Digests) Add(t Tier, k Key) {
	for i := range d.sets {
		d.digest(&d.sets[i], t).Add(k)
	}
}

// Remove says that the engine no longer holds k in a tier, where it was added before.
func (d *Digests) Remove(t Tier, k Key) {
	for i := range d.sets {
		d.digest(&d.sets[i], t).Remove(k)
	}
}

// Publish ends the current version of each digest, as Digest.Publish does.
func (d *Digests) Publish(now time.Time) []Delta {
	return d.each(func(d *Digest) Delta { return d.Publish(now) })
}

// Full returns the whole digests as last published.
func (d *Digests) Full() []Delta { return d.each((*Digest).Full) }

func (d *Digests) each(get func(*Digest) Delta) []Delta {
	var out []Delta
	for _, s := range d.sets {
		for _, digest := range s.tiers {
			if digest != nil {
				out = append(out, get(digest))
			}
		}
	}
	return out
}

// Since returns the way from a version of one digest to the last published one, or false where Digest.Since would or when
// there is no such digest.
func (d *Digests) Since(g Geometry, t Tier, version uint64) (Delta, bool) {
	for _, s := range d.sets {
		if s.geometry == g && t.Valid() && s.tiers[t] != nil {
			return s.tiers[t].Since(version)
		}
	}
	return Delta{}, false
}
