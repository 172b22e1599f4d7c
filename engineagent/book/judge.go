package book

import (
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Standing is what an owner thinks of its engine, for those who look.
type Standing struct {
	Ejected   bool      // it is tried by single requests from Until on
	Returning bool      // it gets more requests by and by
	Quiet     bool      // nothing came for longer than it should take
	Cause     Cause     // of the last ejection; "" when there was none
	Since     time.Time // of Ejected or Returning
	Until     time.Time
	Ever      map[Cause]uint64 // ejections
}

// Standing returns what the book thinks of the engine.
func (b *Book) Standing(now time.Time) Standing {
	b.advance(now)
	s := &b.standing
	out := Standing{
		Ejected: s.state == standingEjected, Returning: s.state == standingReturning, Quiet: b.quiet(now),
		Cause: s.cause, Since: s.since, Until: s.until, Ever: map[Cause]uint64{},
	}
	for i, c := range Causes {
		out.Ever[c] = s.ever[i]
	}
	return out
}

// ejected is the flag of an engine that is to get nothing more while others can serve.
func (b *Book) ejected(now time.Time) engine.Flags {
	if b.cfg.Judge && (b.standing.spared(now) || b.quiet(now)) {
		return engine.Ejected
	}
	return 0
}

// quiet reports whether the engine has been silent for longer than it should be.
func (b *Book) quiet(now time.Time) bool {
	l, ok := b.limits()
	return ok && !l.whole && !now.Before(l.quiet)
}

// limits returns when the silence of the engine means something.
func (b *Book) limits() (l limits, ok bool) {
	return b.silence.limits(b.patient(), b.standing.trial)
}

// patient is the curve by which silence is judged.
func (b *Book) patient() curve {
	if !b.speeds.measured {
		return curve{perToken: 1.0 / patientRate}
	}
	return b.speeds.curve
}

// JudgeAt returns when Judge is to be called though nothing happened, or peers are to be told; ok is false for never.
func (b *Book) JudgeAt(now time.Time) (at time.Time, ok bool) {
	if !b.cfg.Judge {
		return at, false
	}
	l, ok := b.limits()
	at = l.stuck
	if now.Before(l.quiet) && l.quiet.Before(l.stuck) {
		at = l.quiet
	}
	ok = ok && !l.whole // else when the engine has told its counts
	if lost, is := b.silence.lostAt(); is && (!ok || lost.Before(at)) {
		at, ok = lost, true
	}
	return at, ok
}

// Judge returns the entries that are to be given up: those of which nothing came when the engine was found stuck, or when they
// were found lost in it, and nothing of what comes later may be used; and those that wait with the owner when it is ejected. They count until they are ended. It
// is to be called before Next, after each change.
func (b *Book) Judge(now time.Time) []*Entry {
	b.advance(now)
	l, ok := b.limits()
	if b.cfg.Judge && ok && l.passed(&b.silence, now) {
		if s := &b.standing; s.state != standingEjected || s.trial != nil || !now.Before(s.until) {
			b.eject(CauseStuck, now)
		}
		b.spill(b.silence.giveUp(now, now.Sub(l.since)))
	}
	if b.cfg.Judge {
		b.spill(b.silence.lost(now))
	}
	given := b.given
	b.given = nil
	return given
}

// Hung reports, once for each time, that a stuck engine shows no sign of life still: what it had begun to answer can be given up
// too. A trial would end with it, and is waited for.
func (b *Book) Hung(now time.Time) bool { return b.standing.trial == nil && b.silence.hung(now) }

// Counts says that the engine was read, whether it tells how much it computes, and whether that has grown.
func (b *Book) Counts(tells, grown bool, now time.Time) {
	b.silence.counts, b.silence.read = tells, now
	if grown {
		b.Alive(now)
	}
}

// Alive says that the engine was seen to work.
func (b *Book) Alive(now time.Time) { b.silence.heard(now) }

// Returned says that the engine is back from where it could not serve: it is to be given more by and by, since it is empty,
// and so the first choice of all.
func (b *Book) Returned(now time.Time) {
	b.forgive()
	b.standing.times = 0
	b.standing.enter(standingReturning, b.ledger.booked, now)
}

// eject gives what waits with the owner to others; what comes again nevertheless has nowhere else to go.
func (b *Book) eject(why Cause, now time.Time) {
	b.forgive()
	if b.standing.state != standingEjected {
		b.spill(b.ledger.queue)
	}
	b.standing.eject(why, b.ledger.booked, now)
}

// spill gives entries up.
func (b *Book) spill(entries []*Entry) {
	for _, e := range entries {
		e.givenUp = true
	}
	b.given = append(b.given, entries...)
}

// forgive forgets what was measured of how the engine is now.
func (b *Book) forgive() {
	b.pace.clear()
	b.slowed.clear()
	b.answers.clear()
}

// Failed says that the engine failed the request of an entry, and that this was its fault.
func (b *Book) Failed(e *Entry, now time.Time) {
	if e.givenUp || !b.cfg.Judge {
		return
	}
	s := &b.standing
	switch {
	case s.state != standingEjected:
		if b.answers.add(true, now) {
			b.eject(CauseErrors, now)
		}
	case s.tells(e) && (e.tried || !now.Before(s.until)):
		b.eject(s.cause, now)
	}
}

// Answered says that the engine has answered the request of an entry.
func (b *Book) Answered(e *Entry, now time.Time) {
	if !b.cfg.Judge {
		return
	}
	if b.standing.state != standingEjected {
		b.answers.add(false, now)
		return
	}
	b.passed(e, now)
}

// passed lets an ejected engine return by what became of e.
func (b *Book) passed(e *Entry, now time.Time) {
	if b.standing.tells(e) && !e.slow() {
		b.forgive()
		b.standing.enter(standingReturning, b.ledger.booked, now)
	}
}

// More says that more of an answer has come.
func (b *Book) More(e *Entry, now time.Time) {
	b.Alive(now)
	if b.standing.tells(e) && now.Sub(e.began) >= trialRun {
		b.passed(e, now)
	}
}

// prefilled judges the speed of the engine by an entry's first content, which came took after it was the head; 0 when it never
// was. What waits for others' prompts, or for memory, says nothing.
func (b *Book) prefilled(e *Entry, took time.Duration, now time.Time) {
	if !b.cfg.Judge || e.whole || !b.speeds.measured || b.foreign.waiting > 0 || b.noMemory() {
		return
	}
	e.heard, e.took, e.due = now, took.Seconds(), b.speeds.curve.seconds(e.work)
	s := &b.standing
	if s.tells(e) && e.slow() && (e.tried || !now.Before(s.until)) {
		b.eject(CauseSlow, now)
		return
	}
	if s.state == standingEjected {
		return
	}
	if b.pace.add(e); b.pace.slow(now) {
		slowed := b.pace
		b.eject(CauseSlow, now)
		b.slowed = slowed
	}
}

// corrected takes what the prefill of an entry turned out to be. An engine that was taken for slow because it held less of its
// prompts than was thought is pardoned.
func (b *Book) corrected(e *Entry, a amount) {
	e.due = b.speeds.curve.seconds(a)
	s := &b.standing
	if s.state == standingEjected && s.cause == CauseSlow && b.slowed.n > 0 && !b.slowed.slow(s.since) {
		b.slowed.clear()
		s.times = 0
		s.enter(standingGood, b.ledger.booked, s.since)
	}
}
