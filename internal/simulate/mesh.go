package simulate

import (
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
)

// The waits of forward and internal/node that shape what a request sees.
const (
	probeFloor   = 2 * time.Millisecond  // least time that an answer to a probe is waited for
	acceptFloor  = 50 * time.Millisecond // least time after which no answer is a miss
	patience     = 4                     // round trips that either waits at least
	silence      = 3 * time.Second       // after which the streams of a silent agent are given up
	lookAgain    = 100 * time.Millisecond
	giveUp       = 10 * time.Second // a request for which there is no engine is refused
	beatQuarters = 4                // least share of a period between two heartbeats
	probeBytes   = 4                // a probe's kind and number
)

// mesh is kvmesh: agents that keep digests, loads and views, and decide each for itself.
type mesh struct {
	w         *world
	heartbeat time.Duration // periods
	digest    time.Duration
	ingresses []*ingress
	news      store[news]

	numbers map[engine.ID]int
	all     []forward.Candidate // scratch, as the next two
	parts   []uint64
	buf     []byte
}

// news is a load on its way to an ingress.
type news struct {
	node      int
	load      engine.Load
	reason    book.Reason // of a refusal
	candidate int         // of a probe
}

func newMesh(w *world) policy {
	p := &mesh{w: w, numbers: w.numbers, buf: make([]byte, 0, 1<<16)}
	p.heartbeat, p.digest = w.cfg.periods()
	return p
}

// begin lets every agent's periods begin at a moment of its own.
func (p *mesh) begin() {
	w := p.w
	for i := range w.cfg.Ingresses {
		p.ingresses = append(p.ingresses, p.newIngress(i))
	}
	rng := newRand(w.cfg.Seed, streamPhase)
	for i := range w.nodes {
		w.at(time.Duration(rng.Int64N(int64(p.heartbeat))), event{kind: onHeartbeat, a: int32(i)})
		w.at(time.Duration(rng.Int64N(int64(p.digest))), event{kind: onPublish, a: int32(i)})
	}
}

func (p *mesh) play(e *event) {
	w := p.w
	switch e.kind {
	case onHeartbeat:
		if n := w.nodes[e.a]; n.up {
			p.beat(n)
		}
		w.at(w.now+p.heartbeat, *e)
		return
	case onPublish:
		if n := w.nodes[e.a]; n.up {
			p.publish(n)
		}
		w.at(w.now+p.digest, *e)
		return
	case onDelta:
		if d, n := w.deltas.take(e.d), w.nodes[e.a]; n.life == d.Generation {
			w.index.Apply(&d)
			n.told = w.now
		}
		return
	case onProbe:
		p.probed(e)
		return
	case onAnswer:
		p.answered(e)
		return
	case onNews:
		n := p.news.take(e.d)
		p.ingresses[e.a].view.SetLoad(w.nodes[n.node].id, n.load, w.clock())
		return
	default:
	}
	if r, ok := w.about(e); ok {
		p.carry(r, e)
	}
}

// carry plays the events that are void once the request has ended.
func (p *mesh) carry(r *request, e *event) {
	switch e.kind {
	case onLand:
		p.land(r, p.w.nodes[e.a], e.c)
	case onPatience:
		if e.c == r.attempt && r.exchange.asking {
			p.rank(r)
		}
	case onBounce:
		p.bounced(r, e)
	case onSilence:
		p.missed(r, e)
	case onRetry:
		p.decide(r)
	default:
	}
}

// arrive takes a client's request in. A client does not reach an agent that is dead.
func (p *mesh) arrive(r *request) {
	for range p.ingresses {
		if i := p.ingresses[r.ingress].index; i == none || p.w.nodes[i].up {
			break
		}
		r.ingress = (r.ingress + 1) % len(p.ingresses)
	}
	if r.exchange == nil {
		r.exchange = &exchange{}
	}
	x := r.exchange
	x.failed, x.retries, x.asking = nil, 0, false
	p.w.keys.prompt(r, &x.prompt)
	p.decide(r)
}

// decide chooses whom to ask, and asks.
func (p *mesh) decide(r *request) {
	w, g, x := p.w, p.ingresses[r.ingress], r.exchange
	p.feed(g)
	p.shortlist(g, x)
	ask := p.toProbe(x)
	x.asking, x.waits = true, len(ask)
	if len(ask) == 0 {
		p.rank(r)
		return
	}
	for _, i := range ask {
		w.result.probe(r)
		w.result.heard(in(spread.DatagramCost(probeBytes)))
		node := int32(w.numbers[x.short[i].ID])
		if w.lost(w.cfg.ProbeLoss) {
			p.expect(r, int(node), r.attempt)
			continue
		}
		w.forRequest(w.now+w.delay(w.cfg.ProbeDelay/2), r, event{kind: onProbe, a: node, c: r.attempt, d: int32(i)})
	}
	wait := max(probeFloor, patience*w.cfg.rtt())
	w.forRequest(w.now+wait, r, event{kind: onPatience, c: r.attempt})
}

// expect notes that no answer of an agent will come: it counts as missed once its time is over.
func (p *mesh) expect(r *request, node int, attempt int32) {
	wait := max(acceptFloor, patience*p.w.cfg.rtt())
	p.w.forRequest(p.w.now+wait, r, event{kind: onSilence, a: int32(node), c: attempt, d: int32(r.ingress)})
}

// probed is at the owner. A dead one does not answer.
func (p *mesh) probed(e *event) {
	w := p.w
	r, alive := w.about(e)
	n := w.nodes[e.a]
	if !n.up {
		if alive {
			p.expect(r, n.index, e.c)
		}
		return
	}
	if !alive {
		return
	}
	l := n.load()
	w.result.heard(in(spread.DatagramCost(len(engine.AppendLoad(p.buf[:0], l)) + len(n.id))))
	answer := *e
	answer.kind, answer.a = onAnswer, int32(r.ingress)
	answer.d = p.news.put(news{node: n.index, load: l, candidate: int(e.d)})
	w.at(w.now+w.delay(w.cfg.ProbeDelay/2), answer)
}

// answered is at the ingress: for its view, and for the request if that still waits.
func (p *mesh) answered(e *event) {
	w := p.w
	a := p.news.take(e.d)
	n := w.nodes[a.node]
	loads := [1]forward.EngineLoad{{Name: n.id.Name(), Load: a.load}}
	p.ingresses[e.a].view.Hear(n.agent, forward.Report{Period: p.heartbeat, Loads: loads[:]}, w.clock())
	r, ok := w.about(e)
	if !ok || !r.exchange.asking || r.attempt != e.c {
		return
	}
	c := &r.exchange.short[a.candidate]
	c.Load, c.Known, c.Probed = a.load, true, true
	if r.exchange.waits--; r.exchange.waits == 0 {
		p.rank(r)
	}
}

// rank chooses, and sends the request to the first.
func (p *mesh) rank(r *request) {
	x := r.exchange
	x.asking = false
	x.ranked = forward.Rank(&x.q, x.short, p.w.rng)
	x.place = 0
	p.try(r)
}

// try sends the request to the next of the ranked; when there is none it looks again a moment later.
func (p *mesh) try(r *request) {
	w, x := p.w, r.exchange
	if x.place == len(x.ranked) {
		if x.retries++; time.Duration(x.retries)*lookAgain > giveUp {
			w.drop(r)
			return
		}
		r.attempt++
		w.forRequest(w.now+lookAgain, r, event{kind: onRetry})
		return
	}
	c := &x.ranked[x.place]
	node := w.numbers[c.ID]
	r.attempt++
	p.ingresses[r.ingress].view.Dispatch(c.ID, c.NewSeconds(&x.q))
	hop := w.delay(w.cfg.HopDelay)
	if c.State == forward.Own {
		hop = 0
	}
	w.forRequest(w.now+hop, r, event{kind: onLand, a: int32(node), c: r.attempt})
}

// land is at the owner: it accepts, or refuses.
func (p *mesh) land(r *request, n *node, attempt int32) {
	w, x := p.w, r.exchange
	if !n.up {
		p.expect(r, n.index, attempt)
		return
	}
	c := &x.ranked[x.place]
	ask := book.Ask{Generation: c.Generation, QueuedAtProbe: -1, Second: x.place > 0 || x.retries > 0}
	if c.Probed {
		ask.QueuedAtProbe = c.Load.QueuedSeconds
	}
	reason := n.book.Refusal(ask, w.clock())
	back := news{node: n.index, reason: reason}
	kind := onBounce
	if reason == "" {
		n.learn(&x.prompt, r.chain)
		n.accept(r)
		kind = onNews
	} else {
		w.result.bounce(r)
		w.result.heard(in(spread.FeedCost(0)))
	}
	back.load = n.load()
	w.forRequest(w.now+w.delay(w.cfg.ProbeDelay/2), r, event{kind: kind, a: int32(r.ingress), c: attempt, d: p.news.put(back)})
	p.flagged(n)
}

// bounced is at the ingress, with the owner's refusal: the next is tried.
func (p *mesh) bounced(r *request, e *event) {
	n := p.news.take(e.d)
	id := p.w.nodes[n.node].id
	p.ingresses[r.ingress].view.SetLoad(id, n.load, p.w.clock())
	if n.reason == book.ReasonGeneration {
		if have, ok := p.w.index.Have(id); ok && have.Generation == r.exchange.ranked[r.exchange.place].Generation {
			p.w.index.Remove(id)
		}
	}
	r.exchange.place++
	p.try(r)
}

// missed notes that an agent has not answered a probe, or not accepted: then the next is tried.
func (p *mesh) missed(r *request, e *event) {
	w := p.w
	n := w.nodes[e.a]
	asked := w.now - max(acceptFloor, patience*w.cfg.rtt())
	p.ingresses[e.d].view.Missed(n.agent, epoch.Add(asked), w.clock())
	x := r.exchange
	if r.engine == none && !x.asking && e.c == r.attempt && x.place < len(x.ranked) && w.numbers[x.ranked[x.place].ID] == n.index {
		x.place++
		p.try(r)
	}
}

func (p *mesh) first(*request, *node) {}

// done tells the ingress the load that comes with the end of an answer.
func (p *mesh) done(r *request, n *node) {
	if n.up {
		w := p.w
		w.at(w.now+w.delay(w.cfg.ProbeDelay/2), event{kind: onNews, a: int32(r.ingress), d: p.news.put(news{node: n.index, load: n.load()})})
		p.flagged(n)
	}
}

// flagged sends a heartbeat at once when the engine has become full, or is no longer.
func (p *mesh) flagged(n *node) {
	full := n.book.Flags(p.w.clock())&engine.Full != 0
	if full == n.full {
		return
	}
	n.full = full
	if last := n.beats.last(); p.w.now-last >= p.heartbeat/beatQuarters {
		p.beat(n)
	}
}

// lost tries a request elsewhere whose engine died. Its ingress finds out by silence.
func (p *mesh) lost(r *request) {
	x := r.exchange
	if x.failed == nil {
		x.failed = map[int]bool{}
	}
	x.failed[r.engine] = true
	r.engine, r.began = none, false
	r.attempt++
	p.w.forRequest(p.w.now+silence, r, event{kind: onRetry})
}

// born announces an engine's next life.
func (p *mesh) born(n *node) {
	for _, g := range p.ingresses {
		g.view.Announce(n.agent, n.announcement(), p.w.clock())
	}
	p.beat(n)
}

// rootKey is the key that every prompt of the model begins with.
func (k *keyring) rootKey() cachestate.Key {
	var p cachestate.Prompt
	k.prompt(&request{input: 0}, &p)
	return p.Keys[0]
}
