package forward

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// naming is who answers to which name of a model, so that a decision looks at its own engines only. It is made anew when
// engines come, go or change their models.
type naming struct {
	stale   bool
	groups  map[string]*group
	rosters [len(cachestate.Held{})]*cachestate.Roster // by which the engines' slots were looked up
}

// group is the engines that answer to one name.
type group struct {
	engines   []*engineView // in order of ID
	canonical string        // of the model; the smallest where they disagree, so that every ingress makes the same keys
	layout    uint16        // what most of those say that found it out, the smallest of several; 0 when none did
}

func sameModel(a, b engine.Model) bool {
	return a.Name == b.Name && a.MaxContext == b.MaxContext && a.Layout == b.Layout && a.HasLayout == b.HasLayout &&
		slices.Equal(a.Aliases, b.Aliases)
}

// rlock takes the read lock with the naming up to date. The caller unlocks.
func (v *View) rlock() {
	for v.mu.RLock(); v.named.stale || v.rostersLocked() != v.named.rosters; v.mu.RLock() {
		v.mu.RUnlock()
		v.mu.Lock()
		v.nameLocked()
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

func (v *View) nameLocked() {
	if v.named.stale {
		v.named.stale, v.named.groups = false, v.groupsLocked()
	}
	v.named.rosters = v.rostersLocked()
	for id, e := range v.engines {
		for t, roster := range v.named.rosters {
			e.slots[t] = -1
			if roster == nil {
				continue
			}
			if slot, ok := roster.Slot(id); ok {
				e.slots[t] = int32(slot)
			}
		}
	}
}

func (v *View) groupsLocked() map[string]*group {
	groups := map[string]*group{}
	for _, e := range v.engines {
		for i := range e.Models {
			m := &e.Models[i]
			for _, name := range append([]string{m.Name}, m.Aliases...) {
				g := groups[name]
				if g == nil {
					g = &group{canonical: m.Name}
					groups[name] = g
				}
				if n := len(g.engines); n == 0 || g.engines[n-1] != e {
					g.engines = append(g.engines, e)
				}
			}
		}
	}
	for name, g := range groups {
		slices.SortFunc(g.engines, func(a, b *engineView) int { return cmp.Compare(a.ID, b.ID) })
		g.agree(name)
	}
	return groups
}

// agree finds what the engines say of the model that answers to name.
func (g *group) agree(name string) {
	votes := map[uint16]int{}
	for i, e := range g.engines {
		m, _ := e.Serves(name)
		if i == 0 || m.Name < g.canonical {
			g.canonical = m.Name
		}
		if m.HasLayout {
			votes[m.Layout]++
		}
	}
	for layout, n := range votes {
		if n > votes[g.layout] || n == votes[g.layout] && layout < g.layout {
			g.layout = layout
		}
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
