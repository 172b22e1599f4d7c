package node

import (
	"context"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// decider is an agreed.Group, or what a test has in its place.
type decider interface {
	State() *agreed.State
	Changed() <-chan struct{}
	Status() agreed.Status
	Propose(ctx context.Context, c agreed.Command) (agreed.Result, error)
}

// steerPeriod is the time between two looks of a leader at the digests of the mesh.
const steerPeriod = 5 * time.Second

// followChanges publishes and reads digests in the geometry, and keys prompts by the schemes, that the mesh agreed on. Where
// this agent leads it sees to it that changes go on.
func (n *Node) followChanges(ctx context.Context, g decider) error {
	tick := time.NewTicker(steerPeriod)
	defer tick.Stop()
	var r resizer
	var used *agreed.State
	for {
		changed := g.Changed()
		if s := g.State(); s != used {
			used = s
			n.useGeometry(s.Geometry)
			n.useSchemes(s.Schemes)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
			if g.Status().Role == agreed.RoleLeader {
				n.steerGeometry(ctx, g, &r)
				n.steerSchemes(ctx, g)
			} else {
				r = resizer{}
			}
		}
	}
}

// useGeometry makes digests be published and read as is agreed. Where that is of a newer version and cannot be, it stays as
// it was: peers know nothing then of the engines beside this agent, and it of theirs.
func (n *Node) useGeometry(c agreed.GeometryChange) {
	current, next, err := geometriesOf(c)
	if err != nil {
		n.log.Warn("agreed digest geometry cannot be used", "err", err)
		return
	}
	read, spare, published := current, next, []cachestate.Geometry{current}
	if !isNone(next) {
		published = append(published, next)
		if c.Phase == agreed.PhaseSwitched {
			read, spare = next, current
		}
	}
	if slices.Equal(n.index.Geometries(), slices.DeleteFunc([]cachestate.Geometry{read, spare}, isNone)) {
		return
	}
	n.index.Use(read, spare) // before the own engines' digests come
	for _, a := range n.agentsOf {
		a.SetGeometries(published)
	}
	n.log.Info("digest geometry", "phase", string(c.Phase), "read", read.String(), "published", published)
}

func isNone(g cachestate.Geometry) bool { return g == cachestate.Geometry{} }

// geometriesOf returns the geometry in force and the one that is being changed to, zero where there is none.
func geometriesOf(c agreed.GeometryChange) (current, next cachestate.Geometry, err error) {
	if current, err = geometryOf(c.Current); err != nil || c.Phase == agreed.PhaseStable || c.Next == nil {
		return current, next, err
	}
	if next, err = geometryOf(*c.Next); next == current {
		next = cachestate.Geometry{}
	}
	return current, next, err
}

// steerGeometry proposes what is next of a change of geometry. A proposal that fails is made again.
func (n *Node) steerGeometry(ctx context.Context, g decider, r *resizer) {
	c := g.State().Geometry
	seen, err := n.seeDigests(c, time.Now())
	if err != nil {
		return
	}
	command, due := r.step(c, &seen, time.Now())
	if !due {
		return
	}
	n.log.Info("digest geometry is changed", "step", string(command.Kind), "fill", seen.fill, "engine", seen.fullest, "missing", seen.missing)
	if result, err := g.Propose(ctx, command); err != nil || result.Refusal != "" {
		n.log.Warn("digest geometry is not changed", "step", string(command.Kind), "refusal", string(result.Refusal), "err", err)
	}
}

// seeDigests looks at the digests of all engines whose agents can be reached and of which one is here in the geometry in
// force: of an agent with other keys there is none.
func (n *Node) seeDigests(c agreed.GeometryChange, now time.Time) (digestsSeen, error) {
	current, next, err := geometriesOf(c)
	if err != nil {
		return digestsSeen{}, err
	}
	var seen digestsSeen
	for _, e := range n.view.Snapshot(now) {
		if e.State == forward.Unreachable {
			continue
		}
		seen.engines++
		for t := cachestate.TierGPU; t.Valid(); t++ {
			seen.add(n.index, &e, digestPair{t, current, next})
		}
	}
	return seen, nil
}

// digestPair is a tier's digests in both geometries.
type digestPair struct {
	tier          cachestate.Tier
	current, next cachestate.Geometry // next is zero outside of a change
}

func (s *digestsSeen) add(x *cachestate.Tiers, e *forward.EngineStatus, p digestPair) {
	index := x.TierIn(p.current, p.tier)
	if index == nil {
		return
	}
	if _, here := index.Have(e.ID); !here {
		return
	}
	if fill := index.Fill(e.ID); fill >= s.fill {
		s.fill, s.fullest = fill, e.ID
	}
	if isNone(p.next) {
		return
	}
	index = x.TierIn(p.next, p.tier)
	if index == nil {
		s.missing = append(s.missing, e.ID)
		return
	}
	if have, here := index.Have(e.ID); !here || have.Generation != e.Generation {
		s.missing = append(s.missing, e.ID)
		return
	}
	s.nextFill = max(s.nextFill, index.Fill(e.ID))
}
