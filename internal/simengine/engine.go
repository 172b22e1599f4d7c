package simengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Engine is one simulated inference server. All methods are safe for concurrent use.
type Engine struct {
	cfg    Config
	tok    *tokenizer
	render renderer
	words  answerer
	events *publisher
	mux    *http.ServeMux
	idle   idleConns
	life   atomic.Pointer[life] // written under mu

	mu      sync.Mutex
	faults  Faults
	rng     *rand.Rand
	induced int64
}

// New returns an engine that does nothing until its handler is called: it holds no goroutine, and a running engine is
// left alone without harm.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("check config: %w", err)
	}
	e := &Engine{cfg: cfg.withDefaults(), tok: newTokenizer(), render: rendererOf(cfg.Template)}
	e.idle.conns = map[net.Conn]struct{}{}
	e.rng = rand.New(rand.NewPCG(cmp.Or(cfg.Seed, rand.Uint64()), 1))
	e.words = answerer{tok: e.tok, mean: cfg.AnswerTokens, odd: cfg.RetokenizeRate}
	e.events = newPublisher(&e.cfg)
	e.life.Store(e.begin(0, cfg.Faults.Slow))
	e.mux = e.routes()
	e.SetFaults(cfg.Faults)
	return e, nil
}

// Handler serves the engine's routes. It works with any server and listener, also in memory.
func (e *Engine) Handler() http.Handler { return http.HandlerFunc(e.serveHTTP) }

// Serve serves HTTP on ln and KV events on their sockets until ctx ends, and then closes everything at once, as a killed
// process does. It returns nil after ctx ended. It may be called once.
func (e *Engine) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var busy sync.RWMutex // held for reading by every handler: http.Server.Close does not wait for them
	defer awaitIdle(&busy)
	srv := &http.Server{
		Handler: holding(&busy, e.Handler()), IdleTimeout: e.cfg.KeepAlive, ReadHeaderTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnState: e.idle.track,
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if err := e.events.start(ctx, &wg); err != nil {
		return errors.Join(fmt.Errorf("start kv events: %w", err), ln.Close())
	}
	wg.Go(func() {
		<-ctx.Done()
		srv.Close()
	})
	err := srv.Serve(ln)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve engine: %w", err)
}

// awaitIdle waits for the handlers that hold mu.
func awaitIdle(mu *sync.RWMutex) {
	mu.Lock()
	defer mu.Unlock()
}

func holding(mu *sync.RWMutex, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.RLock()
		defer mu.RUnlock()
		h.ServeHTTP(w, r)
	})
}

// Stats returns what the engine has done and holds now.
func (e *Engine) Stats() Stats {
	l := e.life.Load()
	st := l.sched.snapshot()
	st.EventBatches, st.Requests, st.Restarts = e.events.batches(), l.requests.Load(), int64(l.number)
	e.mu.Lock()
	defer e.mu.Unlock()
	st.FaultsInduced = e.induced
	return st
}

// SetFaults replaces the failures in force; failures of KV events happen or are planned then. Faults out of range are
// taken for the nearest in range.
func (e *Engine) SetFaults(f Faults) {
	f.ErrorRate = min(max(f.ErrorRate, 0), 1)
	f.Slow = max(f.Slow, 0)
	e.mu.Lock()
	e.faults = f
	e.mu.Unlock()
	e.life.Load().sched.setSlow(f.Slow)
	e.setEventFaults(&f.EventFaults)
}

// currentFaults returns the failures in force.
func (e *Engine) currentFaults() Faults {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.faults
}

// picked draws whether a request is one of those that ErrorRate fails.
func (e *Engine) picked() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.faults.ErrorRate > 0 && e.rng.Float64() < e.faults.ErrorRate
}

func (e *Engine) countFault() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.induced++
}

// newID returns the random part of an answer's id.
func (e *Engine) newID() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("%016x%016x", e.rng.Uint64(), e.rng.Uint64())
}
