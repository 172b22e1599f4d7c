package book

import (
	"slices"
	"time"
)

// ledger counts requests from acceptance to their end. Prefill is modelled as a queue: engines may mix prompts in one
// step, but the sum of the work ahead is the same.
type ledger struct {
	waiting   []*Entry // in the order of acceptance
	running   int
	newTokens int64     // Invariant: sum over waiting
	headSince time.Time // since when waiting[0] is first
	ever      uint64    // entries ever booked
}

func (l *ledger) inFlight() int { return len(l.waiting) + l.running }

func (l *ledger) book(e *Entry, now time.Time) {
	e.alone = len(l.waiting) == 0
	if e.alone {
		l.headSince = now
	}
	l.waiting = append(l.waiting, e)
	l.ever++
	l.newTokens += int64(e.newTokens)
}

// content moves e from waiting to running and returns how long its prefill took. It does nothing, and returns 0, for
// an entry that is not waiting.
func (l *ledger) content(e *Entry, now time.Time) (took time.Duration) {
	if e.state != stateWaiting {
		return 0
	}
	if l.waiting[0] == e {
		took = now.Sub(l.headSince)
	}
	l.leaveQueue(e, now)
	e.state = stateRunning
	l.running++
	return took
}

// end takes e out, whatever it was doing. It returns false for an entry that had ended before.
func (l *ledger) end(e *Entry, now time.Time) bool {
	switch e.state {
	case stateWaiting:
		l.leaveQueue(e, now)
	case stateRunning:
		l.running--
	case stateEnded:
		return false
	}
	e.state = stateEnded
	return true
}

func (l *ledger) leaveQueue(e *Entry, now time.Time) {
	i := slices.Index(l.waiting, e)
	l.waiting = slices.Delete(l.waiting, i, i+1)
	l.newTokens -= int64(e.newTokens)
	if i == 0 {
		l.headSince = now
	}
}

// queuedSeconds is the prefill work ahead of a new request at rate tokens/s, less what the head has done since it
// became head. A head that takes longer than expected counts as done, so the rest still counts in full.
func (l *ledger) queuedSeconds(rate float64, now time.Time) float64 {
	if len(l.waiting) == 0 {
		return 0
	}
	done := min(max(now.Sub(l.headSince).Seconds()*rate, 0), float64(l.waiting[0].newTokens))
	return min(max((float64(l.newTokens)-done)/rate, 0), maxQueuedSeconds)
}

// maxQueuedSeconds is the most that the wire form of a load carries.
const maxQueuedSeconds = 86400
