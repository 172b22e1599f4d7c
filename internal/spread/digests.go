package spread

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Why a digest is not believed.
var (
	errNotAnnounced = errors.New("its agent has announced no such engine")
	errNoRoom       = errors.New("the index has room for no more engines")
)

// hearDigests takes in digests of engines that their owner has announced, of the life that it announced. Others would take
// places in the index that nobody frees, or bring back what an earlier life held.
func (l *Listener) hearDigests(peer string, o *owner, b []byte) error {
	if l.foreign(peer) {
		return nil
	}
	taken, known, unknown := l.Index.Geometries(), map[engine.ID]bool{}, map[engine.ID]error{}
	for len(b) > 0 {
		d, rest, err := cachestate.ParseDelta(b, peer, taken...)
		switch b = rest; {
		case errors.Is(err, cachestate.ErrGeometry):
			unknown[d.Engine] = err
		case err != nil:
			return fmt.Errorf("parse digest: %w", err)
		default:
			known[d.Engine] = true
			l.hearDigest(o, &d)
		}
	}
	for id, err := range unknown {
		if !known[id] { // else its owner has heard of a change of geometry before this agent, or after it
			l.Doubt(peer, id, forward.DoubtGeometry, err)
		}
	}
	return nil
}

func (l *Listener) hearDigest(o *owner, d *cachestate.Delta) {
	gen, announced := l.View.Generation(d.Engine)
	if !announced {
		if l.isUp(d.Engine.Agent(), o) {
			l.Doubt(d.Engine.Agent(), d.Engine, forward.DoubtEngine, errNotAnnounced)
		}
		return
	}
	if gen != d.Generation {
		return // the announcement of another life of its cache has overtaken it, or comes next
	}
	id := digestOf(d)
	switch l.Index.Apply(d) {
	case cachestate.Applied, cachestate.Duplicate:
		l.current(id)
	case cachestate.Behind, cachestate.Corrupt:
		l.pull(id)
	case cachestate.Crowded:
		l.Doubt(d.Engine.Agent(), d.Engine, forward.DoubtRoom, errNoRoom)
	case cachestate.Stale, cachestate.Foreign: // neither comes here: the generation is the announced one, the geometry the mesh's
	}
}

// isUp reports whether an owner is the life of a peer that is up: the other's engines are forgotten.
func (l *Listener) isUp(peer string, o *owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owners[peer] == o
}

// current notes that a digest is as its owner published it last. One that is too full says nothing.
func (l *Listener) current(id DigestID) {
	if fill := l.fill(id); fill > cachestate.MaxFill {
		l.Doubt(id.Engine.Agent(), id.Engine, forward.DoubtDigest, fmt.Errorf("%.0f%% of its %v digest are set", 100*fill, id.Tier))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.owners[id.Engine.Agent()]; o != nil {
		o.digestAt[id] = time.Now()
	}
}

// DigestAges returns the time since each digest was last known to be its owner's last.
func (l *Listener) DigestAges(now time.Time) map[DigestID]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[DigestID]time.Duration{}
	for _, o := range l.owners {
		for id, at := range o.digestAt {
			out[id] = now.Sub(at)
		}
	}
	return out
}

// Have returns the version of a digest that is here.
func (l *Listener) Have(id DigestID) (cachestate.Version, bool) {
	index := l.Index.TierIn(id.Geometry, id.Tier)
	if index == nil {
		return cachestate.Version{}, false
	}
	return index.Have(id.Engine)
}

func (l *Listener) fill(id DigestID) float64 {
	if index := l.Index.TierIn(id.Geometry, id.Tier); index != nil {
		return index.Fill(id.Engine)
	}
	return 0
}
