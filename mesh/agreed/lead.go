package agreed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// roll is what a leader remembers of the agents with a data folder, by raft id.
type roll map[string]attendance

// attendance is when an agent answered, as it said itself.
type attendance struct {
	agent     string
	since     time.Time // of the first answer without a miss since
	last      time.Time
	lastIndex uint64
	supported int
	seen      bool // in this round
}

// leadAll does what a leader does besides deciding: it names the group, and keeps the voters alive ones.
func (g *Group) leadAll() {
	present := roll{}
	for g.ctx.Err() == nil {
		moved := g.movement()
		v := g.voter.Load()
		if !v.leads() {
			present = roll{} // a new leader gives everyone the full time
			g.await(moved, g.cfg.Timings.Reconcile)
			continue
		}
		if err := g.reconcile(v, present); err != nil {
			g.log.Debug("voters not reconciled", "err", err)
		}
		g.sleep(g.cfg.Timings.Reconcile)
	}
}

// reconcile is one round of a leader. Each step is taken alone, on what the step before left.
func (g *Group) reconcile(v *voter, present roll) error {
	ctx, cancel := context.WithTimeout(g.ctx, g.cfg.Timings.WriteTimeout)
	defer cancel()
	if len(present) == 0 { // it has just begun to lead: its state must have all that was decided before
		if err := v.barrier(ctx, g.cfg.Timings.AttemptTimeout); err != nil {
			return err
		}
	}
	if err := g.markHistory(ctx, v); err != nil {
		return err
	}
	servers := v.servers()
	g.callRoll(ctx, servers, present)
	if to := commonVersion(servers, present); to > v.machine.state().state.Version {
		return g.order(ctx, v, &Command{ID: fmt.Sprint("raise-", to), Kind: kindRaise, To: uint64(to)})
	}
	step, s := nextStep(servers, present, g.raftID(), plan{
		now: time.Now(), lostAfter: g.cfg.Timings.LostAfter, stableAfter: g.cfg.Timings.StableAfter,
		version: v.machine.state().state.Version, index: v.raft.LastIndex(),
	})
	return g.take(ctx, v, step, s)
}

// markHistory names a new group, and begins an epoch after a recovery.
func (g *Group) markHistory(ctx context.Context, v *voter) error {
	if v.machine.state().state.Group == "" {
		if err := g.order(ctx, v, &Command{ID: "found", Kind: kindFound, Model: randomID()}); err != nil {
			return err
		}
	}
	path := filepath.Join(g.cfg.Folder, recoveryFile)
	id, err := readBounded(path, maxIDBytes)
	if id == nil || err != nil {
		return err
	}
	if err := g.order(ctx, v, &Command{ID: string(id), Kind: kindEpoch}); err != nil {
		return err
	}
	return os.Remove(path)
}

// order decides on a command of the leader's own.
func (g *Group) order(ctx context.Context, v *voter, c *Command) error {
	if a := g.decide(ctx, v, c); a.Code != "" {
		return fmt.Errorf("%s command: %s", c.Kind, a.Text)
	}
	return nil
}

// callRoll asks all agents that could vote how they are.
func (g *Group) callRoll(ctx context.Context, servers []server, present roll) {
	names := map[string]struct{}{g.cfg.Name: {}}
	for _, s := range servers {
		if name, ok := g.agentOf(s.ID); ok {
			names[name] = struct{}{}
		}
	}
	for _, a := range g.cfg.Agents.Agents() {
		if a.RaftID != "" && len(names) < maxRoll {
			names[a.Name] = struct{}{}
		}
	}
	list := make([]string, 0, len(names))
	for name := range names {
		list = append(list, name)
	}
	present.update(servers, g.askEach(ctx, list, question{Op: opAsk}), time.Now())
}

// maxRoll bounds the agents that a leader asks each round: a few spare ones are enough.
const maxRoll = 3 * MaxVoters

// update records who answered, at now. A server that this leader never heard counts as away from now on.
func (r roll) update(servers []server, answers map[string]answer, now time.Time) {
	for _, s := range servers {
		if _, ok := r[s.ID]; !ok {
			r[s.ID] = attendance{agent: s.Agent, last: now}
		}
	}
	for id, a := range r {
		a.seen = false
		r[id] = a
	}
	for name, a := range answers {
		if a.RaftID == "" || !a.Well {
			continue
		}
		was, ok := r[a.RaftID]
		if !ok || was.since.IsZero() {
			was.since = now
		}
		r[a.RaftID] = attendance{agent: name, since: was.since, last: now, lastIndex: a.LastIndex, supported: a.Supported, seen: true}
	}
	for id, a := range r {
		if !a.seen {
			a.since = time.Time{}
			r[id] = a
		}
	}
}

// commonVersion is the version that all voters know; 0 where one did not answer.
func commonVersion(servers []server, present roll) int {
	version := Supported
	for _, s := range servers {
		a := present[s.ID]
		if !a.seen {
			return 0
		}
		version = min(version, a.supported)
	}
	return version
}

// step is one change of the voters.
type step int

const (
	stepNone    step = iota
	stepRename       // a voter's agent has another name
	stepPromote      // a server that has caught up becomes a voter
	stepAdd          // an agent begins to catch up
	stepRemove       // a server goes
)

// plan is what nextStep decides by, besides who is there.
type plan struct {
	now                    time.Time
	lostAfter, stableAfter time.Duration
	version                int
	index                  uint64 // the leader's last
}

// catchUp is how many entries a server may be behind when it becomes a voter: what comes in while it is asked.
const catchUp = 16

// nextStep returns the one change that brings the voters closest to what they should be. A voter is taken out only where
// those that answer are a majority of the rest, and only by itself: after its place is filled, when its agent has come
// back under another raft id, or when it never caught up.
func nextStep(servers []server, present roll, self string, p plan) (step, server) {
	voters, healthy := 0, 0
	for _, s := range servers {
		if s.Voter {
			voters++
			if present[s.ID].seen {
				healthy++
			}
		}
	}
	for _, s := range servers {
		a := present[s.ID]
		switch {
		case a.seen && a.agent != s.Agent:
			return stepRename, server{ID: s.ID, Agent: a.agent, Voter: s.Voter}
		case a.seen && !s.Voter && a.lastIndex+catchUp >= p.index && wanted(voters, healthy, spare(servers, present, p)):
			return stepPromote, s
		}
	}
	for _, s := range servers {
		if s.ID != self && !present[s.ID].seen && removable(s, voters, healthy) && (replaced(s, present) || p.lost(s, present, voters, healthy)) {
			return stepRemove, s
		}
	}
	if slices.ContainsFunc(servers, func(s server) bool { return !s.Voter }) {
		return stepNone, server{} // one at a time
	}
	if spares := spare(servers, present, p); wanted(voters, healthy, spares) {
		return stepAdd, spares[0]
	}
	return stepNone, server{}
}

// removable reports whether a majority of the voters answers after s, which does not, has gone.
func removable(s server, voters, healthy int) bool {
	if s.Voter {
		voters--
	}
	return healthy > voters/2
}

// replaced reports whether the agent of s has come back with a new data folder, and so as another server.
func replaced(s server, present roll) bool {
	for id, a := range present {
		if id != s.ID && a.seen && a.agent == s.Agent {
			return true
		}
	}
	return false
}

// lost reports whether s is away for long enough, and if it votes, whether others have filled its place.
func (p plan) lost(s server, present roll, voters, healthy int) bool {
	const least = 3 // fewer would not bear the next loss
	a, known := present[s.ID]
	if known && p.now.Sub(a.last) < p.lostAfter {
		return false
	}
	return known && (!s.Voter || (healthy >= least && healthy >= voters-1))
}

// wanted reports whether one more voter is: up to MaxVoters that answer, of which an even number would bear no more losses
// than one less.
func wanted(voters, healthy int, spares []server) bool {
	size := min(MaxVoters, healthy+len(spares))
	if size%2 == 0 {
		size--
	}
	return healthy < size && voters <= MaxVoters
}

// spare returns the agents that can become voters, those that answered for the longest first, servers that do not vote yet
// included.
func spare(servers []server, present roll, p plan) []server {
	var spares []server
	for id, a := range present {
		isVoter := slices.ContainsFunc(servers, func(s server) bool { return s.ID == id && s.Voter })
		if !isVoter && a.seen && p.now.Sub(a.since) >= p.stableAfter && a.supported >= p.version {
			spares = append(spares, server{ID: id, Agent: a.agent})
		}
	}
	slices.SortFunc(spares, func(a, b server) int {
		if d := present[a.ID].since.Compare(present[b.ID].since); d != 0 {
			return d
		}
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	})
	return spares
}

// take carries a step out.
func (g *Group) take(ctx context.Context, v *voter, st step, s server) error {
	id, address, timeout := raft.ServerID(s.ID), raft.ServerAddress(s.Agent), g.cfg.Timings.AttemptTimeout
	if st == stepNone {
		return nil
	}
	g.log.Info("voters change", "step", st.String(), "peer", s.Agent, "raft_id", s.ID)
	return v.ask(ctx, func() raft.Future {
		switch {
		case st == stepRemove:
			return v.raft.RemoveServer(id, 0, timeout)
		case st == stepAdd || (st == stepRename && !s.Voter):
			return v.raft.AddNonvoter(id, address, 0, timeout)
		}
		return v.raft.AddVoter(id, address, 0, timeout)
	})
}

// String returns the step as a log line names it.
func (s step) String() string {
	return [...]string{"none", "rename", "promote", "add", "remove"}[s]
}

// Leave takes this agent out of the voters, so that it can stop for good; a leader hands over first. It is for agents that
// go, not for a restart. An agent that is no voter has nothing to leave.
func (g *Group) Leave(ctx context.Context) error {
	id := g.raftID()
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timings.WriteTimeout)
	defer cancel()
	if v := g.voter.Load(); v.leads() {
		if err := v.ask(ctx, v.raft.LeadershipTransfer); err != nil {
			return fmt.Errorf("leave: hand over: %w", err)
		}
	}
	if id == "" || !slices.ContainsFunc(g.latest().Servers, func(s server) bool { return s.ID == id }) {
		return nil
	}
	if _, err := g.askLeader(ctx, question{Op: opLeave, From: id}); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// release takes a server out that leaves.
func (g *Group) release(ctx context.Context, id string) answer {
	v := g.voter.Load()
	if !v.leads() || id == g.raftID() {
		return g.notLeader()
	}
	servers := v.servers()
	at := slices.IndexFunc(servers, func(s server) bool { return s.ID == id })
	if at < 0 {
		return answer{}
	}
	if err := g.take(ctx, v, stepRemove, servers[at]); err != nil {
		if errors.Is(err, raft.ErrNotLeader) {
			return g.notLeader()
		}
		return answer{Code: codeUncertain, Text: err.Error()}
	}
	return answer{}
}
