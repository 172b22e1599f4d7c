package agreed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// The state is small and its log is not, so snapshots are frequent and few entries are kept behind them. Both bound
	// the log on disk, of which one entry has up to 320 KiB.
	snapshotThreshold = 256
	trailingLogs      = 128
	snapshotInterval  = 30 * time.Second
	// leaseShare of a heartbeat a leader leads on without a majority: shorter ends writes that nobody could see sooner.
	leaseShare = 2
	maxPool    = 3 // connections kept to each other voter
	// observations wait at most; they only say that something moved.
	observations = 16
	// answerTimeout is how long a stopping voter waits for raft to answer what was asked: a lease is far shorter.
	answerTimeout = 10 * time.Second
)

// voter is this agent's raft instance. Every agent with a data folder has one; the leader decides which take part.
type voter struct {
	raft    *raft.Raft
	layer   *layer
	machine *machine
	trans   *raft.NetworkTransport
	stores  *stores
	moved   chan raft.Observation
	done    chan struct{}
	asked   tasks // futures that raft has not answered yet
}

// server is a voter, or one that is about to become one.
type server struct {
	ID    string `json:"id"`
	Agent string `json:"agent"`
	Voter bool   `json:"voter,omitzero"`
}

// voteAll keeps a voter running. What ends it is a fault; then it is started again, from what is on disk.
func (g *Group) voteAll() {
	for g.ctx.Err() == nil {
		err := g.voteOnce()
		if g.setFault("raft", err, adviceFor(err)) {
			g.sleep(g.cfg.Timings.RetryDisk)
		}
		if errors.Is(err, errDamaged) || errors.Is(err, errStalled) {
			<-g.ctx.Done() // the same would happen again
		}
	}
}

func adviceFor(err error) string {
	switch {
	case errors.Is(err, errStalled):
		return "upgrade this agent to the version of the others"
	case errors.Is(err, syscall.ENOSPC):
		return "free disk space: it is tried again by itself"
	}
	return "check the disk; if the data folder is damaged, stop this agent, move the folder away and start it again: it joins as a new voter"
}

// voteOnce runs a voter until it fails, is to begin again, or the group ends.
func (g *Group) voteOnce() error {
	if g.raftID() == "" && (prepareFolder(g.cfg.Folder) != nil || !g.loadVoter()) {
		return errors.New("data folder cannot be used")
	}
	failed := make(chan error, 1)
	v, err := g.startVoter(failed)
	if err != nil {
		return err
	}
	g.voter.Store(v)
	g.setFault("raft", nil, "")
	g.wake()
	select {
	case err = <-failed:
	case <-g.restart:
	case <-g.ctx.Done():
	}
	g.voter.Store(nil)
	return errors.Join(err, v.stop())
}

func (g *Group) raftID() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.id
}

// startVoter opens the stores and begins raft. Faults from then on go to failed.
func (g *Group) startVoter(failed chan<- error) (*voter, error) {
	onFault := func(err error) {
		select {
		case failed <- err:
		default: // the first is what matters
		}
	}
	m, err := newMachine(g.adopt, g.wake, onFault)
	if err != nil {
		return nil, err
	}
	v := &voter{machine: m, layer: newLayer(g.cfg.Name, g.open), moved: make(chan raft.Observation, observations), done: make(chan struct{})}
	err = isolate(func() error {
		s, err := g.cfg.openStores()
		if err != nil {
			return err
		}
		v.stores = s
		return g.startRaft(v, &guard{logs: s.logs, stable: s.stable, onFault: onFault})
	})
	if err == nil {
		g.tasks.spawn(func() { v.observe(g.wake) })
		return v, nil
	}
	return nil, errors.Join(err, v.abandon())
}

func (g *Group) startRaft(v *voter, store *guard) error {
	if err := g.bootstrap(store, v.stores.snaps); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	log := newRaftLog(g.log)
	v.trans = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: v.layer, ServerAddressProvider: addresses{g}, Logger: log, MaxPool: maxPool,
		Timeout: g.cfg.Timings.AttemptTimeout, MsgpackUseNewTimeFormat: true,
	})
	r, err := raft.NewRaft(raftConfig(g.raftID(), g.cfg.Timings, log), v.machine, store, store, v.stores.snaps, v.trans)
	if err != nil {
		return err
	}
	v.raft = r
	r.RegisterObserver(raft.NewObserver(v.moved, false, nil))
	return nil
}

func raftConfig(id string, t Timings, log hclog.Logger) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(id)
	c.HeartbeatTimeout, c.ElectionTimeout = t.Heartbeat, t.Heartbeat
	c.LeaderLeaseTimeout = t.Heartbeat / leaseShare
	c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = snapshotThreshold, trailingLogs, snapshotInterval
	c.NoLegacyTelemetry = true
	c.Logger = log
	return c
}

// observe passes on that raft's view has moved.
func (v *voter) observe(wake func()) {
	for {
		select {
		case <-v.moved:
			wake()
		case <-v.done:
			return
		}
	}
}

// ask gives raft something to do and waits for what comes of it, at most until ctx ends.
func (v *voter) ask(ctx context.Context, begin func() raft.Future) error {
	done := make(chan error, 1)
	if !v.asked.spawn(func() { done <- begin().Error() }) {
		return ErrStopped
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// barrier waits until everything decided before is in the state.
func (v *voter) barrier(ctx context.Context, timeout time.Duration) error {
	return v.ask(ctx, func() raft.Future { return v.raft.Barrier(timeout) })
}

// stop ends raft and waits for it. Raft answers nothing that its state machine still had to do when it was shut down, so
// what was asked comes first: a leader without a majority gives up within its lease.
func (v *voter) stop() error {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		v.asked.wait()
	}()
	select {
	case <-answered:
	case <-time.After(answerTimeout):
	}
	err := v.raft.Shutdown().Error()
	close(v.done)
	return errors.Join(err, v.abandon())
}

// abandon closes what startVoter opened.
func (v *voter) abandon() error {
	var errs []error
	if v.trans != nil {
		errs = append(errs, v.trans.Close())
	}
	errs = append(errs, v.layer.Close())
	if v.stores != nil {
		errs = append(errs, survive(v.stores.close))
	}
	return errors.Join(errs...)
}

// servers returns the raft configuration as this agent has it.
func (v *voter) servers() []server {
	if v == nil {
		return nil
	}
	f := v.raft.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	var all []server
	for _, s := range f.Configuration().Servers {
		all = append(all, server{string(s.ID), string(s.Address), s.Suffrage == raft.Voter})
	}
	return all
}

// leader returns the raft id of the leader that this voter follows; empty where it knows none.
func (v *voter) leader() string {
	if v == nil {
		return ""
	}
	_, id := v.raft.LeaderWithID()
	return string(id)
}

func (v *voter) leads() bool { return v != nil && v.raft.State() == raft.Leader }

// addresses finds the agent that has a raft id now: a name in raft's configuration may be an old one.
type addresses struct{ g *Group }

// ServerAddr implements raft.ServerAddressProvider.
func (a addresses) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if name, ok := a.g.agentOf(string(id)); ok {
		return raft.ServerAddress(name), nil
	}
	return "", fmt.Errorf("no agent has raft id %s", id) // raft then takes the name that it has
}

func (g *Group) agentOf(id string) (string, bool) {
	if id == g.raftID() {
		return g.cfg.Name, true
	}
	all := g.cfg.Agents.Agents()
	i := slices.IndexFunc(all, func(a Agent) bool { return a.RaftID == id })
	if i < 0 {
		return "", false
	}
	return all[i].Name, true
}

// news is who decides, as this agent's raft or the voter that it watches has it.
type news struct {
	Leader  string   `json:"leader,omitzero"` // agent; empty: none, so no quorum as seen from there
	Servers []server `json:"servers,omitzero"`
}

// latest returns the news as this agent knows them: as leader, from its own raft; else what it was told by the leader that
// its raft follows, as a server that was removed may hear heartbeats for a while and not learn that it was; else what
// its own raft has, or the voter that it watches.
func (g *Group) latest() news {
	v, told := g.voter.Load(), g.known.Load()
	leader := g.ownLeader()
	if leader == "" || (!v.leads() && told.Leader == leader) {
		return *told
	}
	n := news{Leader: leader, Servers: v.servers()}
	for i, s := range n.Servers {
		if name, ok := g.agentOf(s.ID); ok {
			n.Servers[i].Agent = name
		}
	}
	return n
}

// ownLeader returns the agent that leads as this agent's own raft has it; empty where that knows none.
func (g *Group) ownLeader() string {
	v := g.voter.Load()
	id := v.leader()
	if id == "" {
		return ""
	}
	if name, ok := g.agentOf(id); ok {
		return name
	}
	address, _ := v.raft.LeaderWithID()
	return string(address)
}
