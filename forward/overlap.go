package forward

import (
	"sync"

	"github.com/kvmesh/kvmesh/cachestate"
)

// overlapBuffer has the results of overlap walks by tier and slot: one int32 an engine.
type overlapBuffer [len(cachestate.Held{})][]int32

var overlapBuffers = sync.Pool{New: func() any { return new(overlapBuffer) }}

// Overlaps fills in what the digests of all hold of a prompt: by either form of its keys, whichever they hold more of. It
// returns the most that they hold by each, in content bytes. It allocates nothing once the mesh stops growing.
func (v *View) Overlaps(p *cachestate.Prompt, all []Candidate) (most [2]float64) {
	buf := overlapBuffers.Get().(*overlapBuffer)
	defer overlapBuffers.Put(buf)
	for i := range all {
		all[i].Overlap = 0
	}
	most[0] = v.overlaps(p, all, buf)
	if p.Next != nil {
		most[1] = v.overlaps(p.Next, all, buf)
	}
	return most
}

func (v *View) overlaps(p *cachestate.Prompt, all []Candidate, buf *overlapBuffer) (most float64) {
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
		saved := cachestate.Weigh(p, held)
		c.Overlap, most = max(c.Overlap, saved*c.Scale), max(most, saved)
	}
	return most
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
