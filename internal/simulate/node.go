package simulate

import (
	"strconv"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// modelName is the one model that all engines serve.
const modelName = "model"

// machine is an engine: it serves requests and calls its node when one starts, has its first token, and ends.
type machine interface {
	submit(r *request)
	abort() []*request // dies, and returns what it was doing
	waiting() int      // requests whose prefill has not begun
	working() bool     // whether it prefills, or a step runs
}

// node is an engine with its agent: the owner's side of routing.
type node struct {
	w       *world
	index   int
	agent   string
	id      engine.ID
	up      bool
	life    engine.Generation
	speed   float64
	machine machine
	cache   *cache
	book    *book.Book
	wake    time.Duration      // when the book is to be looked at though nothing happened
	full    bool               // as the last heartbeat said
	digest  *cachestate.Digest // nil when no policy reads it
	beats   beats              // of the heartbeats that this agent sent
	told    time.Duration      // when the last delta of the digest reached the others

	queued   int // estimated new tokens of requests that were accepted and have had no token; exact policies read it
	inFlight int // requests that were accepted and have not ended
	flight   meter
	busy     meter
	served   float64 // prompt and output tokens of requests that count
}

func newNode(w *world, i int) *node {
	n := &node{w: w, index: i, agent: "a" + strconv.Itoa(i), speed: w.cfg.speedOf(i)}
	n.id = engine.MakeID(n.agent, "engine")
	n.flight, n.busy = w.meter(), w.meter()
	n.born()
	return n
}

// born begins a life of the engine and its agent, with nothing cached.
func (n *node) born() {
	n.life++
	n.up = true
	n.cache = newCache(n.w.cfg.CacheBlocks)
	if n.w.trace.Machine == MachineStep {
		n.machine = &stepped{host: n, cache: n.cache, speed: n.speed, life: int32(n.life)}
	} else {
		n.machine = &fifo{host: n, cache: n.cache, speed: n.speed, at: n.w.now, version: int32(n.life) << 20, prefill: int32(n.life) << 20}
	}
	n.book = book.New(book.Config{MaxRunning: maxRunning, Window: n.w.window(), ShortestFirst: true}, n.w.clock())
	n.book.SetGeneration(n.life)
	n.queued, n.inFlight, n.full = 0, 0, false
	n.beats.clear()
	if n.w.keys != nil {
		n.digest = cachestate.NewDigest(n.id, cachestate.TierGPU, n.life, n.w.cfg.Geometry)
	}
	if n.w.holders != nil || n.digest != nil {
		n.cache.stored, n.cache.evicted = n.stored, n.evicted
	}
}

func (n *node) stored(b block, e *cacheEntry) {
	if n.w.holders != nil {
		n.w.holders.add(b, n.index)
	}
	if n.digest != nil {
		if len(n.cache.at) == 1 {
			n.digest.Add(n.w.root)
		}
		n.advertise(b, e)
	}
}

func (n *node) evicted(b block, e *cacheEntry) {
	if n.w.holders != nil {
		n.w.holders.remove(b, n.index)
	}
	if n.digest != nil {
		n.withdraw(b, e)
		if len(n.cache.at) == 0 {
			n.digest.Remove(n.w.root)
		}
	}
}

// load is the owner's own reading.
func (n *node) load() engine.Load { return n.book.Load(n.w.clock()) }

// accept books r and hands on to the engine what its turn it is.
func (n *node) accept(r *request) {
	hits := n.cache.match(r.chain)
	r.newTokens = max(r.input-hits*n.w.blockTokens, 1)
	r.engine = n.index
	n.queued += r.newTokens
	n.inFlight++
	n.flight.set(float64(n.inFlight), n.w.now)
	r.entry = book.Entry{Value: r}
	n.book.Book(&r.entry, book.Work{Prompt: r.input, New: r.newTokens}, n.w.clock())
	n.pump()
}

func (n *node) pump() {
	for e := n.book.Next(n.w.clock()); e != nil; e = n.book.Next(n.w.clock()) {
		n.machine.submit(e.Value.(*request))
	}
	if at, ok := n.book.Wake(); ok {
		if wake := at.Sub(epoch); wake != n.wake {
			n.wake = wake
			n.w.at(wake, event{kind: onWake, a: int32(n.index)})
		}
	}
}

// started is called by the engine when it begins the prefill of r.
func (n *node) started(*request) { n.note() }

// note brings the busy meter up to date.
func (n *node) note() {
	value := 0.0
	if n.machine.working() {
		value = 1
	}
	n.busy.set(value, n.w.now)
}

// first is called by the engine at the first token of r.
func (n *node) first(r *request) {
	r.began = true
	n.queued -= r.newTokens
	r.took = n.book.Content(&r.entry, n.w.clock())
	n.w.policy.first(r, n)
	n.w.first(r, n)
	n.note()
	n.pump()
}

// done is called by the engine at the last token of r.
func (n *node) done(r *request) {
	n.leave(r)
	n.book.LearnSize(int64(r.input)*bytesPerToken, r.input)
	n.book.LearnPrefill(&r.entry, book.Work{Prompt: r.input, New: r.input - r.cached(n.w.blockTokens)}, r.took, true)
	n.book.LearnDecode(&r.entry, r.output)
	n.w.done(r, n)
	n.note()
	n.pump()
}

// leave takes r out of the counts.
func (n *node) leave(r *request) {
	if !r.began {
		n.queued -= r.newTokens
	}
	n.inFlight--
	n.flight.set(float64(n.inFlight), n.w.now)
	n.book.End(&r.entry, n.w.clock())
}

// die loses everything that the engine holds and does.
func (n *node) die() []*request {
	lost := n.machine.abort()
	for n.book.SetWindow(0); n.book.Queued() > 0; {
		lost = append(lost, n.book.Next(n.w.clock()).Value.(*request))
	}
	for _, r := range lost {
		n.leave(r)
	}
	n.up = false
	if n.w.holders != nil {
		for b := range n.cache.at {
			n.w.holders.remove(b, n.index)
		}
	}
	n.note()
	return lost
}
