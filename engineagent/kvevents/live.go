package kvevents

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// take takes what a connection has to tell.
func (f *Follower) take(ctx context.Context, n note) {
	switch n.kind {
	case noteOpened:
		f.open = append(f.open, n.link)
		if f.current == nil {
			f.adopt(ctx, n.link)
		}
	case noteClosed:
		f.open = slices.DeleteFunc(f.open, func(l *link) bool { return l == n.link })
		if n.link == f.current {
			f.disconnected(ctx)
		}
	case noteBroken:
		f.count(func(s *Stats) { s.Broken++ })
	case noteBatch:
		if f.current != nil && n.link.id > f.current.id {
			f.current.conn.Close() // a new connection speaks: the old one is a dead process
			f.adopt(ctx, n.link)
		}
		if n.link == f.current {
			f.live(ctx, n.m)
		}
	}
}

// adopt makes a connection the one that is followed, and finds out what was missed before it.
func (f *Follower) adopt(ctx context.Context, l *link) {
	f.current, f.foreign, f.leaveAt = l, false, time.Time{}
	f.hold.clear()
	f.setConnected(true)
	f.tracker.suspect()
	if f.away {
		f.away = false
		f.restart("nobody followed the KV events for a while")
	}
	f.rebuildAt, f.rebuildPause, f.deafUntil = time.Time{}, 0, time.Time{}
	err := f.rebuild(ctx)
	if ctx.Err() != nil {
		return
	}
	if f.tracker.doubt {
		f.lose("the connection was lost, and nothing proves that no KV events were")
	}
	if err != nil {
		f.rebuildLater()
	}
	f.checkAt = time.Now().Add(checkAfter)
}

func (f *Follower) disconnected(ctx context.Context) {
	f.current, f.checkAt, f.fillAt = nil, time.Time{}, time.Time{}
	f.hold.clear()
	f.setConnected(false)
	if f.tracker.begun {
		f.leaveAt = time.Now().Add(maxAway)
	}
	if n := len(f.open); n > 0 {
		f.adopt(ctx, f.open[n-1])
	}
}

func (f *Follower) setConnected(on bool) {
	f.count(func(s *Stats) {
		if s.Connected != on {
			s.Connected, s.Since = on, time.Now()
		}
	})
}

// live takes a batch of the connection that is followed.
func (f *Follower) live(ctx context.Context, m message) {
	f.consider(ctx, m)
	if f.hold.full() {
		f.fill(ctx, f.hold.pop())
	}
	f.release(ctx)
	f.checkAt = time.Now().Add(checkAfter)
}

// consider applies a batch, or keeps it until its turn comes.
func (f *Follower) consider(ctx context.Context, m message) {
	switch f.tracker.judge(m.seq, m.hash) {
	case apply:
		f.apply(m)
	case repeated:
		f.count(func(s *Stats) { s.Repeated++ })
	case late:
		f.count(func(s *Stats) { s.Late++ })
	case early:
		if f.tracker.begun {
			f.hold.add(m)
		} else {
			f.fill(ctx, m) // nothing can be reordered before the first batch
		}
	case restarted:
		f.restart("the numbers of its KV events began again")
		f.fill(ctx, m)
	}
}

// release takes the held batches whose turn has come, and waits anew for what is missing before the others.
func (f *Follower) release(ctx context.Context) {
	for !f.hold.empty() && f.hold.first() <= f.tracker.next {
		f.consider(ctx, f.hold.pop())
	}
	switch {
	case f.hold.empty():
		f.fillAt = time.Time{}
	case f.fillAt.IsZero() || f.fillFor != f.tracker.next:
		f.fillAt, f.fillFor = time.Now().Add(f.o.Reorder), f.tracker.next
	}
}

// fill gets what is missing before m, by a replay or by giving up what is held, and applies m.
func (f *Follower) fill(ctx context.Context, m message) {
	if f.tracker.begun {
		f.count(func(s *Stats) { s.Gaps++ })
	}
	err := f.catchUp(ctx)
	if ctx.Err() != nil {
		return
	}
	switch f.tracker.judge(m.seq, m.hash) {
	case apply:
		f.apply(m)
	case early:
		f.lose(fmt.Sprintf("%d batches of KV events were missed", m.seq-f.tracker.next))
		f.tracker.skip(m.seq)
		f.apply(m)
		if err != nil {
			f.rebuildLater()
		}
	case restarted: // under this number the replay has another batch than the publisher
		f.foreign = true
		f.restart("the replay of KV events is of another publisher")
		f.tracker.skip(m.seq)
		f.apply(m)
	case repeated, late: // it was in the replay
	}
}
