package simengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// Engine is one simulated inference server. All methods are safe for concurrent use.
type Engine struct {
	cfg    Config
	tok    *tokenizer
	render renderer
	chains chainer
	words  answerer
	sched  *scheduler
	events *publisher
	drain  *eventBuffer // TensorRT-LLM's polled events
	mux    *http.ServeMux

	mu       sync.Mutex
	faults   Faults
	rng      *rand.Rand
	requests int64
	induced  int64
}

// New returns an engine that does nothing until its handler is called: it holds no goroutine, and a running engine is
// left alone without harm. A restart of a server is a new Engine.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("check config: %w", err)
	}
	e := &Engine{cfg: cfg.withDefaults(), tok: newTokenizer(), render: rendererOf(cfg.Template)}
	seed := e.cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	e.rng = rand.New(rand.NewPCG(seed, 1))
	e.chains = chainer{kind: cfg.Kind, seed: seed, blockTokens: cfg.BlockTokens}
	e.words = answerer{tok: e.tok, mean: cfg.AnswerTokens}
	e.events = newPublisher(&e.cfg)
	e.drain = newEventBuffer(&e.cfg)
	e.sched = newScheduler(&e.cfg, e.publish)
	e.chains.wire = e.sched.cache.wantEvents
	e.mux = e.routes()
	e.SetFaults(cfg.Faults)
	if cfg.Kind == KindSGLang {
		e.sched.cache.emitCleared() // the radix tree is reset when it is made
	}
	return e, nil
}

// publish hands one step's KV events to whoever follows them.
func (e *Engine) publish(events []kvEvent) {
	e.events.publish(time.Now(), events)
	e.drain.add(events)
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
		BaseContext: func(net.Listener) context.Context { return ctx },
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
	st := e.sched.snapshot()
	st.EventBatches = e.events.batches()
	e.mu.Lock()
	defer e.mu.Unlock()
	st.Requests, st.FaultsInduced = e.requests, e.induced
	return st
}

// SetFaults replaces the failures in force. Faults out of range are taken for the nearest in range.
func (e *Engine) SetFaults(f Faults) {
	f.ErrorRate = min(max(f.ErrorRate, 0), 1)
	f.Slow = max(f.Slow, 0)
	e.mu.Lock()
	e.faults = f
	e.mu.Unlock()
	e.sched.setSlow(f.Slow)
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

func (e *Engine) countRequest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests++
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
