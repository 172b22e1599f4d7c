package forward

import (
	"errors"
	"net/http"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// hedgeShare bounds the hedges of a class as a share of its requests. Those later than the 95th percentile are half of it, so the
// other half is there for an engine that pauses. When many engines become late at once, it keeps hedges from making them later.
const hedgeShare = 0.1

// hedges reports whether a second engine may be asked beside a late one: the class says so, the request may be done twice, and
// nothing of an answer has gone out.
func (x *exchange) hedges() bool {
	return x.class != nil && x.class.Hedge && !x.once() && !x.answer.skipNotFound && !x.answer.started()
}

// hedgeTimer fires when the engine of a first attempt is late: after the time that the decision expected it to take until its
// first content, and what 19 of 20 recent requests of the class took beyond that. So a long prompt is not late for its length.
// While too few are known it never fires.
func (x *exchange) hedgeTimer(first *attempt) *time.Timer {
	late, ok := x.late()
	timer := time.NewTimer(hedgeAfter(first.expected, late))
	if !ok {
		timer.Stop()
	}
	return timer
}

// hedgeAfter is at least the time in which an owner accepts.
func hedgeAfter(expected, late time.Duration) time.Duration { return max(expected+late, acceptFloor) }

// late returns how much longer than expected all but a twentieth of the class's requests took; false while that is not known.
func (x *exchange) late() (late time.Duration, ok bool) {
	x.g.classes.with(x.class.Name, func(s *classState) { late, ok = s.delays[flag(x.request.Stream)].p95() })
	return late, ok
}

// noteDelay remembers how late the first content was after a first attempt, whoever sent it.
func (x *exchange) noteDelay(first *attempt) {
	at, _ := x.answer.firstContent()
	if at.IsZero() || at.Before(first.asked) || x.event.Status >= http.StatusMultipleChoices {
		return
	}
	late := at.Sub(first.asked) - first.expected
	x.g.classes.with(x.class.Name, func(s *classState) { s.delays[flag(x.request.Stream)].note(late) })
}

// race runs a first attempt, and when it is late a second one beside. The first to have content is kept: its lane claims the
// answer, which stops the other. The error is that of the attempt that decided: one that was stopped, or left the answer to the
// other, did not.
func (x *exchange) race(first *attempt) error {
	ends := make(chan *attempt, 2)
	start := func(t *attempt) {
		x.run(t)
		ends <- t
	}
	timer := x.hedgeTimer(first)
	defer timer.Stop()
	go start(first)
	var second *attempt
	for running := 1; running > 0; {
		select {
		case t := <-ends:
			x.note(t)
			running--
		case <-timer.C:
			if second = x.hedge(first); second != nil {
				go start(second)
				running++
			}
		}
	}
	return x.decided(first, second)
}

// decided returns the error of the attempt that decided a race. Second is nil when there was none.
func (x *exchange) decided(first, second *attempt) error {
	err := first.err
	if second != nil {
		x.endHedge(second)
		if second.lane.claims || errors.Is(err, errConceded) {
			x.event.Engine, x.event.OverlapTokens = second.ID, int(second.OverlapTokens(&x.q))
			err = second.err
		}
	}
	if err == nil {
		x.noteDelay(first)
	}
	return err
}

// hedge begins a second attempt; nil when there is no need, no engine that is free, or no budget.
func (x *exchange) hedge(first *attempt) *attempt {
	if x.answer.started() || x.ctx.Err() != nil || !x.more() {
		return nil
	}
	allowed := false
	x.g.classes.with(x.class.Name, func(s *classState) { allowed = s.hedges.take(time.Now(), hedgeShare, 0) })
	if !allowed {
		x.countHedge("budget")
		return nil
	}
	c := x.bestBeside(first.ID)
	if c == nil {
		x.giveHedge()
		x.countHedge("none")
		return nil
	}
	return x.begin(&attempt{Candidate: *c, call: first.call, patience: 1, hedge: true})
}

// bestBeside decides anew without one engine; nil when no other can have the request now. Those that wait for an engine come
// first.
func (x *exchange) bestBeside(id engine.ID) *Candidate {
	if x.g.room.busy(x.model) {
		return nil
	}
	x.setBeside(id)
	defer x.setBeside("")
	ranked, _ := x.rank()
	if len(ranked) == 0 || ranked[0].Forced {
		return nil
	}
	return &ranked[0]
}

func (x *exchange) setBeside(id engine.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.beside = id
}

// endHedge counts how a second attempt ended. One that no engine had is given back to the budget.
func (x *exchange) endHedge(second *attempt) {
	switch {
	case second.lane.claims:
		x.countHedge("won")
	case second.lane.lost():
		x.countHedge("lost")
	case x.r.Context().Err() != nil:
		x.countHedge(outcomeCanceled)
	default:
		x.countHedge("failed")
		if unsent(second.err) {
			x.giveHedge()
		}
	}
}

func (x *exchange) countHedge(result string) {
	x.g.metrics.hedges.WithLabelValues(x.class.Name, result).Inc()
}

func (x *exchange) giveHedge() {
	x.g.classes.with(x.class.Name, func(s *classState) { s.hedges.give() })
}
