package mesh

import (
	"errors"
	"runtime"
	"sync"

	"github.com/quic-go/quic-go"
)

// gatherBelow is the size of a write that is sent together with those of other streams: a token's event, or a few.
const gatherBelow = 1024

// gatherer sends small writes of the streams of one connection together. An engine makes the next token of all its
// streams in one step, so their events come at the same time, each read by a goroutine of its own. The first of them to
// write wakes quic-go's loop, which runs before the others do and sends one event in a packet of its own: a system call at
// both ends, and for every second one an acknowledgement. So what is written waits until the goroutines that can run now
// have run.
type gatherer struct {
	mu      sync.Mutex
	waiting []*Stream
}

// add has what s gathered sent soon.
func (g *gatherer) add(s *Stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting = append(g.waiting, s); len(g.waiting) == 1 {
		go g.send()
	}
}

func (g *gatherer) send() {
	runtime.Gosched()
	g.mu.Lock()
	all := g.waiting
	g.waiting = nil
	g.mu.Unlock()
	for _, s := range all {
		s.gathered.send(s.qs)
	}
}

// gathered is what was written to a stream and has not been passed to QUIC yet. Its methods are safe for concurrent use.
type gathered struct {
	mu    sync.Mutex
	b     []byte
	spill chan struct{} // closed when bytes that found the window full have gone; nil while there are none
	err   error         // of the last write to QUIC: all later ones fail alike
}

// settleLocked waits while the window is full, until the stream's deadline or its end.
func (g *gathered) settleLocked() error {
	for g.spill != nil {
		done := g.spill
		g.mu.Unlock()
		<-done
		g.mu.Lock()
	}
	return g.err
}

// add appends p. It reports whether it is the first that waits.
func (g *gathered) add(p []byte) (first bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.settleLocked(); err != nil {
		return false, err
	}
	g.b = append(g.b, p...)
	return len(g.b) == len(p), nil
}

// send passes the bytes on. It never waits: others' bytes stand behind.
func (g *gathered) send(qs *quic.Stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spill != nil || g.err != nil || len(g.b) == 0 {
		return
	}
	err := qs.TryWriteAll(g.b)
	if !errors.Is(err, quic.ErrWouldBlock) {
		g.b, g.err = g.b[:0], err
		return
	}
	b, done := g.b, make(chan struct{})
	g.b, g.spill = nil, done
	go func() {
		_, err := qs.Write(b)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.spill, g.err = nil, err
		close(done)
	}()
}

// flush passes the bytes on and waits until QUIC has them.
func (g *gathered) flush(qs *quic.Stream) error {
	g.mu.Lock()
	err := g.settleLocked()
	b := g.b
	g.b = nil
	g.mu.Unlock()
	if err != nil || len(b) == 0 {
		return err
	}
	_, err = qs.Write(b)
	return err
}
