package kvevents

import (
	"context"
	"errors"
	"time"
)

// maxReplay bounds the time of all answers to one replay: 10,000 batches take seconds.
const maxReplay = 30 * time.Second

var (
	errOther = errors.New("it is another process")
	// errHole ends an answer in whose middle a batch is missing: libzmq's ROUTER drops what a slow connection does not
	// take.
	errHole = errors.New("a batch is missing")
	// errForeign ends an answer with other batches than those that came live on this connection.
	errForeign = errors.New("it is the replay of another publisher")
	errDeaf    = errors.New("it does not answer")
)

// catchUp asks for everything since the last batch and applies it. On a new connection it also finds out whether the
// publisher is still the same process: the last batch must be there as it was. What is still missing afterwards shows in
// the number that is wanted, and what is still not proved in the tracker's doubt. An error says that asking once more may
// bring more.
func (f *Follower) catchUp(ctx context.Context) error {
	switch {
	case f.source.Replay == "" || f.foreign:
		return nil
	case time.Now().Before(f.deafUntil):
		return errDeaf
	}
	err := f.replay(ctx)
	if errors.Is(err, errOther) {
		f.restart("the connection was lost, and the engine's last KV events are others")
		err = f.replay(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	f.o.Logger.Warn("replay of KV events failed", "endpoint", f.source.Replay, "err", err)
	if errors.Is(err, errForeign) {
		f.foreign = true
		return nil
	}
	f.deafUntil = time.Now().Add(firstRebuild)
	return err
}

// The pauses before a replay that failed, and for want of which something is not known, is asked for again. They double
// for as long as a connection lasts: an engine that publishes faster than it replays must not be asked all the time.
const (
	firstRebuild = 5 * time.Second
	lastRebuild  = 5 * time.Minute
)

// rebuildLater plans to ask again for all that the engine remembers, unless that is planned.
func (f *Follower) rebuildLater() {
	f.partial = true
	if !f.rebuildAt.IsZero() {
		return
	}
	f.rebuildPause = min(max(2*f.rebuildPause, firstRebuild), lastRebuild)
	f.rebuildAt = time.Now().Add(f.rebuildPause)
}

// rebuild catches up, and gives up what is held for all that the engine remembers, if it can be had now.
func (f *Follower) rebuild(ctx context.Context) error {
	process := f.processes
	err := f.catchUp(ctx)
	if err == nil && f.partial && f.processes == process && f.tracker.begun && ctx.Err() == nil && !f.foreign {
		f.lose("all that the engine remembers is asked for again")
		f.tracker.reset()
		err = f.catchUp(ctx)
	}
	if err == nil {
		f.partial = false
	}
	return err
}

// replay asks until an answer is whole or brings nothing new.
func (f *Follower) replay(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxReplay)
	defer cancel()
	r := replay{f: f}
	if f.holding {
		r.loseAt = time.Now().Add(f.o.Replay)
	}
	for {
		before := f.tracker.next
		err := r.answer(ctx)
		switch {
		case err == nil && f.tracker.doubt: // the last batch is not there
			return errOther
		case err == nil, errors.Is(err, errOther), errors.Is(err, errForeign):
			return err
		case errors.Is(err, errHole) || f.tracker.next > before: // it is cut short
		case r.retried || errors.Is(err, errDeaf):
			return err
		default:
			r.retried = true
		}
	}
}

// replay is the state of one catching up.
type replay struct {
	f      *Follower
	loseAt time.Time // when what is held has been wrong for too long
	begun  bool      // something of this answer was of use
	hole   uint64    // number that was missing in the middle of an answer
	holes  int       // answers in which it was

	retried bool // an answer that broke off without anything new was asked for again
}

// answer reads one answer.
func (r *replay) answer(ctx context.Context) error {
	from, begun := r.f.tracker.last()
	if !begun {
		from = r.f.tracker.next
	}
	r.begun = false
	return r.f.ask(ctx, from, r.take)
}

// take takes one batch of an answer.
func (r *replay) take(m message) error {
	f := r.f
	if reached(&r.loseAt, time.Now()) {
		f.lose("the replay of KV events takes too long")
		f.rebuildLater()
	}
	last, known := f.tracker.last()
	switch {
	case known && m.seq == last:
		return r.prove(m)
	case m.seq < f.tracker.next: // was not asked for
		return nil
	case f.tracker.doubt: // the last batch is not there
		return errOther
	case m.seq > f.tracker.next && r.begun && !r.again():
		return errHole
	case m.seq > f.tracker.next:
		f.lose("the engine does not remember all KV events that were missed")
		f.tracker.skip(m.seq)
	}
	r.begun = true
	f.count(func(s *Stats) { s.Replayed++ })
	f.apply(m)
	return nil
}

// prove takes what should be the last batch that was applied.
func (r *replay) prove(m message) error {
	switch t := &r.f.tracker; {
	case t.same(m.seq, m.hash):
		t.trust()
	case t.doubt:
		return errOther
	default:
		return errForeign
	}
	r.begun = true
	return nil
}

// again reports whether the wanted batch was missing in an answer before this one too: the engine does not have it.
func (r *replay) again() bool {
	if next := r.f.tracker.next; r.hole != next || r.holes == 0 {
		r.hole, r.holes = next, 0
	}
	r.holes++
	return r.holes > 1
}
