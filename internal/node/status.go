package node

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh"
)

// Status is the mesh as one agent sees it: /debug/mesh.json, the debug page and kvmesh status.
type Status struct {
	Agent      string          `json:"agent"`
	Mesh       string          `json:"mesh"`
	Time       time.Time       `json:"time"`
	Uptime     float64         `json:"uptime_s"`
	Ready      bool            `json:"ready"`
	Settled    bool            `json:"settled"`
	Draining   bool            `json:"draining"`
	Scheme     int             `json:"key_scheme"`
	Counters   Counters        `json:"counters"`
	Agents     []AgentStatus   `json:"agents"`
	Engines    []EngineStatus  `json:"engines"`
	Classes    []ClassStatus   `json:"classes"` // of the policy, as requests that this agent took in
	Queues     []QueueStatus   `json:"queues"`  // of models whose engines are all full
	Refusals   []RefusalStatus `json:"refusals"`
	Doubts     []forward.Doubt `json:"doubts"`      // what peers told and is not believed
	GossipKeys mesh.GossipKeys `json:"gossip_keys"` // fingerprints
	Agreed     AgreedStatus    `json:"agreed"`
	Notes      []string        `json:"notes"` // what an operator should know, in words
}

// Counters are what must be zero when nothing runs.
type Counters struct {
	InFlight    int            `json:"in_flight"`    // requests taken in by this agent
	Waiting     int            `json:"waiting"`      // of those, held because all engines are full
	PeerStreams int            `json:"peer_streams"` // requests of peers on the engines beside this agent
	BodyBytes   int64          `json:"body_bytes"`   // of request bodies that are held, of clients and of peers
	Booked      map[string]int `json:"booked"`       // by engine beside this agent: requests booked
}

// AgentStatus is one agent of the mesh.
type AgentStatus struct {
	Name      string  `json:"name"`
	State     string  `json:"state"` // own, fresh, suspect, unreachable; left when it said so
	Connected bool    `json:"connected"`
	Address   string  `json:"address"`
	RTTMillis float64 `json:"rtt_ms"`
}

// EngineStatus is one engine of the mesh.
type EngineStatus struct {
	Engine         engine.ID         `json:"engine"`
	State          string            `json:"state"` // of its agent, or down, draining, cordoned, ejected or full
	Kind           engine.Kind       `json:"kind"`
	Zone           string            `json:"zone"`
	Models         []string          `json:"models"`
	Generation     engine.Generation `json:"generation"`
	CapacityTokens int64             `json:"capacity_tokens"`
	InFlight       int               `json:"in_flight"`
	Waiting        int               `json:"waiting"`
	QueuedSeconds  float64           `json:"queued_s"`
	KVUsage        float64           `json:"kv_usage"`
	PrefillRate    float64           `json:"prefill_tokens_per_s"` // 0 until learned
	BytesPerToken  float64           `json:"bytes_per_token"`
	LoadAge        float64           `json:"load_age_s"`      // negative when none was heard
	Residency      string            `json:"residency"`       // what its digests rest on: events, mirror, none
	Evidence       string            `json:"evidence"`        // what they are checked by: usage, counters, none
	OverlapScale   float64           `json:"overlap_scale"`   // share of a claimed overlap that turns out true
	Unstable       bool              `json:"unstable"`        // its prompts are rendered anew in each turn
	Words          string            `json:"residency_words"` // the four above, in words
	Digests        []DigestStatus    `json:"digests"`         // by tier; none when nothing was heard
	DigestVersion  uint64            `json:"digest_version"`  // of the GPU tier, as the next two
	DigestFill     float64           `json:"digest_fill"`
	DigestAge      float64           `json:"digest_age_s"` // negative when none was heard
}

// ClassStatus is one class of the policy.
type ClassStatus = forward.ClassStatus

// QueueStatus is what waits at this agent for one model.
type QueueStatus = forward.QueueStatus

// RefusalStatus is one peer that was refused, or refused this agent, for one reason.
type RefusalStatus struct {
	Time   time.Time `json:"time"`  // the last time
	Count  int       `json:"count"` // among the refusals that are remembered
	Peer   string    `json:"peer"`
	Addr   string    `json:"addr"`
	Reason string    `json:"reason"`
	ByPeer bool      `json:"by_peer"` // the peer refused this agent
}

// Status returns the mesh as this agent sees it now.
func (n *Node) Status() Status {
	now := time.Now()
	s := Status{
		Agent: n.config.Mesh.Name, Mesh: n.config.Mesh.MeshID, Time: now, Uptime: now.Sub(n.start).Seconds(),
		Ready: n.Ready(), Settled: n.mesh.Settled(), Draining: n.draining.Load(),
		Scheme: int(n.config.Forward.Scheme.Version), Counters: n.counters(),
		Agents: n.agentStatuses(now), Engines: n.engineStatuses(now), Classes: n.ingress.Classes(), Queues: n.ingress.Queues(), Refusals: n.refusals(),
		Doubts: n.ingress.Doubts(), GossipKeys: n.mesh.GossipKeys(), Agreed: n.agreement.status(now), Notes: n.notes(),
	}
	return s
}

// refusals returns what was refused, each peer and reason once.
func (n *Node) refusals() []RefusalStatus {
	out := []RefusalStatus{}
	for _, r := range n.mesh.Refusals() {
		same := func(s RefusalStatus) bool {
			return s.Addr == r.Addr && s.Reason == r.Reason && s.ByPeer == r.ByPeer && (s.Peer == r.Name || r.Name == "" || s.Peer == "")
		}
		i := slices.IndexFunc(out, same)
		if i < 0 {
			out = append(out, RefusalStatus{Peer: r.Name, Addr: r.Addr, Reason: r.Reason, ByPeer: r.ByPeer})
			i = len(out) - 1
		}
		out[i].Count++
		if r.Time.After(out[i].Time) {
			out[i].Time = r.Time
		}
		if out[i].Peer == "" {
			out[i].Peer = r.Name
		}
	}
	return out
}

func (n *Node) counters() Counters {
	c := Counters{PeerStreams: int(n.serving.Load()), BodyBytes: n.ingress.BodyBytes(), Booked: map[string]int{}}
	c.InFlight, c.Waiting = n.ingress.Active()
	for name, a := range n.byName {
		c.Booked[name] = a.Booked()
	}
	return c
}

func (n *Node) agentStatuses(now time.Time) []AgentStatus {
	out := []AgentStatus{{Name: n.config.Mesh.Name, State: "own", Connected: true, Address: n.QUICAddr()}}
	for _, p := range n.mesh.Peers() {
		s := AgentStatus{
			Name: p.Name, State: n.view.StateOf(p.Name, now).String(), Connected: p.Connected,
			Address: p.QUICAddr.String(), RTTMillis: float64(p.RTT.Microseconds()) / 1e3,
		}
		if !p.Connected && p.State.String() != "alive" {
			s.State = p.State.String()
		}
		out = append(out, s)
	}
	return out
}

func (n *Node) engineStatuses(now time.Time) []EngineStatus {
	ages := n.listener.DigestAges(now)
	out := []EngineStatus{}
	for _, e := range n.view.Snapshot(now) {
		s := EngineStatus{
			Engine: e.ID, State: e.State.String(), Kind: e.Kind, Zone: e.Zone, Generation: e.Generation,
			CapacityTokens: e.CapacityTokens, InFlight: e.Load.InFlight, Waiting: e.Load.Waiting,
			QueuedSeconds: e.Load.QueuedSeconds, KVUsage: e.Load.KVUsage, PrefillRate: e.Load.PrefillRate,
			BytesPerToken: e.Load.BytesPerToken, LoadAge: e.Age.Seconds(), DigestAge: -1, Models: []string{},
			Residency: e.Residency.String(), Evidence: e.Evidence.String(), OverlapScale: e.OverlapScale(), Unstable: e.Unstable,
			Digests: n.digests(e.ID, ages),
		}
		for _, m := range e.Models {
			s.Models = append(s.Models, m.Name)
		}
		if len(e.Models) == 0 {
			s.State = "no model"
		}
		word := flagWord(e.Load.Flags)
		if e.Cordoned && word != stateDraining {
			word = stateCordoned // its owner does not say so yet
		}
		if word != "" && s.State != "unreachable" {
			s.State = word
		}
		for _, d := range s.Digests {
			if d.Tier == cachestate.TierGPU.String() {
				s.DigestVersion, s.DigestFill, s.DigestAge = d.Version, d.Fill, d.Age
			}
		}
		s.Words = s.ResidencyWords()
		out = append(out, s)
	}
	return out
}

// The states of an engine that takes nothing new: its owner says so, or only this agent leaves it out yet.
const (
	stateEjected  = "ejected"
	stateDraining = "draining"
	stateCordoned = "cordoned"
)

func flagWord(f engine.Flags) string {
	switch {
	case f&engine.Down != 0:
		return "down"
	case f&engine.Draining != 0:
		return stateDraining
	case f&engine.Ejected != 0:
		return stateEjected
	case f&engine.Full != 0:
		return "full"
	default:
		return ""
	}
}

// notes says in words what is wrong.
func (n *Node) notes() []string {
	notes := append(append(append([]string{}, n.mesh.Health()...), n.listener.Notes()...), append(n.agreement.notes(), n.keyed.why()...)...)
	for _, name := range slices.Sorted(maps.Keys(n.byName)) {
		a := n.byName[name]
		if !a.Ready() {
			notes = append(notes, "engine "+name+" beside this agent is down: requests go to other engines")
		}
		notes = append(notes, a.Notes()...)
	}
	notes = append(notes, overruled(n.engineStatuses(time.Now()))...)
	overfull := func(d DigestStatus) bool { return d.Fill > cachestate.MaxFill }
	for _, e := range n.engineStatuses(time.Now()) {
		if slices.ContainsFunc(e.Digests, overfull) {
			notes = append(notes, fmt.Sprintf("a digest of engine %s is so full that it counts as unknown: "+
				"the digest geometry is too small for its cache, or its agent lies", e.Engine))
		}
	}
	return notes
}

func subFS(f fs.FS, dir string) fs.FS {
	sub, err := fs.Sub(f, dir)
	if err != nil {
		panic(err) // the folder is embedded
	}
	return sub
}
