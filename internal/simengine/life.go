package simengine

import (
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// life is what one process of the server has, and loses when it is restarted.
type life struct {
	number   uint64
	started  time.Time
	chains   chainer
	sched    *scheduler
	drain    *eventBuffer // TensorRT-LLM's polled events
	requests atomic.Int64
	over     chan struct{} // closed when the next life has begun
}

// begin makes the first life or the next one. A Seed of the config stands for PYTHONHASHSEED, and for vLLM from 0.32,
// which needs none: block hashes are then the same in every life.
func (e *Engine) begin(number uint64, slow float64) *life {
	seed := e.cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	l := &life{number: number, started: time.Now(), drain: newEventBuffer(&e.cfg), over: make(chan struct{})}
	l.sched = newScheduler(&e.cfg, func(events []kvEvent) {
		e.events.publish(number, time.Now(), events)
		l.drain.add(events)
	})
	l.chains = chainer{
		kind: e.cfg.Kind, seed: seed, blockTokens: e.cfg.BlockTokens, wire: l.sched.cache.wantEvents,
	}
	l.sched.setSlow(slow)
	if e.cfg.Kind == KindSGLang {
		l.sched.begin() // the radix tree is reset when it is made
	}
	return l
}

// wait returns when something was produced, or errGone when the client has gone or the process ended or was restarted.
func (l *life) wait(w http.ResponseWriter, r *http.Request, produced <-chan struct{}) error {
	select {
	case <-produced:
		return nil
	case <-l.over:
	case <-r.Context().Done():
	}
	reset(w) // a handler that only returned would send an empty answer
	return errGone
}

// Restart does what killing the process and starting it again does, in no time: the cache is empty and hashes anew,
// counters and sequence numbers begin at 0, nothing can be replayed, running requests are reset and idle connections
// closed, as are those of KV events. Faults stay, but for those that wait for batches. Ports stay too.
func (e *Engine) Restart() {
	e.mu.Lock()
	old := e.life.Load()
	e.events.restart(old.number + 1)
	e.life.Store(e.begin(old.number+1, e.faults.Slow))
	e.mu.Unlock()
	close(old.over)
	e.idle.close()
}

// idleConns are the HTTP connections of Serve on which no request runs.
type idleConns struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// track is an http.Server's ConnState.
func (c *idleConns) track(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s == http.StateNew || s == http.StateIdle {
		c.conns[conn] = struct{}{}
	} else {
		delete(c.conns, conn)
	}
}

func (c *idleConns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		conn.Close()
	}
}
