package node

import (
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// AgreedStatus is what the mesh has agreed on, and who decides, as this agent knows it.
type AgreedStatus struct {
	Role    agreed.Role     `json:"role"`   // leader, voter, standby, watcher
	Leader  string          `json:"leader"` // "" when none is known
	Quorum  bool            `json:"quorum"` // whether anything can be changed now
	Group   string          `json:"group"`
	Epoch   uint64          `json:"epoch"`
	Index   uint64          `json:"index"` // of the last command
	Hash    string          `json:"hash"`  // of the state: agents with the same index have the same
	Members []MemberStatus  `json:"members"`
	Waiting string          `json:"waiting,omitempty"` // why no group is founded yet
	Faults  []agreed.Fault  `json:"faults"`
	Policy  PolicyStatus    `json:"policy"`
	Cordons []CordonStatus  `json:"cordons"`
	Revoked []RevokedStatus `json:"revoked"`

	Geometry GeometryStatus `json:"geometry"`
	Schemes  []SchemeStatus `json:"schemes"`
}

// MemberStatus is a voter, or an agent that is about to become one.
type MemberStatus struct {
	Agent  string `json:"agent"`
	RaftID string `json:"raft_id"`
	Voter  bool   `json:"voter"`
	Leader bool   `json:"leader"`
	Here   bool   `json:"here"` // it is this agent, or connected to it
}

// RevokedStatus is a certificate that the mesh has agreed to believe no more.
type RevokedStatus struct {
	Serial string `json:"serial"`
	Author string `json:"author"`
	Reason string `json:"reason"`
}

func (a *agreement) status(now time.Time) AgreedStatus {
	g, state := a.group.Status(), a.group.State()
	s := AgreedStatus{
		Role: g.Role, Leader: g.Leader, Quorum: g.Leader != "", Group: g.Group, Epoch: g.Epoch, Index: g.Index, Hash: g.Hash, Waiting: g.Waiting,
		Members: []MemberStatus{}, Faults: append([]agreed.Fault{}, g.Faults...), Policy: a.policyInForce().PolicyStatus,
		Cordons: a.cordons(now), Revoked: []RevokedStatus{},
		Geometry: a.n.geometryStatus(state.Geometry), Schemes: a.n.schemeStatus(state.Schemes),
	}
	for _, m := range a.group.Members() {
		p, _ := a.n.mesh.Peer(m.Agent)
		here := p.Connected || m.Agent == a.n.config.Mesh.Name
		s.Members = append(s.Members, MemberStatus{Agent: m.Agent, RaftID: m.RaftID, Voter: m.Voter, Leader: m.Leader, Here: here})
	}
	for _, r := range state.Revoked {
		s.Revoked = append(s.Revoked, RevokedStatus{r.Serial, r.Author, r.Reason})
	}
	return s
}

// notes says in words what is wrong.
func (a *agreement) notes() []string {
	s := a.group.Status()
	var notes []string
	switch {
	case s.Leader == "" && s.Index > 0:
		notes = append(notes, fmt.Sprintf("the agreed state has no quorum: requests go on by what was agreed up to index %d, and "+
			"nothing can be changed; kvmesh raft members shows who is missing", s.Index))
	case s.Leader == "" && a.n.config.BootstrapExpect > 0 && s.Waiting != "":
		notes = append(notes, "no group for the agreed state is founded yet: "+s.Waiting)
	}
	for _, f := range s.Faults {
		notes = append(notes, fmt.Sprintf("agreed state, %s: %s (%s)", f.Part, f.What, f.Advice))
	}
	if p := a.policyInForce(); p.Trouble != "" {
		notes = append(notes, p.Trouble)
	}
	return append(notes, a.local.notes()...)
}
