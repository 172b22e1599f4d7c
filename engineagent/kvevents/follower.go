package kvevents

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvmesh/kvmesh/internal/zmtp"
)

// Follower follows one source: one publisher, over all its connections and processes.
type Follower struct {
	source Source
	o      Options
	sink   Sink
	inbox  inbox
	links  atomic.Uint64 // connections so far

	// The rest, but for what mu guards, belongs to the goroutine of Run.

	tracker tracker
	decoder Decoder
	batch   Batch
	hold    hold
	open    []*link // connections that last, oldest first
	current *link   // the one that is followed; nil when there is none
	ranks   []int   // that this process named
	holding bool    // they may hold something
	away    bool    // not connected for so long that what they held was given up
	foreign bool    // on this connection, the replay socket turned out to be of another publisher
	partial bool    // for want of a replay, less is held than could be
	// processes counts the restarts.
	processes int

	// When to do what, if not zero.
	fillAt  time.Time // to give up waiting for a batch that is late; fillFor is its number
	fillFor uint64
	checkAt time.Time // to ask whether the last batches were lost
	leaveAt time.Time // to give up what is held, for want of a connection
	// rebuildAt is when to ask again after a replay that failed; rebuildPause is how long ahead that was planned.
	rebuildAt    time.Time
	rebuildPause time.Duration
	// deafUntil is until when the replay socket is not asked after it did not answer: a second wait for nothing would
	// leave wrong keys for longer than 2 s.
	deafUntil time.Time

	mu    sync.Mutex
	stats Stats // guarded by mu
}

// NewFollower returns a Follower that does nothing until Run.
func NewFollower(s Source, o Options, sink Sink) *Follower {
	return &Follower{source: s, o: o.withDefaults(), sink: sink, inbox: newInbox()}
}

// Stats returns what was seen so far. It is safe for concurrent use.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

func (f *Follower) count(change func(*Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.stats)
	f.stats.Next = f.tracker.next
}

const (
	// checkAfter is how long a publisher may be quiet before it is asked whether its last batches were lost: no later
	// number shows that.
	checkAfter = time.Second
	// maxAway is how long what is held may be believed without a connection: digests that are 30 s old are still mostly
	// right.
	maxAway = 30 * time.Second
	// maxRanks bounds the ranks of one publisher; there should be one.
	maxRanks = 64
)

// Run follows the source until ctx ends, through every loss of the connection. It is called once. It returns an error
// only for a source that can never be followed.
func (f *Follower) Run(ctx context.Context) error {
	network, address, err := zmtp.Endpoint(f.source.Endpoint)
	if err != nil {
		return err
	}
	if f.source.Replay != "" {
		if _, _, err := zmtp.Endpoint(f.source.Replay); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	reach := f.connect
	if f.source.Bind {
		reach = f.accept
	}
	wg.Go(func() {
		f.persist(ctx, func(ctx context.Context) error { return reach(ctx, network, address) })
	})
	f.loop(ctx)
	f.setConnected(false)
	return nil
}

func (f *Follower) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if due := f.due(); due.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return
		case n := <-f.inbox.notes:
			f.inbox.taken(n)
			f.take(ctx, n)
		case <-timer.C:
			f.tick(ctx, time.Now())
		}
	}
}

// due is when to tick next; zero is never.
func (f *Follower) due() time.Time {
	var first time.Time
	for _, t := range []time.Time{f.fillAt, f.checkAt, f.leaveAt, f.rebuildAt} {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// reached reports whether the time t is set and has come, and takes it away.
func reached(t *time.Time, now time.Time) bool {
	if t.IsZero() || now.Before(*t) {
		return false
	}
	*t = time.Time{}
	return true
}

// tick does what is due.
func (f *Follower) tick(ctx context.Context, now time.Time) {
	if reached(&f.fillAt, now) && !f.hold.empty() {
		f.fill(ctx, f.hold.pop())
		f.release(ctx)
	}
	if reached(&f.checkAt, now) && f.current != nil {
		_ = f.catchUp(ctx) // nothing says that anything is missing
	}
	if reached(&f.rebuildAt, now) && f.current != nil {
		if err := f.rebuild(ctx); err != nil {
			f.rebuildLater()
		}
	}
	if reached(&f.leaveAt, now) {
		f.away = true
		f.lose(fmt.Sprintf("no connection to the KV events for %v", maxAway))
	}
}
