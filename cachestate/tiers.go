package cachestate

import (
	"sync"
	"sync/atomic"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Tiers are the peer indexes of all tiers in the geometry that overlaps are looked up in and, while the mesh changes its
// geometry, in another one besides. That of the GPU tier is always there; the others are made when a first delta of theirs
// comes, and cost nothing before. It is safe for concurrent use as an Index is; only Use and the first delta of a tier wait
// for one another.
//
// A slower tier's digest holds every key whose blocks all lie in that tier or in a faster one, so that each index is
// closed under prefixes, and what a tier adds is the difference to the one before it.
type Tiers struct {
	mu     sync.Mutex             // guards the replacement of shapes
	shapes atomic.Pointer[shapes] // replaced as one, so that no delta finds neither of two geometries
}

// shapes are the indexes by geometry. They are replaced, never changed.
type shapes struct {
	read  *shape
	spare *shape // nil outside of a change
}

// shape is the indexes of all tiers in one geometry.
type shape struct {
	geometry Geometry
	mu       sync.Mutex // guards the making of tiers
	tiers    [numTiers]atomic.Pointer[Index]
}

func newShape(g Geometry) *shape {
	s := &shape{geometry: g}
	s.tiers[TierGPU].Store(NewIndex(g, TierGPU))
	return s
}

// NewTiers returns empty indexes for digests of one geometry, which must be valid.
func NewTiers(g Geometry) *Tiers {
	x := &Tiers{}
	x.shapes.Store(&shapes{read: newShape(g)})
	return x
}

// Use makes overlaps be looked up in one geometry, and digests of a spare one be kept besides, which is zero when there is
// none. What is known in either of them stays, so that reading moves from one to the other without a gap; all else is
// dropped. Both must be valid.
func (x *Tiers) Use(read, spare Geometry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.shapes.Load()
	next := &shapes{read: now.keep(read)}
	if spare != (Geometry{}) && spare != read {
		next.spare = now.keep(spare)
	}
	x.shapes.Store(next)
}

// keep returns the indexes of a geometry, empty ones where there are none.
func (s *shapes) keep(g Geometry) *shape {
	if of := s.of(g); of != nil {
		return of
	}
	return newShape(g)
}

// of returns the indexes of a geometry, nil where there are none.
func (s *shapes) of(g Geometry) *shape {
	switch {
	case s.read.geometry == g:
		return s.read
	case s.spare != nil && s.spare.geometry == g:
		return s.spare
	}
	return nil
}

// Geometry returns the one that overlaps are looked up in.
func (x *Tiers) Geometry() Geometry { return x.shapes.Load().read.geometry }

// Geometries returns those of which digests are taken in, the one that overlaps are looked up in first.
func (x *Tiers) Geometries() []Geometry {
	s := x.shapes.Load()
	if s.spare == nil {
		return []Geometry{s.read.geometry}
	}
	return []Geometry{s.read.geometry, s.spare.geometry}
}

// Tier returns the index of a tier that overlaps are looked up in, nil while no digest of it has come.
func (x *Tiers) Tier(t Tier) *Index { return x.shapes.Load().read.tier(t) }

// TierIn returns the index of a tier in a geometry, nil while no digest of it has come or when none is taken in.
func (x *Tiers) TierIn(g Geometry, t Tier) *Index {
	if s := x.shapes.Load().of(g); s != nil {
		return s.tier(t)
	}
	return nil
}

func (s *shape) tier(t Tier) *Index {
	if !t.Valid() {
		return nil
	}
	return s.tiers[t].Load()
}

// Have returns the version of an engine's digest of the GPU tier that overlaps are looked up in, or false when it never
// heard of the engine.
func (x *Tiers) Have(id engine.ID) (Version, bool) { return x.Tier(TierGPU).Have(id) }

// Apply takes a delta into the index of its geometry and tier.
func (x *Tiers) Apply(d *Delta) Outcome {
	s := x.shapes.Load().of(d.Geometry)
	if s == nil || !d.Tier.Valid() {
		return Foreign
	}
	return s.make(d.Tier).Apply(d)
}

func (s *shape) make(t Tier) *Index {
	if index := s.tier(t); index != nil {
		return index
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if index := s.tier(t); index != nil {
		return index
	}
	index := NewIndex(s.geometry, t)
	s.tiers[t].Store(index)
	return index
}

// Remove forgets an engine in all tiers.
func (x *Tiers) Remove(id engine.ID) {
	now := x.shapes.Load()
	now.read.remove(id)
	if now.spare != nil {
		now.spare.remove(id)
	}
}

func (s *shape) remove(id engine.ID) {
	for t := range s.tiers {
		if index := s.tiers[t].Load(); index != nil {
			index.Remove(id)
		}
	}
}

// Weigh returns the canonical bytes of a prompt that an engine saves whose digests hold so many leading keys: those of the
// GPU tier, those of each slower one. Bytes that only a slower tier holds count by its weight.
func Weigh(p *Prompt, keys Held) float64 {
	saved, before := 0.0, uint32(0)
	for t, n := range keys {
		if n == 0 || int(n) > len(p.Offsets) || p.Offsets[n-1] <= before {
			continue
		}
		saved += float64(p.Offsets[n-1]-before) * Tier(t).Weight()
		before = p.Offsets[n-1]
	}
	return saved
}
