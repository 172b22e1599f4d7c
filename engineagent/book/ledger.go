package book

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

// ledger counts requests from acceptance to their end. Prefill is modelled as a queue: engines may mix prompts in one
// step, but the sum of the work ahead is the same.
type ledger struct {
	queue     queue    // with the owner
	waiting   []*Entry // with the engine, in the order of hand-over: the first is the head, which it prefills
	prefilled int      // with the engine, without content, taken for prefilled
	running   int

	work   amount // Invariant: sum over queue and waiting
	atWork int64  // Invariant: tokens of waiting
	booked uint64 // entries ever booked
	handed uint64 // entries ever handed to the engine
}

func (l *ledger) inFlight() int { return len(l.queue) + l.atEngine() }
func (l *ledger) atEngine() int { return l.unanswered() + l.running }

// unanswered is how many requests the engine has not sent content of.
func (l *ledger) unanswered() int { return len(l.waiting) + l.prefilled }

// book puts e, whose work and priority are set, into the owner's queue.
func (l *ledger) book(e *Entry) {
	l.booked++
	e.order, e.state = l.booked, stateQueued
	l.work.add(e.work)
	heap.Push(&l.queue, e)
}

// next hands the first of the owner's queue to the engine.
func (l *ledger) next(now time.Time) *Entry {
	e := heap.Pop(&l.queue).(*Entry)
	e.state, e.alone = stateWaiting, l.unanswered() == 0
	l.handed++
	l.atWork += e.work.tokens
	l.waiting = append(l.waiting, e)
	l.newHead(now)
	return e
}

// newHead begins the time of the head, if it is a new one.
func (l *ledger) newHead(now time.Time) {
	if len(l.waiting) > 0 && l.waiting[0].since.IsZero() {
		l.waiting[0].since = now
	}
}

// lapse takes the head for prefilled, though it has shown no content.
func (l *ledger) lapse(now time.Time) {
	head := l.waiting[0]
	l.leave(head, now)
	head.state = statePrefilled
	l.prefilled++
}

// content moves e to the running ones and returns how long its prefill took; 0, when it was never head: then part of its
// work was done in the time of others. It does nothing, and returns 0, for an entry that does not wait.
func (l *ledger) content(e *Entry, now time.Time) (took time.Duration) {
	if !e.Waiting() {
		return 0
	}
	if !e.since.IsZero() {
		took = now.Sub(e.since)
	}
	l.leave(e, now)
	e.state = stateRunning
	l.running++
	return took
}

// end takes e out, whatever it was doing. It returns false for an entry that had ended before or was never booked.
func (l *ledger) end(e *Entry, now time.Time) bool {
	if e.state == stateEnded || e.state == stateNew {
		return false
	}
	l.leave(e, now)
	e.state = stateEnded
	return true
}

// leave takes e out of where it is counted.
func (l *ledger) leave(e *Entry, now time.Time) {
	switch e.state {
	case stateQueued:
		heap.Remove(&l.queue, e.place)
		l.work.remove(e.work)
	case stateWaiting:
		i := slices.Index(l.waiting, e)
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.work.remove(e.work)
		l.atWork -= e.work.tokens
		l.newHead(now)
	case statePrefilled:
		l.prefilled--
	case stateRunning:
		l.running--
	case stateNew, stateEnded: // counted nowhere
	}
}

// queuedSeconds is the prefill work ahead of a new request at the speed of c, less what the head has done since it became
// head. A head that takes longer than expected counts as done, so the rest still counts in full.
func (l *ledger) queuedSeconds(c curve, now time.Time) float64 {
	s := c.seconds(l.work)
	if len(l.waiting) > 0 {
		head := l.waiting[0]
		s -= min(max(now.Sub(head.since).Seconds(), 0), c.seconds(head.work))
	}
	return min(max(s, 0), maxQueuedSeconds)
}

// maxQueuedSeconds is the most that the wire form of a load carries.
const maxQueuedSeconds = 86400

// lateAfter is how long a head may take before it is taken for prefilled: requests behind it would wait for ever for one
// whose tokens do not show. An answer that comes all at once shows none, so the expected time has to do. In a stream the
// first ones may be held back by the engine, as those of a call are until it is complete; but a stream that is only slower
// than expected is the rule while nothing is learned, hence twice the time and a second more.
func lateAfter(e *Entry, c curve) time.Duration {
	expected := seconds(c.seconds(e.work))
	if e.whole {
		return expected
	}
	return 2*expected + time.Second
}

// lapses returns when the head is to be taken for prefilled; ok is false when there is none.
func (l *ledger) lapses(c curve) (at time.Time, ok bool) {
	if len(l.waiting) == 0 {
		return time.Time{}, false
	}
	return l.waiting[0].since.Add(lateAfter(l.waiting[0], c)), true
}

// seconds returns s as a duration, within what a load can tell.
func seconds(s float64) time.Duration {
	return time.Duration(math.Round(min(max(s, 0), maxQueuedSeconds) * float64(time.Second)))
}
