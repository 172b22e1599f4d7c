package agreed

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// What callers branch on.
var (
	// ErrNoQuorum is returned where no leader with a majority of voters could be reached in time.
	ErrNoQuorum = errors.New("no quorum: a majority of the voters, or the way to it, is down")
	// ErrUncertain comes together with ErrNoQuorum for a command that reached a leader: it may still come into force.
	// Proposing it again with the same ID does it once.
	ErrUncertain = errors.New("the command may still come into force")
	// ErrRefused is returned with a Result that has a Refusal.
	ErrRefused = errors.New("refused")
	// ErrNewerVersion is returned for a command that some voter would not know.
	ErrNewerVersion = errors.New("not all voters know this command: upgrade them first")
	// ErrStopped is returned by a group that does not run.
	ErrStopped = errors.New("agreed state is stopped")
)

// Group is this agent's part in the agreed state. All methods may be called at any time from any goroutine.
type Group struct {
	cfg Config
	log *slog.Logger

	current atomic.Pointer[held]
	known   atomic.Pointer[news] // who decides, as last heard
	voter   atomic.Pointer[voter]

	mu       sync.Mutex
	id       string // raft id; empty without a folder
	acceptor acceptor
	changed  chan struct{} // closed at the next change of state, and replaced
	moved    chan struct{} // the same for who decides, and for what a watcher is told
	faults   map[string]fault
	settled  string // why no group is founded yet

	restart chan struct{} // tells the voter to begin again
	fetches chan offer

	ctx     context.Context
	cancel  context.CancelCauseFunc
	tasks   tasks
	running atomic.Bool
}

// fault is what is wrong, and what an operator does about it.
type fault struct{ what, advice string }

// New checks the config and reads the last state, so that State is right before Run. A data folder that cannot be used
// is no error: Status tells.
func New(cfg Config) (*Group, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	start, err := hold(first())
	if err != nil {
		return nil, err
	}
	g := &Group{
		cfg: cfg, log: cfg.Logger.With("component", "agreed"), changed: make(chan struct{}), moved: make(chan struct{}),
		faults: map[string]fault{}, restart: make(chan struct{}, 1), fetches: make(chan offer, 1),
	}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	g.current.Store(start)
	g.known.Store(&news{})
	if cfg.Folder != "" {
		g.load()
	}
	return g, nil
}

// load reads the data folder. What fails is a fault and tried again while the group runs.
func (g *Group) load() {
	if g.setFault("folder", prepareFolder(g.cfg.Folder), "check that the data folder exists, belongs to kvmesh and has room") {
		return
	}
	h, err := loadState(g.cfg.Folder)
	if !g.setFault("state file", err, "none needed: the state comes from the other agents and replaces the file") && h != nil {
		g.adopt(h)
	}
	g.loadVoter()
}

// loadVoter reads who this agent is to the voters.
func (g *Group) loadVoter() bool {
	id, err := loadID(g.cfg.Folder, g.cfg.writeFile)
	if g.setFault("raft id", err, "free disk space, or move the data folder away: this agent then joins as a new voter") {
		return false
	}
	a, err := loadAcceptor(filepath.Join(g.cfg.Folder, foundingFile))
	if g.setFault("founding", err, "move the data folder away: this agent then joins as a new voter") {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.id, g.acceptor = id, a
	return true
}

// Run takes part until ctx ends. A broken disk does not end it: Status tells of it, and it is tried again.
func (g *Group) Run(ctx context.Context) error {
	if !g.running.CompareAndSwap(false, true) {
		return errors.New("run agreed state: it ran already")
	}
	stop := context.AfterFunc(ctx, func() { g.cancel(ErrStopped) })
	defer stop()
	loops := []func(){g.watchAll, g.fetchAll}
	if g.cfg.Folder != "" {
		loops = append(loops, g.saveAll, g.voteAll, g.foundAll, g.leadAll)
	}
	for _, loop := range loops {
		g.tasks.spawn(loop)
	}
	<-g.ctx.Done()
	g.tasks.wait()
	return nil
}

// State returns the newest state that this agent knows. It never waits and must not be changed. Before any command it has
// Index 0: the built-in policy, or the config file's, applies.
func (g *Group) State() *State { return g.current.Load().state }

// Changed returns a channel that is closed at the next change of State. Take it before State, to miss none.
func (g *Group) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// adopt makes h the current state if it is newer, whoever it comes from.
func (g *Group) adopt(h *held) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.current.Load()
	switch {
	case was.mark.Group != "" && h.mark.Group != "" && was.mark.Group != h.mark.Group:
		g.setFaultLocked("groups", errors.New("there are two groups of voters: another agent has the state of group "+h.mark.Group+
			", this one of "+was.mark.Group), "stop the agents of one group, move their data folders away and start them again")
		return
	case !h.mark.newer(was.mark):
		if h.mark.Epoch == was.mark.Epoch && h.mark.Index == was.mark.Index && h.mark.Hash != was.mark.Hash {
			g.setFaultLocked("fork", errors.New("another agent has another state of the same index"),
				"this is a fault of kvmesh: please report it with the state files of both agents")
		}
		return
	}
	g.current.Store(h)
	close(g.changed)
	g.changed = make(chan struct{})
	g.wakeLocked()
}

// wake lets everyone look again who waits for news.
func (g *Group) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wakeLocked()
}

func (g *Group) wakeLocked() {
	close(g.moved)
	g.moved = make(chan struct{})
}

func (g *Group) movement() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.moved
}

// setFault records err as the fault of a part, or that it has none, and reports whether it has.
func (g *Group) setFault(part string, err error, advice string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.setFaultLocked(part, err, advice)
}

func (g *Group) setFaultLocked(part string, err error, advice string) bool {
	was, had := g.faults[part]
	if err == nil {
		delete(g.faults, part)
		if had {
			g.log.Info("agreed state recovered", "part", part, "from", was.what)
		}
		return false
	}
	now := fault{err.Error(), advice}
	g.faults[part] = now
	if now != was {
		g.log.Error("agreed state is impaired; routing goes on", "part", part, "err", err, "advice", advice)
	}
	return true
}

// saveAll writes the state to disk whenever it has changed; of several in a row, the last.
func (g *Group) saveAll() {
	var saved *held
	for g.ctx.Err() == nil {
		changed := g.Changed()
		if now := g.current.Load(); now != saved && now.mark.Index > 0 {
			err := g.cfg.writeFile(filepath.Join(g.cfg.Folder, stateFile), encodeFile(now))
			if !g.setFault("state file", err, "free disk space: until then this agent starts without its last state") {
				saved = now
			} else {
				g.sleep(g.cfg.Timings.RetryDisk)
				continue
			}
		}
		g.await(changed, 0)
	}
}

// await returns when wake is closed, after limit (0: none), or with the group.
func (g *Group) await(wake <-chan struct{}, limit time.Duration) {
	var timeout <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-wake:
	case <-timeout:
	case <-g.ctx.Done():
	}
}

func (g *Group) sleep(d time.Duration) { g.await(nil, d) }

// open opens a stream of a kind to an agent.
func (g *Group) open(ctx context.Context, agent string, kind byte) (net.Conn, error) {
	conn, err := g.cfg.Streams.Open(ctx, agent)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := conn.Write([]byte{kind}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, conn.SetDeadline(time.Time{})
}

// Serve serves one stream that another agent opened, and closes it.
func (g *Group) Serve(conn net.Conn) {
	if !g.tasks.enter() {
		conn.Close()
		return
	}
	defer g.tasks.leave()
	defer conn.Close()
	// A stream is ended by its deadline, as closing must not meet a write.
	defer context.AfterFunc(g.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	_ = conn.SetReadDeadline(time.Now().Add(g.cfg.Timings.AttemptTimeout))
	var kind [1]byte
	if _, err := conn.Read(kind[:]); err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	switch kind[0] {
	case streamRaft:
		if v := g.voter.Load(); v != nil {
			v.layer.serve(conn)
		}
	case streamQuery:
		g.serveQuery(conn)
	case streamWatch:
		g.serveWatch(conn)
	}
}

// tasks are goroutines that wait ends after, also those that others begin.
type tasks struct {
	mu      sync.Mutex
	stopped bool
	wg      sync.WaitGroup
}

// enter makes wait wait until leave, unless it was called.
func (t *tasks) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	t.wg.Add(1)
	return true
}

func (t *tasks) leave() { t.wg.Done() }

func (t *tasks) spawn(f func()) bool {
	if !t.enter() {
		return false
	}
	go func() {
		defer t.leave()
		f()
	}()
	return true
}

func (t *tasks) wait() {
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	t.wg.Wait()
}
