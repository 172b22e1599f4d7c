package forward

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// State says how far this agent may trust what it knows of an agent.
type State uint8

// The states, from best to worst. Own is this agent's own engines: always fresh.
const (
	Own         State = iota
	Fresh             // a sign of life within 1.5 of its heartbeat periods, and nothing missed
	Suspect           // silent longer, or one probe or accept missed: asked whenever it is on a short list, dear until it answers
	Unreachable       // two missed in a row, one and 3 periods silent, silent for longer than deadAfter, or not connected: never chosen
)

// String returns the word for s in status and metrics.
func (s State) String() string {
	return [...]string{"own", "fresh", "suspect", "unreachable"}[s]
}

// silenceOfDead is how long an agent with live streams may be silent, at least, before those streams are given up. Shorter cuts
// streams at a pause of a loaded machine; longer leaves clients waiting for an agent that is gone.
const silenceOfDead = 3 * time.Second

// beatsOfDead is how many of its heartbeats must be missing too. A stream that waits for a long prefill brings no bytes, and above
// 256 agents digests come every 5 s: then heartbeats are all that is heard. Of ten such seconds with 30 % of packets lost, three
// periods of 1 s would cut one stream in five, six cut one in two hundred.
const beatsOfDead = 6

func (a *agentView) silenceOfDead() time.Duration { return max(silenceOfDead, beatsOfDead*a.period) }

// forgetAgent is how long the engines of an agent that is gone are remembered: long enough to see in status what is
// missing, and short enough that agents which come and go under new names leave nothing behind.
const forgetAgent = 15 * time.Minute

// errPeerSilent is the cause of a stream that ended because nothing was heard from its peer.
var errPeerSilent = errors.New("peer is silent")

// View is the load view: what this agent knows of every engine in the mesh. It is safe for concurrent use. It reads no
// clock: callers pass the time in.
type View struct {
	self  string
	index *cachestate.Tiers

	mu      sync.RWMutex
	agents  map[string]*agentView
	engines map[engine.ID]*engineView
	named   naming
	cordons func(engine.ID) bool // nil for none
	changed chan struct{}        // closed and replaced when an engine may have become usable
}

type agentView struct {
	heard  time.Time // the last load or announcement
	seen   time.Time // the last sign of life, those two among them
	period time.Duration
	missed int             // probes and accepts in a row, each of another moment
	missAt time.Time       // when the last miss was noted
	down   bool            // its connection is lost, or it has left
	alive  context.Context // done when its live streams are to be given up
	kill   context.CancelCauseFunc

	engines map[engine.ID]*engineView
}

type engineView struct {
	engine.Engine
	agent   *agentView
	own     bool
	cordon  bool            // it takes nothing new, whatever its owner says
	slots   cachestate.Held // in the indexes of the tiers, or -1; as of named.rosters
	load    engine.Load
	loadAt  time.Time // zero when no load was heard yet
	seconds float64   // prefill dispatched by this agent since the last news
	sent    int       // requests dispatched by this agent since the last news
}

// NewView returns an empty view of the agent named self. Overlaps come from index.
func NewView(self string, index *cachestate.Tiers) *View {
	return &View{
		self:    self,
		index:   index,
		agents:  map[string]*agentView{},
		engines: map[engine.ID]*engineView{},
		named:   naming{groups: map[string]*group{}},
		changed: make(chan struct{}),
	}
}

// Announce replaces what is known of an agent's engines. An engine that is no longer named, or that began another
// generation, loses its digest at once.
func (v *View) Announce(agent string, engines []engine.Engine, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hearLocked(agent, 0, now)
	named := map[engine.ID]bool{}
	for _, e := range engines {
		named[e.ID] = true
		known := v.engines[e.ID]
		switch {
		case known == nil:
			known = &engineView{Engine: e, agent: v.agents[agent], own: agent == v.self, cordon: v.cordons != nil && v.cordons(e.ID)}
			v.engines[e.ID], known.agent.engines[e.ID] = known, known
			v.joinLocked(known)
			continue
		case known.Generation != e.Generation:
			v.index.Remove(e.ID)
		}
		moved := !slices.EqualFunc(known.Models, e.Models, sameModel)
		if moved {
			v.leaveLocked(known)
		}
		known.Engine = e
		if moved {
			v.joinLocked(known)
		}
	}
	for id, e := range v.agents[agent].engines {
		if !named[id] {
			v.forgetLocked(e)
		}
	}
	v.wakeLocked()
}

func (v *View) forgetLocked(e *engineView) {
	v.leaveLocked(e)
	delete(v.engines, e.ID)
	delete(e.agent.engines, e.ID)
	v.index.Remove(e.ID)
}

// Hear takes in a report of an agent's loads. Loads older than what is known are ignored.
func (v *View) Hear(agent string, r Report, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hearLocked(agent, r.Period, now)
	for _, l := range r.Loads {
		v.setLoadLocked(engine.MakeID(agent, l.Name), l.Load, now)
	}
}

// SetLoad takes in one engine's load, as it came with an accept, a bounce or the end of a request.
func (v *View) SetLoad(id engine.ID, l engine.Load, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hearLocked(id.Agent(), 0, now)
	v.setLoadLocked(id, l, now)
}

func (v *View) setLoadLocked(id engine.ID, l engine.Load, now time.Time) {
	e := v.engines[id]
	if e == nil || l.Seq <= e.load.Seq {
		return
	}
	better := !takes(e.load) && takes(l)
	e.load, e.loadAt, e.seconds, e.sent = l, now, 0, 0
	if better {
		v.wakeLocked()
	}
}

// takes reports whether an engine takes requests, and not only when too few others are left.
func takes(l engine.Load) bool { return l.Usable() && l.Flags&engine.Ejected == 0 }

// ForgetLoad says that an engine's load is not known, until the next one newer than what was: its owner told what cannot be
// true.
func (v *View) ForgetLoad(id engine.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e := v.engines[id]; e != nil {
		e.load, e.loadAt = engine.Load{Seq: e.load.Seq}, time.Time{}
	}
}

// Heard notes a sign of life of an agent that says nothing of its engines: a digest, a pull, bytes of a stream. It ends a
// silence. It clears no miss: an agent that passes on what its engine sends may still be too busy to accept.
func (v *View) Heard(agent string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seeLocked(agent, now)
}

func (v *View) hearLocked(agent string, period time.Duration, now time.Time) {
	a := v.seeLocked(agent, now)
	if period > 0 {
		a.period = period
	}
	if a.missed > 0 {
		v.wakeLocked() // somebody may wait for it
	}
	a.heard, a.missed = now, 0
}

func (v *View) seeLocked(agent string, now time.Time) *agentView {
	a := v.agents[agent]
	if a == nil {
		a = &agentView{period: time.Second, engines: map[engine.ID]*engineView{}}
		a.alive, a.kill = context.WithCancelCause(context.Background())
		v.agents[agent] = a
	}
	if a.alive.Err() != nil && !a.down {
		a.alive, a.kill = context.WithCancelCause(context.Background())
	}
	if now.Sub(a.seen) > a.period {
		v.wakeLocked() // somebody may wait for it
	}
	a.seen = now
	return a
}

// Missed notes that an agent, asked at a moment, did not answer a probe or did not accept in time. Several that were
// asked before the same pause are one miss, and one whose load was heard since then is none.
func (v *View) Missed(agent string, asked, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.agents[agent]; a != nil && !asked.Before(a.heard) && !asked.Before(a.missAt) {
		a.missed++
		a.missAt = now
	}
}

// PeerUp notes a connection to an agent. Its engines are known from its announcement.
func (v *View) PeerUp(agent string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.agents[agent]; a != nil && a.down {
		a.down = false
		a.alive, a.kill = context.WithCancelCause(context.Background())
	}
	v.hearLocked(agent, 0, now)
}

// PeerDown notes that an agent left or that its connection is lost: it is not chosen until it is up again, and its
// streams are given up with cause. A message that was still under way does not change that.
func (v *View) PeerDown(agent string, cause error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.agents[agent]; a != nil {
		a.down = true
		a.kill(cause)
	}
}

// PeerReplaced forgets the loads and digests of an agent that began a new life: its next announcement tells the rest.
func (v *View) PeerReplaced(agent string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forgetEnginesLocked(agent)
}

// Tick gives up the streams of agents that have been silent for too long, and forgets agents that do not come back. Call
// it a few times a second.
func (v *View) Tick(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for name, a := range v.agents {
		if name == v.self {
			continue
		}
		if now.Sub(a.seen) > a.silenceOfDead() {
			a.kill(errPeerSilent)
		}
		if now.Sub(a.seen) > forgetAgent {
			v.forgetAgentLocked(name)
		}
	}
}

func (v *View) forgetAgentLocked(name string) {
	v.forgetEnginesLocked(name)
	delete(v.agents, name)
}

func (v *View) forgetEnginesLocked(agent string) {
	if a := v.agents[agent]; a != nil {
		for _, e := range a.engines {
			v.forgetLocked(e)
		}
	}
}

// Alive returns a context that is done, with its cause, when streams of the agent are to be given up.
func (v *View) Alive(agent string) context.Context {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if a := v.agents[agent]; a != nil {
		return a.alive
	}
	return context.Background()
}

// Changed returns a channel that is closed when an engine may have become usable.
func (v *View) Changed() <-chan struct{} {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.changed
}

func (v *View) wakeLocked() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// SetCordons leaves the engines for which cordoned is true out of decisions, from now on and until the next call, also those
// that are announced later. Their owners refuse new requests all the same; this saves the way there. Cordoned must not block.
func (v *View) SetCordons(cordoned func(engine.ID) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cordons = cordoned
	for id, e := range v.engines {
		e.cordon = cordoned(id)
	}
	v.wakeLocked()
}

// Dispatch adds a request of this agent to its view of an engine, until the next news of that engine.
func (v *View) Dispatch(id engine.ID, prefillSeconds float64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e := v.engines[id]; e != nil {
		e.seconds += prefillSeconds
		e.sent++
	}
}

// Models returns the models of the mesh by canonical name, each once, in order of name.
func (v *View) Models() []engine.Model {
	v.mu.RLock()
	defer v.mu.RUnlock()
	seen := map[string]engine.Model{}
	for _, e := range v.engines {
		for _, m := range e.Models {
			if have, ok := seen[m.Name]; !ok || len(m.Aliases) > len(have.Aliases) {
				seen[m.Name] = m
			}
		}
	}
	return slices.SortedFunc(maps.Values(seen), func(a, b engine.Model) int { return cmp.Compare(a.Name, b.Name) })
}

// kind returns the software that an engine is; "" when it is not known.
func (v *View) kind(id engine.ID) engine.Kind {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if e := v.engines[id]; e != nil {
		return e.Kind
	}
	return ""
}

// MaxContext returns the length of a model's context in tokens, the least of its engines; 0 when none says.
func (v *View) MaxContext(model string) int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	least := 0
	for _, e := range v.engines {
		for _, m := range e.Models {
			if m.Name == model && m.MaxContext > 0 && (least == 0 || m.MaxContext < least) {
				least = m.MaxContext
			}
		}
	}
	return least
}

// Generation returns the generation of an engine that its owner has announced.
func (v *View) Generation(id engine.ID) (engine.Generation, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	e := v.engines[id]
	if e == nil {
		return 0, false
	}
	return e.Generation, true
}

// Usable returns the number of engines that can take a request now, or when they are no longer full. Those of an agent that is
// only silent count, since they may be chosen: until it has missed something, or its connection ends.
func (v *View) Usable(now time.Time) int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	n := 0
	for _, e := range v.engines {
		c := e.candidate(now)
		c.Load.Flags &^= engine.Full | engine.Ejected // full engines do not make an agent unready: that would close the mesh when it is busiest
		if len(e.Models) > 0 && c.Known && c.Eligible() {
			n++
		}
	}
	return n
}

// Candidate returns one engine as Candidates would.
func (v *View) Candidate(id engine.ID, now time.Time) (Candidate, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	e, ok := v.engines[id]
	if !ok {
		return Candidate{}, false
	}
	return e.candidate(now), true
}

// candidate returns the engine as a decision sees it, with its load as of now. Overlap is not filled in.
func (e *engineView) candidate(now time.Time) Candidate {
	c := Candidate{
		ID: e.ID, State: e.state(now), Load: e.load, Known: !e.loadAt.IsZero(), Unverified: e.Unverified(), Scale: e.OverlapScale(),
		Zone: e.Zone, slots: e.slots,
	}
	c.Load.QueuedSeconds = e.seconds
	if c.Known {
		c.Load.QueuedSeconds += max(0, e.load.QueuedSeconds-now.Sub(e.loadAt).Seconds())
	}
	c.Load.InFlight += e.sent
	if e.cordon {
		c.Load.Flags |= engine.Draining
	}
	c.Away = !e.agent.down && c.State == Unreachable
	return c
}

func (e *engineView) state(now time.Time) State {
	if e.own {
		return Own
	}
	return e.agent.state(now)
}

// StateOf returns the state of an agent.
func (v *View) StateOf(agent string, now time.Time) State {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if agent == v.self {
		return Own
	}
	if a := v.agents[agent]; a != nil {
		return a.state(now)
	}
	return Unreachable
}

// deadAfter is how long an agent may be silent, and at least 4 of its periods, before that alone is no lost heartbeats any
// more. Of an agent that is dead the connection ends soon after.
const deadAfter = 2 * time.Second

func (a *agentView) state(now time.Time) State {
	if a.down {
		return Unreachable
	}
	switch silent := now.Sub(a.seen); {
	case a.missed >= 2, a.missed == 1 && silent > 3*a.period, silent > max(deadAfter, 4*a.period):
		return Unreachable
	case a.missed == 1 || silent > a.period*3/2:
		return Suspect
	default:
		return Fresh
	}
}

// EngineStatus is one engine as the debug pages and kvmesh status show it.
type EngineStatus struct {
	engine.Engine
	State    State
	Load     engine.Load
	Age      time.Duration // of the load; negative when none was heard
	Cordoned bool          // by SetCordons
}

// Snapshot returns every engine in order of ID.
func (v *View) Snapshot(now time.Time) []EngineStatus {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make([]EngineStatus, 0, len(v.engines))
	for _, e := range v.engines {
		s := EngineStatus{Engine: e.Engine, State: e.state(now), Load: e.load, Age: -1, Cordoned: e.cordon}
		if !e.loadAt.IsZero() {
			s.Age = now.Sub(e.loadAt)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b EngineStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
