package book

import (
	"slices"
	"time"
)

// silence finds out whether an engine still works, by what it has not said. Streams tell. An answer that comes whole shows
// nothing while it is made, but in the engine's counts where it has any.
type silence struct {
	mute []*Entry  // with the engine, without content, in order of hand-over
	sign time.Time // when it last showed that it works
	// counts says that the engine tells how much it has computed, so that it is seen to work on what it does not show.
	counts bool
	read   time.Time // when it last told them

	stuckAt time.Time     // when it was found stuck, and no sign came since; zero otherwise
	waited  time.Duration // how long it had been silent then
}

// An engine is quiet when nothing has come for twice the time that what it was given should take, and a second; nothing more
// is sent to it then while others can serve, and at the next sign of life all is well again. It is stuck after four times
// that time, and stuckFloor: what waits there is given up. The first costs nothing when it is wrong, so that a single
// collection of garbage may do it. The second throws away a prefill: below ten seconds are an engine that compiles a new shape,
// or captures a graph, and a prompt that engine and owner count differently. With blindFloor an engine that tells no counts
// may be making a tool's call that it shows when it is complete.
const (
	quietFloor  = time.Second
	quietFactor = 2
	stuckFloor  = 10 * time.Second
	blindFloor  = 30 * time.Second
	stuckFactor = 4
	// trialFactor goes for a single request on trial: nothing else keeps the engine from it, and its client waits.
	trialFactor = 10
	// wholeTrial goes for one whose answer comes whole, from an engine that tells no counts: longer than most answers take.
	wholeTrial = 2 * time.Minute
)

// overtaken is how many requests that came later must have had content before one is lost: engines take what is cached, or
// short, or of higher priority, before others, but what was given up for lost too soon is only computed elsewhere.
const overtaken = 8

// patientRate stands for the speed of an engine that has not been measured, in tokens/s: that of a large model on CPUs.
const patientRate = 100

// handed takes an entry that is now with the engine.
func (s *silence) handed(e *Entry, c curve, now time.Time) {
	e.handed = now
	s.mute = append(s.mute, e)
	var owed amount
	for _, m := range s.mute {
		owed.add(m.work)
	}
	e.lost = now.Add(s.floor() + seconds(stuckFactor*c.seconds(owed)))
}

// floor is how long an engine may be silent that has nothing to do.
func (s *silence) floor() time.Duration {
	if s.counts {
		return stuckFloor
	}
	return blindFloor
}

// content takes out an entry that has content: it has overtaken those that were handed over before.
func (s *silence) content(e *Entry) {
	i := slices.Index(s.mute, e)
	if i < 0 {
		return
	}
	for _, m := range s.mute[:i] {
		m.passed++
	}
	s.mute = slices.Delete(s.mute, i, i+1)
}

// lostAt returns when the first of the entries is lost that so many have overtaken.
func (s *silence) lostAt() (at time.Time, ok bool) {
	for _, e := range s.mute {
		if e.isOvertaken() && (!ok || e.lost.Before(at)) {
			at, ok = e.lost, true
		}
	}
	return at, ok
}

// An answer that comes whole is overtaken by all that are shorter.
func (e *Entry) isOvertaken() bool { return e.passed >= overtaken && !e.whole }

// lost takes out the entries that are lost in an engine which works.
func (s *silence) lost(now time.Time) (lost []*Entry) {
	s.mute = slices.DeleteFunc(s.mute, func(e *Entry) bool {
		is := e.isOvertaken() && !now.Before(e.lost)
		if is {
			lost = append(lost, e)
		}
		return is
	})
	return lost
}

// leave takes out an entry that has ended.
func (s *silence) leave(e *Entry) {
	if i := slices.Index(s.mute, e); i >= 0 {
		s.mute = slices.Delete(s.mute, i, i+1)
	}
}

// limits are the moments at which a silence means something, unless a sign of life comes before.
type limits struct {
	since, quiet, stuck time.Time
	whole               bool // only the engine's counts tell
}

// passed reports whether the engine is stuck at now. Where only its counts tell it must have told them.
func (l *limits) passed(s *silence, now time.Time) bool {
	return !now.Before(l.stuck) && (!l.whole || !s.read.Before(l.stuck))
}

// limits is false when nothing is there that would show a sign of life. What was handed over to an engine that was quiet gives
// it no more time.
func (s *silence) limits(c curve, trial *Entry) (l limits, ok bool) {
	first := slices.IndexFunc(s.mute, func(e *Entry) bool { return !e.whole })
	if first < 0 {
		return s.wholeLimits(c, trial)
	}
	l.since = s.mute[first].handed
	if s.sign.After(l.since) {
		l.since = s.sign
	}
	l.quiet = l.since.Add(quietFloor)
	var owed amount
	for _, e := range s.mute {
		if !e.handed.Before(l.quiet) {
			break
		}
		if !e.whole || e.state != statePrefilled {
			owed.add(e.work)
			l.quiet = l.since.Add(quietFloor + seconds(quietFactor*c.seconds(owed)))
		}
	}
	wait := s.floor() + seconds(stuckFactor*c.seconds(owed))
	if len(s.mute) == 1 && s.mute[0] == trial {
		wait = min(wait, quietFloor+seconds(trialFactor*c.seconds(owed)))
	}
	l.stuck = l.since.Add(wait)
	return l, true
}

// wholeLimits is limits where no request is a stream.
func (s *silence) wholeLimits(c curve, trial *Entry) (l limits, ok bool) {
	if len(s.mute) == 0 {
		return l, false
	}
	l.since = s.mute[0].handed
	if s.sign.After(l.since) {
		l.since = s.sign
	}
	switch {
	case s.counts:
		var owed amount
		for _, e := range s.mute {
			owed.add(e.work)
		}
		l.whole = true
		l.stuck = l.since.Add(stuckFloor + seconds(stuckFactor*c.seconds(owed)))
	case s.mute[0] == trial:
		l.stuck = l.since.Add(wholeTrial)
	default:
		return l, false
	}
	l.quiet = l.stuck
	return l, true
}

// heard notes a sign of life.
func (s *silence) heard(now time.Time) { s.sign, s.stuckAt = now, time.Time{} }

// giveUp returns the entries that wait for an engine that is stuck, silent for so long, and forgets them.
func (s *silence) giveUp(now time.Time, silent time.Duration) []*Entry {
	given := s.mute
	s.mute = nil
	if s.stuckAt.IsZero() {
		s.stuckAt, s.waited = now, silent
	}
	return given
}

// hung reports, once, that the engine has been silent for as long again since it was found stuck.
func (s *silence) hung(now time.Time) bool {
	if s.stuckAt.IsZero() || now.Sub(s.stuckAt) < s.waited {
		return false
	}
	s.stuckAt = now
	return true
}
