package forward

import (
	"maps"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// doubtGap is the least time between two warnings of one engine's loads: heartbeats tell them twice a second.
const doubtGap = time.Minute

// maxDoubted bounds the engines that are remembered for that, because a peer can name any.
const maxDoubted = 256

// doubted is which engines were warned of lately. Its zero value is ready for use.
type doubted struct {
	mu sync.Mutex
	at map[engine.ID]time.Time // at most maxDoubted
}

// first reports whether id is doubted for the first time within doubtGap. When too many are remembered, no new one is.
func (d *doubted) first(id engine.ID, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t, ok := d.at[id]; ok && now.Sub(t) < doubtGap {
		return false
	}
	if len(d.at) >= maxDoubted {
		maps.DeleteFunc(d.at, func(_ engine.ID, t time.Time) bool { return now.Sub(t) >= doubtGap })
	}
	if len(d.at) >= maxDoubted {
		return false
	}
	if d.at == nil {
		d.at = map[engine.ID]time.Time{}
	}
	d.at[id] = now
	return true
}

// doubt counts a load that cannot be true, and names once a minute whose it is.
func (g *Ingress) doubt(id engine.ID, err error) {
	g.metrics.doubts.Inc()
	if g.doubted.first(id, time.Now()) {
		g.Logger.Warn("load not believed", "agent", id.Agent(), "engine", id, "err", err)
	}
}

// Hear takes in a heartbeat of a peer, or its answer to a probe: View.Hear, and what of it is doubted is counted and named.
// It is safe for concurrent use.
func (g *Ingress) Hear(agent string, r Report, now time.Time) {
	for _, d := range r.Doubts {
		g.doubt(engine.MakeID(agent, d.Name), d.Err)
	}
	g.View.Hear(agent, r, now)
}
