package spread

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

const (
	// writePatience is how long a peer may take nothing before its feed is given up. Nothing waits for it meanwhile, and
	// what it misses is told as one delta.
	writePatience = 5 * time.Second
	// openPatience bounds the wait for a stream.
	openPatience = 5 * time.Second
	// reopenFirst and reopenLast bound the waits between two tries to open a feed. A connection that was replaced ends a feed,
	// and the next one can be opened at once.
	reopenFirst, reopenLast = 100 * time.Millisecond, 10 * time.Second
)

// codeFeedOver cancels a feed that its teller gave up.
const codeFeedOver = 34

// peer is one life of a peer's process, and what it was told. Writers take turns: the next begins when the last is done.
type peer struct {
	name     string
	instance uint64
	share    float64       // see phase
	wake     chan struct{} // capacity 1: there are news

	// These are guarded by Teller.mu.
	up   bool
	stop context.CancelFunc // ends the writer
	done chan struct{}      // closed when it has ended

	// These belong to the writer. They outlive it: what was written is taken to have come, and who missed it will ask.
	edition   *edition // the last one that was written; nil: none
	announced uint64   // number of the last announcement that was written
}

func newPeer(self, name string, instance uint64) *peer {
	done := make(chan struct{})
	close(done)
	return &peer{name: name, instance: instance, share: phase(self, name), wake: make(chan struct{}, 1), stop: func() {}, done: done}
}

// feed is the stream to one peer, while its writer runs. It belongs to the writer.
type feed struct {
	*Teller
	peer    *peer
	stream  Stream    // nil while none is open
	release func()    // of the stream
	failed  int       // tries since something was written
	retry   time.Time // not before
}

// tell writes to a peer what is new, each thing when it is due, until ctx ends.
func (t *Teller) tell(ctx context.Context, p *peer) {
	f := feed{Teller: t, peer: p}
	defer f.close()
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for ctx.Err() == nil {
		wait := f.wait(t.now(), time.Now())
		if wait <= 0 {
			f.write(ctx)
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// idle is the wait of a writer that has nothing to do before it is woken.
const idle = time.Hour

// wait returns how long nothing is due.
func (f *feed) wait(n news, now time.Time) time.Duration {
	due := now.Add(idle)
	switch {
	case f.stream == nil || f.peer.announced < n.announcement.urgent:
		due = now
	case f.peer.edition != n.edition:
		due = f.turn(n.edition)
	}
	return max(due.Sub(now), f.retry.Sub(now))
}

// turn returns when an edition is due: at once for a peer that has none.
func (f *feed) turn(e *edition) time.Time {
	if f.peer.edition == nil {
		return e.at
	}
	return e.at.Add(time.Duration(f.peer.share * float64(e.period) / 4))
}

// phase returns the share, 0 to 1, of a quarter of the period by which an agent tells a peer later than others: not all at
// once, which would take CPU from requests, at the teller as at the peer.
func phase(self, peer string) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(self + "/" + peer))
	return float64(h.Sum64()*0x9e3779b97f4a7c15>>11) / (1 << 53) // multiplied, because the last letters reach the high bits no other way
}

func (f *feed) write(ctx context.Context) {
	err := f.writeDue(ctx, f.now(), time.Now())
	if err == nil {
		f.failed = 0
		return
	}
	f.close()
	wait := min(reopenFirst<<min(f.failed, 10), reopenLast)
	f.failed++
	f.retry = time.Now().Add(wait/2 + rand.N(wait/2))
	if ctx.Err() == nil {
		f.Logger.Debug("feed ended", "peer", f.peer.name, "err", err)
	}
}

// writeDue writes all that is due, in one piece: the announcement before digests of the engines that it names.
func (f *feed) writeDue(ctx context.Context, n news, now time.Time) error {
	opened := f.stream == nil
	var b []byte
	if opened {
		if err := f.open(ctx); err != nil {
			return err
		}
		b = hello{protocol, f.Instance, schemeOf(f.Scheme)}.frame()
	}
	if opened || f.peer.announced < n.announcement.number {
		b = append(b, n.announcement.frame...)
	}
	edition := f.peer.edition
	if !f.turn(n.edition).After(now) {
		var digests []byte
		if digests, edition = f.lead(edition); len(b) == 0 {
			b = digests // shared with other peers
		} else {
			b = append(b, digests...)
		}
	}
	_ = f.stream.SetWriteDeadline(now.Add(writePatience)) // a stream that takes none fails at the write
	if _, err := f.stream.Write(b); err != nil {
		return fmt.Errorf("write feed: %w", err)
	}
	f.peer.announced, f.peer.edition = n.announcement.number, edition
	return nil
}

func (f *feed) open(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	s, err := f.Carrier.OpenFeed(opening, f.peer.name)
	if err != nil {
		return fmt.Errorf("open feed: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { s.Cancel(codeFeedOver) }) // also out of a write
	f.stream, f.release = s, func() { stop(); s.Cancel(codeFeedOver) }
	for _, b := range datagrams(f.report(f.HeartbeatPeriod())) {
		_ = f.Carrier.SendDatagram(f.peer.name, b) // a lost heartbeat is followed by the next
	}
	return nil
}

func (f *feed) close() {
	if f.stream != nil {
		f.release()
		f.stream = nil
	}
}
