package mesh

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"
)

// The codes with which this package cancels streams. Those who use streams choose their own, from 16 up.
const (
	codeDone        = 0 // the reader has all it wants
	codeUnknownKind = 1
	codeTooMany     = 2 // streams of that kind at a time
)

// combineBelow is the size of a first write that the kind byte is copied together with, to leave in one packet. Larger
// ones fill packets anyway, so that a copy buys nothing.
const combineBelow = 1024

// Stream is one bidirectional stream to a peer, and a net.Conn. One goroutine may read while another writes. Whoever has
// a stream must end it with Close or Cancel, else its place in the peer's limit of 4,096 is lost.
type Stream struct {
	qs      *quic.Stream
	conn    *peerConn
	kind    Kind
	in, out prometheus.Counter

	gathered gathered

	mu   sync.Mutex
	sent atomic.Bool // the kind byte has left, or came from the peer; set under mu
	end  func()      // runs when the stream is over; nil, or set before others see the stream
	over atomic.Bool // Close or Cancel was called
}

var _ net.Conn = (*Stream)(nil)

func newStream(qs *quic.Stream, pc *peerConn, kind Kind, met *metrics) *Stream {
	s := &Stream{qs: qs, conn: pc, kind: kind}
	s.in, s.out = met.bytes(kind.channel())
	qs.SetPriority(kind.urgency(), true)
	if !lasts(kind) {
		pc.streams.Add(1)
	}
	return s
}

// lasts reports whether streams of that kind live as long as their connection, and are opened again on the next: one that
// drains does not wait for them.
func lasts(k Kind) bool { return k == KindFeed || k == KindRaft }

// Kind is what the stream was opened for.
func (s *Stream) Kind() Kind { return s.kind }

// Peer is the name of the agent at the other end.
func (s *Stream) Peer() string { return s.conn.name }

// Read reads what the peer wrote; io.EOF comes after its CloseWrite or Close.
func (s *Stream) Read(p []byte) (int, error) {
	if err := s.begin(); err != nil {
		return 0, err
	}
	n, err := s.qs.Read(p)
	s.in.Add(float64(n))
	return n, err
}

// Write writes p. It returns when p is copied or on its way, and blocks while the peer's window is full. Of a small write
// that fails the next one, or Close, may tell.
func (s *Stream) Write(p []byte) (int, error) {
	if !s.sent.Load() {
		if n, done, err := s.writeFirst(p); done || err != nil {
			return n, err
		}
	}
	if s.kind == KindRequest && len(p) < gatherBelow {
		return s.gather(p)
	}
	if err := s.gathered.flush(s.qs); err != nil {
		return 0, err
	}
	n, err := s.qs.Write(p)
	s.out.Add(float64(n))
	return n, err
}

// gather writes p together with what other streams write.
func (s *Stream) gather(p []byte) (int, error) {
	first, err := s.gathered.add(p)
	if err != nil {
		return 0, err
	}
	if first {
		s.conn.gatherer.add(s)
	}
	s.out.Add(float64(len(p)))
	return len(p), nil
}

// writeFirst writes the kind byte, with p where p is small.
func (s *Stream) writeFirst(p []byte) (n int, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent.Load() {
		return 0, false, nil
	}
	head := []byte{byte(s.kind)}
	if len(p) > 0 && len(p) < combineBelow {
		head = append(head, p...)
	}
	n, err = s.qs.Write(head)
	s.sent.Store(err == nil)
	s.out.Add(float64(n))
	return max(n-1, 0), len(head) > 1, err
}

// begin makes sure that the peer knows of the stream.
func (s *Stream) begin() error {
	if s.sent.Load() {
		return nil
	}
	_, _, err := s.writeFirst(nil)
	return err
}

// CloseWrite says that no more is written; the peer reads io.EOF. It must not run together with Write.
func (s *Stream) CloseWrite() error {
	return errors.Join(s.begin(), s.gathered.flush(s.qs), s.qs.Close())
}

// Close ends the stream in order: what was written still arrives, what was not read yet is dropped. It must not run
// together with Write; Cancel may.
func (s *Stream) Close() error {
	err := errors.Join(s.begin(), s.gathered.flush(s.qs))
	s.qs.CancelRead(codeDone)
	if e := s.qs.Close(); err == nil {
		err = e
	}
	s.release()
	return err
}

// Cancel breaks the stream off in both directions; the peer finds code in a quic.StreamError. What was written may be lost.
// After Close, or a second time, it does nothing that the peer could notice, except to give up what is not delivered.
func (s *Stream) Cancel(code uint64) {
	s.qs.CancelRead(quic.StreamErrorCode(code))
	s.qs.CancelWrite(quic.StreamErrorCode(code))
	s.release()
}

func (s *Stream) release() {
	if s.over.CompareAndSwap(false, true) {
		if !lasts(s.kind) {
			s.conn.streams.Add(-1)
		}
		if s.end != nil {
			s.end()
		}
	}
}

// Context ends when no more can be written: after Close, Cancel, the peer's Cancel, or with the connection. Its cause
// says which.
func (s *Stream) Context() context.Context { return s.qs.Context() }

// LocalAddr returns this agent's QUIC address.
func (s *Stream) LocalAddr() net.Addr { return s.conn.qc.LocalAddr() }

// RemoteAddr returns the peer's QUIC address as seen from here.
func (s *Stream) RemoteAddr() net.Addr { return s.conn.qc.RemoteAddr() }

// SetDeadline bounds reads and writes to come and those that wait now; zero lifts the bound.
func (s *Stream) SetDeadline(t time.Time) error { return s.qs.SetDeadline(t) }

// SetReadDeadline is SetDeadline for reads.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.qs.SetReadDeadline(t) }

// SetWriteDeadline is SetDeadline for writes.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.qs.SetWriteDeadline(t) }
