package simulate

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// epoch is when virtual time begins: production code wants a time of day.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is one run of one policy.
type world struct {
	cfg         *Config
	trace       *traffic
	blockTokens int
	now         time.Duration
	agenda      agenda
	pool        pool
	source      source
	policy      policy
	nodes       []*node
	arrivals    int
	open        int // requests that count and have neither had their first token nor failed
	rng         *rand.Rand
	result      collector

	holders *holders          // the exact index; nil unless the policy reads it
	keys    *keyring          // nil unless the policy reads digests
	index   *cachestate.Tiers // likewise
	root    cachestate.Key    // of every prompt
	deltas  store[cachestate.Delta]
	models  []engine.Model
	numbers map[engine.ID]int // engines by name
	queue   bool              // owners keep a queue
}

func newWorld(c *Config, t *traffic, spec policySpec) *world {
	w := &world{cfg: c, trace: t, blockTokens: t.blockTokens, rng: newRand(c.Seed, streamPolicy)}
	if spec.exact {
		w.holders = newHolders(c.Engines)
	}
	w.models, w.numbers = []engine.Model{{Name: modelName}}, map[engine.ID]int{}
	w.queue = spec.queue && c.Queue
	w.policy = spec.make(w)
	if spec.digests {
		w.keys = newKeyring(w)
		w.root = w.keys.rootKey()
		w.index = cachestate.NewTiers(c.Geometry)
	}
	for i := range c.Engines {
		w.nodes = append(w.nodes, newNode(w, i))
		w.numbers[w.nodes[i].id] = i
	}
	w.result.init(w)
	w.source = t.open(w)
	return w
}

// most requests that are in flight on an engine before it is full: vLLM's default.
const maxRunning = 256

// window is the prefill that an owner lets be with its engine, in tokens; 0 for no queue.
func (w *world) window() int {
	if !w.queue {
		return 0
	}
	return book.DefaultWindow
}

// clock is the time of day.
func (w *world) clock() time.Time { return epoch.Add(w.now) }

func (w *world) meter() meter { return meter{from: w.cfg.WarmUp, to: w.cfg.Span} }

func (w *world) at(t time.Duration, e event) {
	e.at = max(t, w.now)
	w.agenda.add(e)
}

func (w *world) after(seconds float64, e event) {
	w.at(w.now+time.Duration(seconds*float64(time.Second)), e)
}

// forRequest schedules an event for a request.
func (w *world) forRequest(t time.Duration, r *request, e event) {
	e.b, e.life = r.slot, r.life
	w.at(t, e)
}

// about returns the request of an event, or false when that has ended.
func (w *world) about(e *event) (*request, bool) {
	r := w.pool.all[e.b]
	return r, r.life == e.life
}

// request returns a new one. Where it enters is drawn by a number that names it whatever the policy does.
func (w *world) request(name uint64) *request {
	r := w.pool.get()
	r.ingress = int(uniform(w.cfg.Seed, streamTraffic, name) * float64(w.cfg.Ingresses))
	return r
}

// run plays the events until all requests that count have their first token. Nothing arrives after the span.
func (w *world) run(ctx context.Context, progress func(share float64)) error {
	w.policy.begin()
	w.source.begin()
	w.failures()
	const look = 1 << 14
	for n := 0; ; n++ {
		if n%look == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			progress(float64(w.now) / float64(w.cfg.Span))
		}
		e, ok := w.agenda.next()
		if !ok {
			return nil
		}
		if e.at >= w.cfg.Span && w.open == 0 {
			return nil
		}
		w.now = e.at
		w.play(&e)
	}
}

// play is the table of what each kind of event does.
func (w *world) play(e *event) {
	switch e.kind {
	case onArrival:
		if r := w.source.arrive(); r != nil {
			w.arrive(r)
		}
	case onFollowUp:
		if r, ok := w.about(e); ok {
			w.arrive(r)
		}
	case onPrefilled:
		w.nodes[e.a].machine.(*fifo).prefilled(e.c)
	case onDecoded:
		w.nodes[e.a].machine.(*fifo).decoded(e.c)
	case onStep:
		w.nodes[e.a].machine.(*stepped).stepped(e.c)
	case onWake:
		w.nodes[e.a].pump()
	case onFail:
		w.fail(int(e.a))
	case onReturn:
		w.revive(int(e.a))
	default:
		w.policy.play(e)
	}
}

// arrive takes a request in at its ingress, when that is due.
func (w *world) arrive(r *request) {
	if w.now >= w.cfg.Span {
		w.pool.put(r)
		return
	}
	r.due, r.number = w.now, w.arrivals
	w.arrivals++
	r.counted = w.now >= w.cfg.WarmUp
	if r.counted {
		w.open++
	}
	w.policy.arrive(r)
}

// first notes a first token.
func (w *world) first(r *request, n *node) {
	if r.counted {
		w.open--
		w.result.first(r, w.now)
		n.served += float64(r.input + r.output)
	}
}

// done notes the end of an answer.
func (w *world) done(r *request, n *node) {
	w.policy.done(r, n)
	w.result.done(r, w.now)
	w.source.ended(r)
	w.pool.put(r)
}

// drop notes a request that nobody could serve.
func (w *world) drop(r *request) {
	if r.counted {
		if !r.began {
			w.open--
		}
		w.result.failed++
	}
	w.source.ended(r)
	w.pool.put(r)
}
