package cachestate

import (
	"sync"
	"sync/atomic"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Tiers are the indexes of all tiers. The embedded one is that of the GPU tier; the others are made when a first delta of
// theirs comes, and cost nothing before. It is safe for concurrent use as an Index is.
//
// A slower tier's digest holds every key whose blocks all lie in that tier or in a faster one, so that each index is
// closed under prefixes, and what a tier adds is the difference to the one before it.
type Tiers struct {
	*Index
	geometry Geometry
	mu       sync.Mutex // guards the making of slower
	slower   [numTiers]atomic.Pointer[Index]
}

// NewTiers returns empty indexes for digests of one geometry.
func NewTiers(g Geometry) *Tiers { return &Tiers{Index: NewIndex(g, TierGPU), geometry: g} }

// Geometry returns the one that all digests must have.
func (x *Tiers) Geometry() Geometry { return x.geometry }

// Tier returns the index of a tier, nil while no digest of it has come.
func (x *Tiers) Tier(t Tier) *Index {
	switch {
	case t == TierGPU:
		return x.Index
	case t.Valid():
		return x.slower[t].Load()
	}
	return nil
}

// Apply takes a delta into the index of its tier.
func (x *Tiers) Apply(d *Delta) Outcome {
	if !d.Tier.Valid() {
		return Foreign
	}
	index := x.Tier(d.Tier)
	if index == nil {
		index = x.make(d.Tier)
	}
	return index.Apply(d)
}

func (x *Tiers) make(t Tier) *Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	if index := x.slower[t].Load(); index != nil {
		return index
	}
	index := NewIndex(x.geometry, t)
	x.slower[t].Store(index)
	return index
}

// Remove forgets an engine in all tiers.
func (x *Tiers) Remove(id engine.ID) {
	x.Index.Remove(id)
	for t := range x.slower {
		if index := x.slower[t].Load(); index != nil {
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
