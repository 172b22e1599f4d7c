package forward

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// What is not believed, in the words that status, log and metrics have for it.
const (
	DoubtLoad     = "load out of range"
	DoubtDigest   = "digest too full"
	DoubtGeometry = "digest of another geometry"
	DoubtEngine   = "digest of an engine that is not its own"
	DoubtRoom     = "more engines than there is room for"
	DoubtMessage  = "message that cannot be read"
)

// Doubt is something that an agent told and that cannot be true. It counts as not told.
type Doubt struct {
	Agent  string    `json:"agent"`
	Engine engine.ID `json:"engine,omitempty"` // "" when it is about the agent, or about too many of its engines
	What   string    `json:"what"`
	Count  int       `json:"count"`
	Last   time.Time `json:"last"`

	warned time.Time
}

// doubtGap is the least time between two warnings of one and the same: heartbeats tell it twice a second.
const doubtGap = time.Minute

// Bounds of what is remembered: in all, and of the engines of one agent, which can name any. Those beyond are one.
const (
	maxDoubts   = 256
	maxDoubtsOf = 16
)

// doubts are the last ones. The zero value is ready for use.
type doubts struct {
	mu   sync.Mutex
	list []Doubt // at most maxDoubts, the latest last
}

// note takes one in and reports whether it is to be warned of.
func (d *doubts) note(agent string, id engine.ID, what string, now time.Time) (warn bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := Doubt{Agent: agent, Engine: id, What: what}
	same := func(e Doubt) bool { return e.Agent == x.Agent && e.Engine == x.Engine && e.What == x.What }
	i := slices.IndexFunc(d.list, same)
	if i < 0 && d.crowded(agent) {
		x.Engine = ""
		i = slices.IndexFunc(d.list, same)
	}
	if i >= 0 {
		x = d.list[i]
	} else if len(d.list) == maxDoubts {
		i, x.warned = 0, d.list[0].Last // what is forgotten too soon must not be warned of each time that it comes back
	}
	if i >= 0 {
		d.list = slices.Delete(d.list, i, i+1)
	}
	if warn = now.Sub(x.warned) >= doubtGap; warn {
		x.warned = now
	}
	x.Count++
	x.Last = now
	d.list = append(d.list, x)
	return warn
}

// crowded reports whether as many engines of an agent are remembered as may be.
func (d *doubts) crowded(agent string) bool {
	n := 0
	for i := range d.list {
		if d.list[i].Agent == agent {
			n++
		}
	}
	return n >= maxDoubtsOf
}

// Doubt notes that an agent told something that cannot be true: of one of its engines, or of none for "". It is counted,
// shown, and logged once a minute. What is one of a closed list of words. It is safe for concurrent use.
func (g *Ingress) Doubt(agent string, id engine.ID, what string, err error) {
	g.metrics.doubts.WithLabelValues(what).Inc()
	if g.doubts.note(agent, id, what, time.Now()) {
		g.Logger.Warn("not believed", "agent", agent, "engine", id, "what", what, "err", err)
	}
}

// Doubts returns what was doubted last, in order of agent and engine.
func (g *Ingress) Doubts() []Doubt {
	g.doubts.mu.Lock()
	defer g.doubts.mu.Unlock()
	out := append([]Doubt{}, g.doubts.list...)
	slices.SortFunc(out, func(a, b Doubt) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.What, b.What))
	})
	return out
}

// doubtLoad notes that the load of an engine cannot be true: it is unknown until one comes that can.
func (g *Ingress) doubtLoad(id engine.ID, err error) {
	g.Doubt(id.Agent(), id, DoubtLoad, err)
	g.View.ForgetLoad(id)
}

// Hear takes in a heartbeat of a peer, or its answer to a probe: View.Hear, and what of it is doubted is counted and named.
// It is safe for concurrent use.
func (g *Ingress) Hear(agent string, r Report, now time.Time) {
	for _, d := range r.Doubts {
		g.doubtLoad(engine.MakeID(agent, d.Name), d.Err)
	}
	g.View.Hear(agent, r, now)
}
