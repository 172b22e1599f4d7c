package book

import (
	"time"
)

// Cause says why an engine was ejected. The values are labels.
type Cause string

// The causes.
const (
	CauseErrors Cause = "errors" // it failed too many of its last answers
	CauseSlow   Cause = "slow"   // it is much slower than it was
	CauseStuck  Cause = "stuck"  // it accepts and does not answer
)

// Causes lists them all.
var Causes = [...]Cause{CauseErrors, CauseSlow, CauseStuck}

// standing is what an engine may be trusted with, as outlier detection and circuit breakers have it: an outlier is ejected for
// some time, then tried by one request at a time, and when one goes well it returns by and by.
type standing struct {
	state standingState
	cause Cause
	since time.Time // of the state
	until time.Time // of an ejection: when it is to be tried
	times int       // ejections in a row
	trial *Entry    // the request by which it is tried; nil for none
	from  uint64    // entries booked before the state began: they say nothing of what it is now
	young int       // entries booked since, of an engine that returns
	ever  [len(Causes)]uint64
}

type standingState uint8

const (
	standingGood standingState = iota
	standingEjected
	standingReturning
)

// An ejection lasts ejectStep, and twice as long each time that a trial fails, up to maxEject. More of them cost clients a
// second try, fewer leave a mended engine idle for longer.
const (
	ejectStep = 5 * time.Second
	maxEject  = time.Minute
)

// An engine that returns may have one request, and twice as many after each rampStep, for rampSteps of them: 256 in 20
// seconds. It is empty, so that all would go there at once, and they would find a cold cache, or that it is not well yet.
const (
	rampStep  = 2500 * time.Millisecond
	rampSteps = 8
)

// trialRun is how long a stream must go on for its trial to have gone well before it has ended.
const trialRun = 5 * time.Second

// advance brings the standing to now.
func (s *standing) advance(now time.Time) {
	if s.state == standingReturning && now.Sub(s.since) >= rampSteps*rampStep {
		s.state, s.times, s.young = standingGood, 0, 0
	}
}

// spared reports whether nothing more is to come.
func (s *standing) spared(now time.Time) bool {
	switch s.state {
	case standingEjected:
		return s.trial != nil || now.Before(s.until)
	case standingReturning:
		return s.young >= 1<<(now.Sub(s.since)/rampStep)
	case standingGood:
	}
	return false
}

// enter begins a state. booked is how many entries were ever booked.
func (s *standing) enter(state standingState, booked uint64, now time.Time) {
	s.state, s.since, s.from, s.trial, s.young = state, now, booked, nil, 0
}

func (s *standing) eject(why Cause, booked uint64, now time.Time) {
	s.enter(standingEjected, booked, now)
	s.cause = why
	s.until = now.Add(min(ejectStep<<min(s.times, 10), maxEject))
	s.times++
	for i, c := range Causes {
		if c == why {
			s.ever[i]++
		}
	}
}

// booked takes an entry that was just booked.
func (s *standing) booked(e *Entry, now time.Time) {
	switch {
	case s.state == standingReturning:
		s.young++
	case s.state == standingEjected && s.trial == nil && !now.Before(s.until):
		s.trial, e.tried = e, true
	}
}

// ended takes an entry that has ended.
func (s *standing) ended(e *Entry) {
	if s.state == standingReturning && e.order > s.from {
		s.young--
	}
	if s.trial == e {
		s.trial = nil
	}
}

// tells reports whether what becomes of e says how an ejected engine is now.
func (s *standing) tells(e *Entry) bool { return s.state == standingEjected && e.order > s.from }

// answers are how the last ones ended.
type answers struct {
	ring [answerSamples]struct {
		at     time.Time
		failed bool
	}
	next int
}

// An engine is ejected when at least minFailed of its last answers failed, and half of them. An engine that fails one in
// twenty is worth more than none: those are tried elsewhere.
const (
	answerSamples = 20
	answerWindow  = time.Minute
	minFailed     = 5
)

func (a *answers) clear() { *a = answers{} }

// add takes an answer, and reports whether too many have failed.
func (a *answers) add(failed bool, now time.Time) (bad bool) {
	x := &a.ring[a.next]
	x.at, x.failed = now, failed
	a.next = (a.next + 1) % answerSamples
	n, fails := 0, 0
	for i := range a.ring {
		x := &a.ring[i]
		if x.at.IsZero() || now.Sub(x.at) > answerWindow {
			continue
		}
		n++
		if x.failed {
			fails++
		}
	}
	return fails >= minFailed && 2*fails >= n
}
