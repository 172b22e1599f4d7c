package forward

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// naming is who answers to which name of a model, so that a decision looks at its own engines only. Each change of an engine
// changes its own places alone: in a mesh of a thousand that join, none waits for all of them to be put in order again.
type naming struct {
	groups  map[string]*group
	rosters [len(cachestate.Held{})]*cachestate.Roster // by which the engines' slots were looked up
}

// group is the engines that answer to one name.
type group struct {
	engines []*engineView  // in order of ID
	names   map[string]int // of the model that they mean, by how many say so
	layouts map[uint16]int // of that model, by how many found it out

	canonical string // the smallest of names, so that every ingress makes the same keys
	layout    uint16 // what most say, the smallest of several; 0 when none does
}

func sameModel(a, b engine.Model) bool {
	return a.Name == b.Name && a.MaxContext == b.MaxContext && a.Layout == b.Layout && a.HasLayout == b.HasLayout &&
		slices.Equal(a.Aliases, b.Aliases)
}

// rlock takes the read lock with the engines' slots up to date. The caller unlocks.
func (v *View) rlock() {
	for v.mu.RLock(); v.rostersLocked() != v.named.rosters; v.mu.RLock() {
		v.mu.RUnlock()
		v.mu.Lock()
		v.placeLocked()
		v.mu.Unlock()
	}
}

func (v *View) rostersLocked() (rosters [len(cachestate.Held{})]*cachestate.Roster) {
	for t := range rosters {
		if index := v.index.Tier(cachestate.Tier(t)); index != nil {
			rosters[t] = index.Roster()
		}
	}
	return rosters
}

// placeLocked gives the engines their slots where those have changed.
func (v *View) placeLocked() {
	for t, now := range v.rostersLocked() {
		was := v.named.rosters[t]
		v.named.rosters[t] = now
		if was == now {
			continue
		}
		eachMissing(was, now, func(id engine.ID, _ int) { v.setSlotLocked(id, t, -1) })
		eachMissing(now, was, func(id engine.ID, slot int) { v.setSlotLocked(id, t, slot) })
	}
}

// eachMissing calls f for the slots of a that are not the same in b. Either may be nil.
func eachMissing(a, b *cachestate.Roster, f func(id engine.ID, slot int)) {
	var in, other []engine.ID
	if a != nil {
		in = a.Engines()
	}
	if b != nil {
		other = b.Engines()
	}
	for slot, id := range in {
		if slot >= len(other) || other[slot] != id {
			f(id, slot)
		}
	}
}

func (v *View) setSlotLocked(id engine.ID, tier, slot int) {
	if e := v.engines[id]; e != nil {
		e.slots[tier] = int32(slot)
	}
}

// joinLocked gives an engine its places under the names that it answers to, and its slots.
func (v *View) joinLocked(e *engineView) {
	for t, roster := range v.named.rosters {
		e.slots[t] = -1
		if roster == nil {
			continue
		}
		if slot, ok := roster.Slot(e.ID); ok {
			e.slots[t] = int32(slot)
		}
	}
	for name, m := range answers(&e.Engine) {
		g := v.named.groups[name]
		if g == nil {
			g = &group{names: map[string]int{}, layouts: map[uint16]int{}}
			v.named.groups[name] = g
		}
		i, _ := g.find(e)
		g.engines = slices.Insert(g.engines, i, e)
		g.vote(m, 1)
	}
}

// leaveLocked takes an engine out from under the names that it answers to.
func (v *View) leaveLocked(e *engineView) {
	for name, m := range answers(&e.Engine) {
		g := v.named.groups[name]
		i, _ := g.find(e)
		g.engines = slices.Delete(g.engines, i, i+1)
		g.vote(m, -1)
		if len(g.engines) == 0 {
			delete(v.named.groups, name)
		}
	}
}

// answers returns the names that an engine answers to, each with the model that it means by it.
func answers(e *engine.Engine) map[string]*engine.Model {
	out := make(map[string]*engine.Model, 2*len(e.Models))
	for i := range e.Models {
		m := &e.Models[i]
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if _, ok := out[name]; !ok {
				out[name] = m
			}
		}
	}
	return out
}

func (g *group) find(e *engineView) (int, bool) {
	return slices.BinarySearchFunc(g.engines, e, func(a, b *engineView) int { return cmp.Compare(a.ID, b.ID) })
}

// vote counts what an engine says of the model, or takes it back, and finds what holds for all.
func (g *group) vote(m *engine.Model, by int) {
	count(g.names, m.Name, by)
	if m.HasLayout {
		count(g.layouts, m.Layout, by)
	}
	if names := slices.Sorted(maps.Keys(g.names)); len(names) > 0 {
		g.canonical = names[0]
	}
	g.layout = 0
	for layout, n := range g.layouts {
		if most := g.layouts[g.layout]; n > most || n == most && layout < g.layout {
			g.layout = layout
		}
	}
}

// count adds to a counter and forgets it at 0.
func count[K string | uint16](of map[K]int, k K, by int) {
	if of[k] += by; of[k] == 0 {
		delete(of, k)
	}
}

// Canonical returns the canonical name of the model that answers to name.
func (v *View) Canonical(name string) (string, bool) {
	v.rlock()
	defer v.mu.RUnlock()
	if g := v.named.groups[name]; g != nil {
		return g.canonical, true
	}
	return "", false
}

// Layout returns where the engines of a model render what: what most of those say that found out, the smallest of several,
// and 0 when none did.
func (v *View) Layout(model string) uint16 {
	v.rlock()
	defer v.mu.RUnlock()
	if g := v.named.groups[model]; g != nil {
		return g.layout
	}
	return 0
}

// Candidates appends every engine that answers to the model to all, in order of ID, with its load as of now. Overlaps are
// not filled in.
func (v *View) Candidates(all []Candidate, model string, now time.Time) []Candidate {
	v.rlock()
	defer v.mu.RUnlock()
	g := v.named.groups[model]
	if g == nil {
		return all
	}
	all = slices.Grow(all, len(g.engines))
	for _, e := range g.engines {
		all = append(all, e.candidate(now))
	}
	return all
}
