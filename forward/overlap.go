package forward

import (
	"sync"

	"github.com/kvmesh/kvmesh/cachestate"
)

// overlapBuffer has the results of overlap walks by tier and slot: one int32 an engine.
type overlapBuffer [len(cachestate.Held{})][]int32

var overlapBuffers = sync.Pool{New: func() any { return new(overlapBuffer) }}

// Overlaps fills in what the digests of all hold of a prompt. It allocates nothing once the mesh stops growing.
func (v *View) Overlaps(p *cachestate.Prompt, all []Candidate) {
	buf := overlapBuffers.Get().(*overlapBuffer)
	defer overlapBuffers.Put(buf)
	v.overlaps(p, all, buf)
}

func (v *View) overlaps(p *cachestate.Prompt, all []Candidate, buf *overlapBuffer) {
	for t := range buf {
		buf[t] = buf[t][:0]
		if index := v.index.Tier(cachestate.Tier(t)); index != nil {
			buf[t] = index.Overlap(p.Keys, nil, buf[t])
		}
	}
	for i := range all {
		c := &all[i]
		var held cachestate.Held
		for t, slot := range c.slots {
			if slot >= 0 && int(slot) < len(buf[t]) {
				held[t] = buf[t][slot]
			}
		}
		c.Overlap = cachestate.Weigh(p, held) * c.Scale
	}
}

// Generations fills in the generation of the digests that overlaps are from.
func (v *View) Generations(short []Candidate) {
	for i := range short {
		c := &short[i]
		if have, ok := v.index.Have(c.ID); ok && c.Overlap > 0 {
			c.Generation = have.Generation
		}
	}
}
