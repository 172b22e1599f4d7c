package engineagent

import (
	"cmp"
	"context"
	"errors"
	"reflect"

	"github.com/kvmesh/kvmesh/engineagent/book"
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
		a.changeStateLocked()
	}
	a.reviveLocked()
	a.logStandingLocked()
	return a.life.up
}

// changeStateLocked says that the engine went down or came up. Requests that were not handed to it are not to wait for it.
func (a *Agent) changeStateLocked() {
	a.book.update(func(b *book.Book) { b.SetDown(!a.life.up, a.cfg.Now()) })
	if a.life.up {
		a.outage = make(chan struct{})
	} else {
		close(a.outage)
	}
}

// errHung is the cause of requests that end because their engine does not answer any more.
var errHung = errors.New("engine does not answer")

// reviveLocked gives up the requests on an engine that hangs, once, and lets new ones live when it answers again.
func (a *Agent) reviveLocked() {
	silent := look(a.book, func(b *book.Book) bool { return b.Hung(a.cfg.Now()) })
	switch dead := a.alive.Err() != nil; {
	case silent && !dead && !a.life.hung():
		a.log.Warn("engine was found stuck and is silent still: what it had begun is given up", "in_flight", look(a.book, (*book.Book).Booked))
		a.kill(errHung)
		a.alive, a.kill = context.WithCancelCause(context.Background())
	case a.life.hung() && !dead:
		a.log.Warn("engine hangs: its requests are given up", "in_flight", look(a.book, (*book.Book).Booked))
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

// noteReading takes what the engine says of itself. asked is the mark of when it was asked. It returns whether the reading
// shows a restart.
func (a *Agent) noteReading(r *reading, kind engine.Kind, asked book.Mark) (restarted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noteCountersLocked(r, kind)
	if restarted = a.life.read(r); restarted {
		a.restartLocked("its metrics began again")
	}
	said := book.Reading{Running: r.running, Waiting: r.waiting, WaitingTokens: r.waitingTokens, KVUsage: r.kvUsage}
	a.book.update(func(b *book.Book) { b.Read(said, asked) })
	a.learnCountersLocked(r, a.cfg.Now())
	a.factsLocked(r, kind)
	a.truthLocked()
	return restarted
}

// noteCountersLocked looks whether the engine has computed anything since the last reading, on what it does not show too. Only
// vLLM counts tokens as they are made; others when an answer is complete.
func (a *Agent) noteCountersLocked(r *reading, kind engine.Kind) {
	worked := a.life.grown(r)
	tells := kind == engine.KindVLLM && len(r.counters) > 0
	a.book.update(func(b *book.Book) { b.Counts(tells, worked, a.cfg.Now()) })
}

// noteBlind says that an engine which answers otherwise does not tell what it has computed.
func (a *Agent) noteBlind() {
	a.book.update(func(b *book.Book) { b.Counts(false, false, a.cfg.Now()) })
}

// noteUnread says that a round brought no reading. never says that the engine answered and has none to give.
func (a *Agent) noteUnread(never bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.book.update((*book.Book).Missed)
	if never && a.life.up && a.life.unread() {
		a.restartLocked("it came back and shows no identity")
	}
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
	a.ranks = r.ranks
	a.paceLocked()
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
	a.reports, a.step = info.CacheReport, clampInt(info.PrefillStep, maxPrefillStep)
	a.paceLocked()
	a.reuses = a.reuses && !info.NoRadixCache
	a.describeLocked(e)
}

// describeLocked makes e the engine's description.
func (a *Agent) describeLocked(e engine.Engine) {
	same := reflect.DeepEqual(e, a.engine)
	a.engine = e
	a.book.update(func(b *book.Book) { b.SetMaxRunning(maxRunningOf(e.MaxRunning)) })
	a.cache.fit(a.capacityLocked(), e.BlockTokens)
	if !same {
		a.notify()
	}
}

// restartLocked begins the next life of the engine's cache. Bookings stay: whoever carries them will find out. What KV
// events say of blocks is left to those who follow a connection: they know whether it is another process, and when.
func (a *Agent) restartLocked(why string) {
	a.engine.CapacityTokens, a.engine.MaxRunning = a.cfg.CapacityTokens, a.cfg.MaxRunning
	a.book.update(func(b *book.Book) {
		b.SetMaxRunning(maxRunningOf(a.cfg.MaxRunning))
		b.ForgetReadings()
		b.Returned(a.cfg.Now())
	})
	a.reuses = true // until it says otherwise again
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
	a.book.update(func(b *book.Book) { b.SetGeneration(e.Generation) })
	muted := a.cache.muted
	a.cache = newCache(&a.engine, a.geometries, a.capacityLocked(), a.blocks)
	a.cache.muted = muted
	a.notify()
}
