package simscale

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/spread"
)

// resend is how long QUIC waits on a local network before it sends a lost packet again when nothing follows it; it doubles.
const resend = 30 * time.Millisecond

// maxResends bounds how often a packet is lost in a row: by then other packets have come, whose acknowledgements tell.
const maxResends = 4

// carrier is the way from one agent to those that listen.
type carrier struct {
	*model
	from *agent
}

var _ spread.Carrier = carrier{}

// Agents implements spread.Carrier.
func (c carrier) Agents() int { return c.Config.Agents }

// OpenFeed implements spread.Carrier.
func (c carrier) OpenFeed(_ context.Context, peer string) (spread.Stream, error) {
	to := c.agents[peer]
	if to == nil || to.listener == nil {
		return nil, fmt.Errorf("%s does not listen", peer)
	}
	near, far := c.newStreams(kindFeed)
	c.group.Go(func() {
		_ = to.listener.ServeFeed(c.from.name, far)
		far.Cancel(0)
	})
	return near, nil
}

// OpenPull implements spread.Carrier.
func (c carrier) OpenPull(_ context.Context, peer string) (spread.Stream, error) {
	to := c.agents[peer]
	if to == nil {
		return nil, fmt.Errorf("no agent %s", peer)
	}
	near, far := c.newStreams(kindPull)
	c.group.Go(func() { _ = to.teller.ServePull(c.from.name, far) })
	return near, nil
}

// SendDatagram implements spread.Carrier.
func (c carrier) SendDatagram(peer string, b []byte) error {
	to := c.agents[peer]
	size := spread.DatagramCost(len(b))
	c.traffic.sent(kindHeartbeat, size.Bytes, size.Packets)
	if c.lost() {
		return nil
	}
	time.AfterFunc(c.delay(), func() {
		c.traffic.came(kindHeartbeat, size)
		to.listener.Datagram(c.from.name, b)
	})
	return nil
}

func (m *model) lost() bool { return m.Loss > 0 && rand.Float64() < m.Loss }

func (m *model) delay() time.Duration {
	return m.Delay + time.Duration(float64(m.Jitter)*rand.ExpFloat64())
}

// pipe is one direction of a stream: in order, and nothing is lost for good.
type pipe struct {
	*model
	kind   string
	pieces chan piece
	last   time.Time // when the piece before arrives
	rest   []byte    // of the piece that is read
	ended  bool
}

type piece struct {
	b  []byte // nil: the end
	at time.Time
}

// inFlight is how many pieces a pipe holds before its writer waits.
const inFlight = 16

func (m *model) newPipe(kind string) *pipe {
	return &pipe{model: m, kind: kind, pieces: make(chan piece, inFlight)}
}

// send counts a piece and returns it as it will arrive.
func (p *pipe) send(b []byte) piece {
	size := spread.FeedCost(len(b))
	at := time.Now().Add(p.delay())
	for range size.Packets {
		p.traffic.sent(p.kind, size.Bytes/size.Packets, 1)
		for again := 0; again < maxResends && p.lost(); again++ {
			p.traffic.sent(p.kind, size.Bytes/size.Packets, 1)
			at = at.Add(resend << again)
		}
	}
	if at.Before(p.last) {
		at = p.last
	}
	p.last = at
	return piece{append([]byte{}, b...), at}
}

// stream is one end of a stream. It is for one reader and one writer. Deadlines mean nothing: whoever listens reads.
type stream struct {
	in, out *pipe
	over    chan struct{} // shared by both ends; closed when either has canceled
	once    *sync.Once
}

var _ spread.Stream = (*stream)(nil)

func (m *model) newStreams(kind string) (near, far *stream) {
	there, back := m.newPipe(kind), m.newPipe(kind)
	over, once := make(chan struct{}), &sync.Once{}
	return &stream{in: back, out: there, over: over, once: once}, &stream{in: there, out: back, over: over, once: once}
}

// Read implements spread.Stream.
func (s *stream) Read(p []byte) (int, error) {
	in := s.in
	for len(in.rest) == 0 {
		if in.ended {
			return 0, io.EOF
		}
		select {
		case next := <-in.pieces:
			time.Sleep(time.Until(next.at))
			if in.rest, in.ended = next.b, next.b == nil; !in.ended {
				in.traffic.came(in.kind, spread.FeedCost(len(next.b)))
			}
		case <-s.over:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}

// Write implements spread.Stream.
func (s *stream) Write(b []byte) (int, error) {
	select {
	case <-s.over:
		return 0, io.ErrClosedPipe
	default:
	}
	select {
	case s.out.pieces <- s.out.send(b):
		return len(b), nil
	case <-s.over:
		return 0, io.ErrClosedPipe
	}
}

// CloseWrite implements spread.Stream.
func (s *stream) CloseWrite() error {
	select {
	case s.out.pieces <- piece{nil, time.Now().Add(s.out.delay())}:
	case <-s.over:
	}
	return nil
}

// Close implements spread.Stream.
func (s *stream) Close() error { return s.CloseWrite() }

// Cancel implements spread.Stream.
func (s *stream) Cancel(uint64) { s.once.Do(func() { close(s.over) }) }

// SetReadDeadline implements spread.Stream.
func (*stream) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements spread.Stream.
func (*stream) SetWriteDeadline(time.Time) error { return nil }
