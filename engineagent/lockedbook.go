package engineagent

import (
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// lockedBook is an Agent's book under a lock of its own: who asks for the load does not wait for what the Agent's lock
// guards, where a lesson takes a millisecond. It is taken after the Agent's, and nothing is called under it that waits.
type lockedBook struct {
	now    func() time.Time
	handed func(waited time.Duration) // called for each request that is handed to the engine
	notify func()                     // called when peers should hear at once

	mu    sync.Mutex // guards the following fields, and the entries of all bookings
	book  *book.Book
	alarm *time.Timer // of book.Wake; nil before it was needed
	told  news
}

// news is what peers should hear of at once.
type news struct {
	flags engine.Flags
	empty bool
}

// update makes a change of the book that reads no clock, and does what may follow of it.
func (l *lockedBook) update(change func(*book.Book)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l.book)
	l.follow(l.now())
}

// follow gives up what an engine that is stuck has, hands over what may go now, and tells what is news. It is called after each
// change, under the lock.
func (l *lockedBook) follow(now time.Time) {
	for _, e := range l.book.Judge(now) {
		e.Value.(*Booking).giveUp(errGivenUp)
	}
	for e := l.book.Next(now); e != nil; e = l.book.Next(now) {
		b := e.Value.(*Booking)
		l.handed(now.Sub(b.made))
		close(b.turn)
	}
	l.setAlarm(now)
	l.announce(now)
}

// setAlarm sees to it that requests are handed over when the one before them is late, and that a silence is noticed.
func (l *lockedBook) setAlarm(now time.Time) {
	at, ok := l.book.Wake()
	if judge, due := l.book.JudgeAt(now); due && (!ok || judge.Before(at)) {
		at, ok = judge, true
	}
	switch {
	case !ok && l.alarm != nil:
		l.alarm.Stop()
	case !ok:
	case l.alarm == nil:
		l.alarm = time.AfterFunc(at.Sub(now), func() { l.update(func(*book.Book) {}) })
	default:
		l.alarm.Reset(at.Sub(now))
	}
}

func (l *lockedBook) announce(at time.Time) {
	now, told := l.news(at), l.told
	l.told = now
	if told.empty && !now.empty { // a first request is no news: it came through this agent or counts in the next heartbeat
		told.empty = false
	}
	if now != told {
		l.notify()
	}
}

func (l *lockedBook) news(now time.Time) news { return news{l.book.Flags(now), l.book.InFlight() == 0} }

// refusal returns why a request cannot be booked, "" when it can, and the load.
func (l *lockedBook) refusal(ask book.Ask) (book.Reason, engine.Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	return l.book.Refusal(ask, now), l.book.Load(now)
}

// admit is refusal, and where it can be the request is booked in the same step; the load is the one after it.
func (l *lockedBook) admit(ask book.Ask, e *book.Entry, w book.Work) (book.Reason, engine.Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	reason := l.book.Refusal(ask, now)
	if reason == "" {
		l.book.Book(e, w, now)
		l.follow(now)
	}
	return reason, l.book.Load(now)
}

// content notes content of an entry. It reports whether that is its first, and how long its prefill took then, 0 when that
// is not known; open is false when the entry has ended, or was given up.
func (l *lockedBook) content(e *book.Entry) (took time.Duration, first, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	switch {
	case e.GivenUp():
		return 0, false, false
	case e.Running():
		l.book.More(e, now)
		if l.told.flags&engine.Ejected != 0 {
			l.announce(now)
		}
		return 0, false, true
	case !e.Waiting():
		return 0, false, false
	}
	took = l.book.Content(e, now)
	l.follow(now)
	return took, true, true
}

// end takes an entry out and reports whether it had content; ok is false when it had ended before.
func (l *lockedBook) end(e *book.Entry, o *Outcome) (content, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	content = e.Running()
	if !l.book.End(e, now) {
		return false, false
	}
	switch {
	case o.Failed:
		l.book.Failed(e, now)
	case o.Refused:
		l.book.Alive(now)
	case content:
		l.book.Answered(e, now)
	}
	l.follow(now)
	return content, true
}

// load returns a new reading.
func (l *lockedBook) load() engine.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.Load(l.now())
}

// mark is to be read before the engine is asked for its load.
func (l *lockedBook) mark() book.Mark { return look(l, (*book.Book).Mark) }

// look reads something of the book.
func look[T any](l *lockedBook, f func(*book.Book) T) T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return f(l.book)
}
