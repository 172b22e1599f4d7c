package engineagent

import (
	"cmp"
	"context"
	"errors"
	"reflect"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// hear takes the answer to a health check and returns whether the engine is up.
func (a *Agent) hear(got answer) (up bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.life.up
	if a.life.hear(got) {
		a.restartLocked("it had refused a connection")
	}
	if was != a.life.up {
		a.log.Info("engine changed state", "up", a.life.up)
	}
	a.reviveLocked()
	a.announceLocked()
	return a.life.up
}

// errHung is the cause of requests that end because their engine does not answer any more.
var errHung = errors.New("engine does not answer")

// reviveLocked gives up the requests on an engine that hangs, once, and lets new ones live when it answers again.
func (a *Agent) reviveLocked() {
	switch dead := a.alive.Err() != nil; {
	case a.life.hung() && !dead:
		a.log.Warn("engine hangs: its requests are given up", "in_flight", a.ledger.inFlight())
		a.kill(errHung)
	case !a.life.hung() && dead:
		a.alive, a.kill = context.WithCancelCause(context.Background())
	}
}

// Alive returns a context that ends, with its cause, when the requests on the engine are to be given up.
func (a *Agent) Alive() context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alive
}

// bookings is how many requests were booked at one moment.
type bookings struct {
	open, waiting int
	ever          uint64
}

// openBookings is to be read before the engine is asked for its load.
func (a *Agent) openBookings() bookings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return bookings{a.ledger.inFlight(), len(a.ledger.waiting), a.admitted}
}

// noteReading takes what the engine says of itself. before are the bookings when it was asked: those and the ones
// accepted since may be in the reading. It returns whether the reading shows a restart.
func (a *Agent) noteReading(r *reading, kind engine.Kind, before bookings) (restarted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if restarted = a.life.read(r); restarted {
		a.restartLocked("its metrics began again")
	}
	since := int(a.admitted - before.ever)
	a.report.read(r, before.open+since, before.waiting+since)
	a.report.readTokens(r, a.ledger.newTokens)
	a.learnCountersLocked(r, a.cfg.Now())
	a.factsLocked(r, kind)
	a.truthLocked()
	a.announceLocked()
	return restarted
}

// noteUnread says that a round brought no reading. never says that the engine answered and has none to give.
func (a *Agent) noteUnread(never bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.report.miss()
	if never && a.life.up && a.life.unread() {
		a.restartLocked("it came back and shows no identity")
	}
	a.announceLocked()
}

// factsLocked takes the facts that stand in a reading. What the configuration says goes first.
func (a *Agent) factsLocked(r *reading, kind engine.Kind) {
	e := a.engine
	if e.Kind == "" || e.Kind == engine.KindOther && a.cfg.Kind == "" {
		e.Kind = kind
	}
	if r.blockTokens > 0 {
		e.BlockTokens = r.blockTokens
	}
	if a.cfg.CapacityTokens == 0 && r.capacityTokens > 0 {
		e.CapacityTokens = r.capacityTokens
	}
	if a.cfg.MaxRunning == 0 && r.maxRunning > 0 {
		e.MaxRunning = r.maxRunning
	}
	if r.noPrefixCache {
		a.reuses = false
	}
	a.describeLocked(e)
}

// noteDescription takes what the engine's other routes say.
func (a *Agent) noteDescription(kind engine.Kind, cards []card, info serverInfo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.engine
	e.Models, a.adapters = a.laidOutLocked(modelsOf(cards)), adaptersOf(cards)
	e.Kind = cmp.Or(kind, e.Kind, engine.KindOther)
	// Only what no reading has said yet: a reading knows all ranks, server_info one.
	e.BlockTokens = cmp.Or(e.BlockTokens, clampInt(info.PageSize, maxBlockTokens))
	e.CapacityTokens = cmp.Or(e.CapacityTokens, int64(min(max(info.MaxTokens, 0), maxCapacityTokens)))
	e.MaxRunning = cmp.Or(e.MaxRunning, clampInt(info.MaxRunning, maxMaxRunning))
	a.reports = info.CacheReport
	a.reuses = a.reuses && !info.NoRadixCache
	a.describeLocked(e)
}

// describeLocked makes e the engine's description.
func (a *Agent) describeLocked(e engine.Engine) {
	same := reflect.DeepEqual(e, a.engine)
	a.engine = e
	a.cache.fit(a.capacityLocked(), e.BlockTokens)
	if !same {
		a.describedLocked()
	}
}

// restartLocked begins the next life of the engine's cache. Bookings stay: whoever carries them will find out. What KV
// events say of blocks is left to those who follow a connection: they know whether it is another process, and when.
func (a *Agent) restartLocked(why string) {
	a.engine.CapacityTokens, a.engine.MaxRunning = a.cfg.CapacityTokens, a.cfg.MaxRunning
	a.reuses = true // until it says otherwise again
	a.report = report{}
	a.evidence.restarted()
	a.teaching.refused = nil
	a.metrics.restarts.Inc()
	if a.drainedLocked() {
		a.blocks.RestartAll() // its next event, with the first request, would be too late
	}
	a.renewLocked()
	a.log.Warn("engine restarted, its cache counts as empty", "reason", why, "generation", a.engine.Generation)
}

// renewLocked withdraws all that was advertised: a new generation, with what blocks are still known of.
func (a *Agent) renewLocked() {
	e := a.engine
	e.Generation = nextGeneration(e.Generation, a.cfg.Now())
	a.engine = e
	muted := a.cache.muted
	a.cache = newCache(&a.engine, a.cfg.Geometry, a.capacityLocked(), a.blocks)
	a.cache.muted = muted
	a.describedLocked()
}
