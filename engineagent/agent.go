package engineagent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/engineagent/kvevents"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Agent follows one engine. All methods but Run are safe for concurrent use and never block on the engine.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	metrics *instruments
	changed chan struct{}
	wake    chan struct{} // asks Run for a poll at once

	book *lockedBook

	mu         sync.Mutex // guards the following fields. Taken before that of the book
	engine     engine.Engine
	reuses     bool // false when the engine says that it keeps no prefix cache
	reports    bool // SGLang with --enable-cache-report: usage without cached tokens means none
	life       life
	standing   string          // of the engine, as last logged
	alive      context.Context // of requests on the engine
	kill       context.CancelCauseFunc
	outage     chan struct{} // closed when the engine goes down; another one when it is up again
	step       int           // tokens of one prefill step; 0 when the engine does not say
	ranks      int           // data-parallel ranks that prefill side by side; 0 when unknown
	asked      bool          // a request was ever booked
	density    *cachestate.Density
	evidence   evidence
	cache      *cache
	geometries []cachestate.Geometry // that digests are published in
	blocks     *cachestate.Blocks    // nil until KV events are followed; outlives a cache
	events     eventState
	followers  []*kvevents.Follower
	adapters   map[string]bool // names of models that are adapters
	layout     layoutFinding
	hasLayout  bool // it was found
	capability capability
	teaching   teaching
	offPath    offPath
}

// New returns an Agent that does nothing until Run. The engine counts as down until it has answered.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure engine agent: %w", err)
	}
	cfg = cfg.withDefaults()
	now := cfg.Now()
	a := &Agent{
		cfg:     cfg,
		log:     cfg.Logger.With("component", "engineagent", "engine", cfg.ID),
		changed: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		engine: engine.Engine{
			ID: cfg.ID, Kind: cfg.Kind, Generation: nextGeneration(0, now),
			CapacityTokens: cfg.CapacityTokens, MaxRunning: cfg.MaxRunning, Residency: engine.ResidencyMirror, Scale: 1,
			Zone: cfg.Zone,
		},
		reuses:     true,
		geometries: []cachestate.Geometry{cfg.Geometry},
		density:    cachestate.NewDensity(),
		evidence:   evidence{scale: 1, first: 1, trust: 1},
	}
	b := book.New(book.Config{MaxRunning: maxRunningOf(cfg.MaxRunning), Window: a.windowLocked(), ShortestFirst: true, Judge: true}, now)
	b.SetDown(true, now)
	b.SetGeneration(a.engine.Generation)
	a.book = &lockedBook{
		now: cfg.Now, book: b, notify: a.notify,
		handed: func(waited time.Duration) { a.metrics.wait.Observe(waited.Seconds()) },
	}
	a.book.told = a.book.news(now)
	a.alive, a.kill = context.WithCancelCause(context.Background())
	a.cache = newCache(&a.engine, a.geometries, a.capacityLocked(), nil)
	a.metrics = newInstruments(a)
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(a.metrics); err != nil {
			return nil, fmt.Errorf("register metrics of engine %s: %w", cfg.ID, err)
		}
	}
	return a, nil
}

// nextGeneration is the wall clock in milliseconds, so that a restarted owner begins a higher generation than it had,
// and above the last one in any case.
func nextGeneration(last engine.Generation, now time.Time) engine.Generation {
	return max(last+1, engine.Generation(now.UnixMilli()))
}

// Run asks the engine until ctx ends, and then returns nil. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	p := poller{a: a}
	defer p.close()
	defer p.follower.stop()
	for {
		p.poll(ctx)
		a.renderKept(ctx)
		wait := time.NewTimer(p.pause())
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-a.wake:
			wait.Stop()
		case <-wait.C:
		}
	}
}

// Engine returns what the engine is. The models in it are never written again.
func (a *Agent) Engine() engine.Engine {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.engine
}

// Ready reports whether the engine is up and says which models it serves.
func (a *Agent) Ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.life.up && len(a.engine.Models) > 0
}

// Changed receives when peers should hear at once: the engine became full, empty, draining, down or up, or left such a
// state, or its description changed. Several changes before a receive are one.
func (a *Agent) Changed() <-chan struct{} { return a.changed }

// SetCordoned refuses new requests, or admits them again. Running ones go on.
func (a *Agent) SetCordoned(on bool) {
	a.book.update(func(b *book.Book) { b.SetDraining(on) })
}

// NoteUnreachable says that a connection for a request was refused or reset. The next poll comes at once and decides.
func (a *Agent) NoteUnreachable() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Publish ends the current version of each digest and returns the changes since the one before. A tier that the engine
// never used has none.
func (a *Agent) Publish() []cachestate.Delta {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cache.digests.Publish(a.cfg.Now())
}

// Digests returns the whole digests as last published.
func (a *Agent) Digests() []cachestate.Delta {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cache.digests.Full()
}

// DeltasSince returns the change of a digest from version to the last published one. ok is false when that is no longer
// known: the asker then needs the whole digest. Versions are those of the current generation.
func (a *Agent) DeltasSince(g cachestate.Geometry, t cachestate.Tier, version uint64) (d cachestate.Delta, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cache.digests.Since(g, t, version)
}

// notify tells the receiver of Changed that there is news.
func (a *Agent) notify() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}
