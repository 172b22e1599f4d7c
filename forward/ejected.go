package forward

import "github.com/kvmesh/kvmesh/internal/engine"

// Overrule lets the ejected engines among all be chosen when more than half of those that could serve are ejected, and reports
// whether it did. An owner knows only its own engine: what strikes so many at once is no outlier (a model that lacks memory, a
// request that none can serve, a network), and to leave them out would bring down the rest. All are the engines of one model
// that a request may still be sent to; a full engine could serve, soon.
func Overrule(all []Candidate) bool {
	could, ejected := 0, 0
	for i := range all {
		c := &all[i]
		if c.State == Unreachable || c.Load.Flags&(engine.Down|engine.Draining) != 0 {
			continue
		}
		could++
		if c.Load.Flags&engine.Ejected != 0 {
			ejected++
		}
	}
	if 2*ejected <= could {
		return false
	}
	for i := range all {
		all[i].Forced = all[i].Load.Flags&engine.Ejected != 0
	}
	return true
}
