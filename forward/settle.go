package forward

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// settle decides; while nothing can be chosen because all are full, it waits in the room.
func (x *exchange) settle() ([]Candidate, error) {
	if x.seat() == nil && x.retries == 0 && x.g.room.busy(x.model) { // one that was accepted before goes ahead
		if err := x.wait(); err != nil {
			return nil, err
		}
	}
	var since time.Time // when all were found away
	for {
		changed := x.g.View.Changed()
		ranked, why := x.decide()
		switch {
		case len(ranked) > 0:
			return ranked, nil
		case why == ejected && x.ctx.Err() == nil:
			continue // it was found out by asking: the next look knows, and chooses others, or overrules
		case why == none:
			return nil, errNoEngine
		case why == full || x.seat() != nil:
			if err := x.wait(); err != nil {
				return nil, err
			}
			continue
		}
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		if now.Sub(since) >= silenceOfDead {
			return nil, errNoEngine
		}
		if err := x.pause(changed); err != nil {
			return nil, err
		}
	}
}

// pause waits a moment for an agent to be heard again.
func (x *exchange) pause(changed <-chan struct{}) error {
	timer := time.NewTimer(acceptFloor)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
	return nil
}

// wait waits in the room for a turn: at the end, or where the request has been before.
func (x *exchange) wait() error {
	now := time.Now()
	if p := x.seat(); p != nil {
		p.comeBack(now)
		return p.await(x.ctx)
	}
	p := x.newPlace()
	if err := x.g.room.enter(p, now); err != nil {
		return err
	}
	x.mu.Lock()
	x.place = p
	x.mu.Unlock()
	return p.await(x.ctx)
}

// seat returns the request's place in the room; nil when it never had one.
func (x *exchange) seat() *place {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.place
}

func (x *exchange) newPlace() *place {
	c := x.class
	perToken := firstAbove0(x.q.Learned.BytesPerToken, engine.DefaultBytesPerToken)
	return &place{
		tenant:   tenant{priority: c.Priority, key: cmp.Or(x.traffic.keyHash, keyHash(x.traffic.Header))},
		model:    x.model,
		class:    c.Name,
		limit:    bounds{cmp.Or(c.QueueLimit, math.MaxInt), cmp.Or(c.QueueBytes, math.MaxInt64)},
		timeout:  cmp.Or(c.QueueTimeout, x.g.QueueTimeout),
		cost:     max(int64(float64(x.prompt.Bytes)/perToken), leastCost),
		bytes:    int64(len(x.body.bytes())),
		accepted: x.taken,
	}
}

// leaveRoom gives the place in the wait room up, if there is one, since an owner has accepted the request. More says that the
// engine can take another one. Attempts may call it at once.
func (x *exchange) leaveRoom(more bool) {
	x.mu.Lock()
	x.taken = true
	p := x.place
	x.mu.Unlock()
	if waited, was := p.leave(true, more); was {
		x.g.metrics.queueWait.WithLabelValues(p.class).Observe(waited.Seconds())
		x.mu.Lock()
		x.event.Waited += waited
		x.mu.Unlock()
	}
}

// free implements supply.
func (g *Ingress) free(model string) (engines int, why lack) {
	buf := candidateBuffers.Get().(*[]Candidate)
	defer candidateBuffers.Put(buf)
	all := g.candidates((*buf)[:0], model, time.Now())
	*buf = all
	Overrule(all)
	for i := range all {
		if all[i].Eligible() {
			engines++
		}
	}
	return engines, lackOf(all)
}

// news implements supply.
func (g *Ingress) news() <-chan struct{} { return g.View.Changed() }
