package agreed

import (
	"cmp"
	"encoding/hex"
	"maps"
	"slices"
)

// Role is this agent's part in the group.
type Role string

// The roles.
const (
	RoleLeader  Role = "leader"
	RoleVoter   Role = "voter"
	RoleStandby Role = "standby" // has a data folder and can become a voter
	RoleWatcher Role = "watcher" // has none
)

// Status is how the agreed state is, as seen from this agent.
type Status struct {
	Role    Role
	Leader  string // agent; empty: writes fail at present
	Group   string
	Epoch   uint64
	Index   uint64
	Hash    string  // of the state, SHA-256 in hexadecimal
	Faults  []Fault // what is wrong here; routing goes on
	Waiting string  // why no group was founded yet
}

// Fault is something that an operator can do something about.
type Fault struct {
	Part   string // what is impaired, such as "raft" or "state file"
	What   string
	Advice string
}

// Status returns how things are. It does not wait.
func (g *Group) Status() Status {
	h, n := g.current.Load(), g.latest()
	s := Status{
		Role: g.role(n), Leader: n.Leader,
		Group: h.mark.Group, Epoch: h.mark.Epoch, Index: h.mark.Index, Hash: hex.EncodeToString(h.mark.Hash[:]),
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Waiting = g.settled
	for _, part := range slices.Sorted(maps.Keys(g.faults)) {
		f := g.faults[part]
		s.Faults = append(s.Faults, Fault{part, f.what, f.advice})
	}
	return s
}

func (g *Group) role(n news) Role {
	id := g.raftID()
	switch {
	case g.voter.Load().leads():
		return RoleLeader
	case id != "" && slices.ContainsFunc(n.Servers, func(s server) bool { return s.ID == id && s.Voter }):
		return RoleVoter
	case id != "":
		return RoleStandby
	}
	return RoleWatcher
}

// Member is a voter, or an agent that is about to become one.
type Member struct {
	Agent  string
	RaftID string
	Voter  bool
	Leader bool
}

// Members returns the voters as last heard, by name. It does not wait.
func (g *Group) Members() []Member {
	n := g.latest()
	members := make([]Member, 0, len(n.Servers))
	for _, s := range n.Servers {
		members = append(members, Member{Agent: s.Agent, RaftID: s.ID, Voter: s.Voter, Leader: s.Agent == n.Leader})
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Agent, b.Agent) })
	return members
}

// Self returns what other agents should know of this one before they ask it: its node metadata.
func (g *Group) Self() Agent {
	return Agent{Name: g.cfg.Name, RaftID: g.raftID(), Expect: g.cfg.Expect, HasState: g.State().Index > 0}
}
