package forward

import (
	"math/rand/v2"
	"time"
)

// Why a request does not wait, or not any longer; values of a metric's label.
const (
	refusedRequests  = "queue_limit"     // as many wait as may
	refusedBytes     = "queue_bytes"     // as many bytes
	refusedWait      = "queue_wait"      // its turn would not come in time
	refusedTimeout   = "queue_timeout"   // its turn did not come in time
	refusedDisplaced = "queue_displaced" // it gave way to one of a higher priority, or of a key that has less
)

// refusal says that a full mesh does not serve a request, and when to come again.
type refusal struct {
	reason string
	after  time.Duration
}

func (r *refusal) Error() string { return r.why() }

// why says it to a client.
func (r *refusal) why() string {
	switch r.reason {
	case refusedWait:
		return "a request would wait for longer than it may"
	case refusedTimeout:
		return "none became free in time"
	default:
		return "as many requests wait as may"
	}
}

// Bounds of what a client is told to wait for. With the unknown one an SDK that tries three times covers four seconds.
const (
	leastRetry   = time.Second
	mostRetry    = 30 * time.Second
	unknownRetry = 2 * time.Second
)

// admitLocked refuses a place, or sends those away that have to go for it.
func (r *waitRoom) admitLocked(p *place, now time.Time) error {
	out, err := r.outForLocked(p)
	for _, v := range out {
		r.dismissLocked(v, v.queue.refusal(refusedDisplaced, 0, v), now)
		v.queue.notify()
	}
	return err
}

// wouldRefuse returns why enter would refuse p; nil when it would wait.
func (r *waitRoom) wouldRefuse(p *place, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.queue = r.queueLocked(p.model, now)
	_, err := r.outForLocked(p)
	return err
}

// outForLocked returns those that have to go for a place, or why it is refused.
func (r *waitRoom) outForLocked(p *place) ([]*place, error) {
	q := p.queue
	allowed := p.timeout.Seconds() * expectShare
	if wait := q.expect(p, allowed); wait > allowed {
		return nil, q.refusal(refusedWait, wait-allowed, p)
	}
	c := r.classes[p.class]
	if c == nil {
		c = newTally()
	}
	out, ok := c.displace(p, p.limit, nil)
	if !ok {
		return nil, q.full(c, p.limit, p)
	}
	more, ok := r.all.displace(p, r.limit, out)
	if !ok {
		return nil, q.full(r.all, r.limit, p)
	}
	return append(out, more...), nil
}

// full refuses a place because of a bound.
func (q *modelQueue) full(t *tally, limit bounds, p *place) error {
	if t.requests < limit.requests {
		return q.refusal(refusedBytes, 0, p)
	}
	return q.refusal(refusedRequests, 0, p)
}

// expectShare is the share of its time that a request may be expected to wait: estimates err, and who is let in to be refused
// later has waited for nothing.
const expectShare = 0.5

// expect returns the seconds until a new place's turn, 0 while that is not known or surely allowed. The first one's turn may
// always come at once: while nobody waits no rate is observed either.
func (q *modelQueue) expect(p *place, allowed float64) float64 {
	rate, known := q.drain.perSecond()
	if !known || float64(q.present()+1)/rate <= allowed { // even behind all that waits
		return 0
	}
	if ahead := q.aheadOf(p); ahead >= 1 {
		return (ahead + 1) / rate
	}
	return 0
}

// aheadOf is how many places would leave before a new one.
func (q *modelQueue) aheadOf(p *place) float64 {
	return q.ahead(p.priority, p.key, p.cost) + float64(q.out)
}

// late refuses p because its time is over.
func (r *waitRoom) late(p *place, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := p.queue
	q.drain.advance(now, true)
	return q.refusal(refusedTimeout, 0, p)
}

// refusal makes one. The client is to come when there would be room for it, least in seconds from now at this drain rate, and
// at the latest when what is ahead of it has been worked off: at a random time between them, so that those who are refused
// together do not come together.
func (q *modelQueue) refusal(reason string, least float64, p *place) *refusal {
	after := unknownRetry
	if rate, known := q.drain.perSecond(); known {
		least = max(least, 1/rate)
		seconds := least + rand.Float64()*max(q.aheadOf(p)/rate-least, 0)
		after = time.Duration(min(seconds, mostRetry.Seconds()) * float64(time.Second))
	}
	return &refusal{reason, max(after, leastRetry)}
}
