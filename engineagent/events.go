package engineagent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/kvevents"
)

// maxBlocks bounds the blocks that are followed of one engine: four million pages of one token, or 64 million tokens in
// blocks of 16.
const maxBlocks = 4 << 20

// keysPerDigest is how many renderings are remembered for each key that a digest takes: those of prompts that were
// evicted are worth keeping, since the next request brings their blocks back without their tokens being asked for.
const keysPerDigest = 4

// eventState is what an Agent knows of its engine's KV events.
type eventState struct {
	followed  bool      // sources are followed
	heard     bool      // an event came in this life
	lost      int       // times that what a rank holds was not known any more
	lostAt    time.Time // the last time
	lostWhy   string
	skipped   uint64 // events drained and not understood
	complaint string // why no source can be followed
}

// drainedLocked reports whether KV events come by polls.
func (a *Agent) drainedLocked() bool { return a.events.followed && len(a.followers) == 0 }

// live reports whether KV events say what the engine holds.
func (s *eventState) live() bool { return s.followed && s.heard }

// follower runs the followers of an engine's sources. It belongs to the goroutine of Run.
type follower struct {
	a       *Agent
	sources []kvevents.Source
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// follow makes sources the ones that are followed.
func (f *follower) follow(ctx context.Context, a *Agent, sources []kvevents.Source) {
	if slices.Equal(sources, f.sources) {
		return
	}
	f.stop()
	if len(f.sources) > 0 {
		a.noteUnfollowed("its KV events come from elsewhere, or not at all")
	}
	f.a, f.sources = a, sources
	if len(sources) == 0 {
		return
	}
	a.noteFollowed(len(sources))
	ctx, f.cancel = context.WithCancel(ctx)
	followers := make([]*kvevents.Follower, 0, len(sources))
	for _, s := range sources {
		fo := kvevents.NewFollower(s, kvevents.Options{Dial: a.cfg.DialEvents, Logger: a.log}, (*sink)(a))
		followers = append(followers, fo)
		f.wg.Go(func() {
			if err := fo.Run(ctx); err != nil {
				a.noteEventFault(err.Error())
			}
		})
	}
	a.setFollowers(followers)
	a.log.Info("following KV events", "sources", len(sources))
}

// stop ends all followers and waits for them.
func (f *follower) stop() {
	if f.cancel != nil {
		f.cancel()
		f.wg.Wait()
		f.cancel = nil
	}
}

// noteUnfollowed says that the sources that were followed are not any more: nobody would say when a block goes.
func (a *Agent) noteUnfollowed(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followers, a.events.followed, a.events.heard = nil, false, false
	a.blocks.RestartAll()
	a.renewLocked()
	a.truthLocked()
	a.log.Warn("KV events are not followed any more", "reason", why)
}

// noteFollowed says of how many ranks KV events are followed from now on.
func (a *Agent) noteFollowed(ranks int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if first := 1 / float64(ranks); a.cfg.Rank == "" && first != a.evidence.first {
		a.evidence.first, a.evidence.trust = first, first
	}
	a.events.followed = true
	defer a.truthLocked()
	if a.blocks != nil {
		return
	}
	a.blocks = cachestate.NewBlocks(0, maxBlocks, keysPerDigest*mostKeys(a.geometries),
		func(t cachestate.Tier, k cachestate.Key, resident bool) { a.cache.change(t, k, resident) })
	a.cache.blocks = a.blocks
}

// noteEventFault says why no source can be followed; "" is for a fault that is over.
func (a *Agent) noteEventFault(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.events.complaint == why {
		return
	}
	if a.events.complaint = why; why != "" {
		a.log.Warn("KV events cannot be followed", "reason", why)
	}
}

func (a *Agent) setFollowers(f []*kvevents.Follower) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followers = f
}

// eventStats are what came of following KV events, in sums over all sources.
type eventStats struct {
	sources, connected int
	lost               int // times that what a rank holds was not known any more
	gaps               uint64
	skipped            uint64 // events that were not understood
}

func (a *Agent) eventStats() (sum eventStats) {
	a.mu.Lock()
	followers := a.followers
	sum.lost, sum.skipped = a.events.lost, a.events.skipped
	a.mu.Unlock()
	sum.sources = len(followers)
	for _, f := range followers {
		s := f.Stats()
		if s.Connected {
			sum.connected++
		}
		sum.gaps += s.Gaps
		sum.skipped += s.Skipped
	}
	return sum
}

// sink is an Agent as its followers see it.
type sink Agent

var _ kvevents.Sink = (*sink)(nil)

// Apply implements kvevents.Sink.
func (s *sink) Apply(rank int, events []cachestate.BlockEvent) {
	a := (*Agent)(s)
	if a.elsewhere(rank) {
		return
	}
	a.metrics.events.Add(float64(len(events)))
	for len(events) > eventsAtOnce {
		a.apply(rank, events[:eventsAtOnce])
		events = events[eventsAtOnce:]
	}
	a.apply(rank, events)
}

// eventsAtOnce bounds the events taken in under one hold of the lock: requests and answers wait for it.
const eventsAtOnce = 16

func (a *Agent) apply(rank int, events []cachestate.BlockEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := !a.events.heard
	a.events.heard = true
	for i := range events {
		if events[i].Kind == cachestate.BlocksCleared {
			a.cache.forgetMirror(a.capacityLocked())
		}
		a.blocks.Apply(rank, &events[i])
	}
	if first || a.blocks.Sparse() && !a.cache.muted {
		a.stabilityLocked()
	}
}

// Lost implements kvevents.Sink.
func (s *sink) Lost(rank int, why string) {
	a := (*Agent)(s)
	if a.elsewhere(rank) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events.lost++
	a.events.lostAt, a.events.lostWhy = a.cfg.Now(), why
	a.log.Warn("what the engine holds is not known any more", "reason", why, "rank", rank)
	a.blocks.Forget(rank)
	a.renewLocked()
}

// Restarted implements kvevents.Sink.
func (s *sink) Restarted(rank int, why string) {
	a := (*Agent)(s)
	if a.elsewhere(rank) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.blocks.Restart(rank)
	a.restartLocked(why)
}

// elsewhere reports whether a rank is another engine.
func (a *Agent) elsewhere(rank int) bool { return a.cfg.Rank != "" && a.cfg.Rank != fmt.Sprint(rank) }
