package mesh

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

// MaxDatagram is the most bytes of a datagram that every path carries: maxPacket, less QUIC's own.
const MaxDatagram = 1100

const (
	datagramQueue = 32 // waiting for one peer; a heartbeat a second never waits, unless the peer is nearly lost
	drainQuiet    = 2 * time.Second
	// gossipStreams bounds those that memberlist reads of one connection at a time, since it allocates up to 20 MiB for
	// each. A member needs a few: a push/pull, a ping.
	gossipStreams = 16
)

// peerConn is one connection to a peer, from its hello on.
type peerConn struct {
	qc       *quic.Conn
	name     string
	about    about
	keys     offer // gossip keys of the peer, as its hello said; without the keys
	cert     *x509.Certificate
	protocol uint8  // version that both speak
	dialed   bool   // by this agent
	number   uint64 // of the dial, by its dialer; 0 where that told none
	remote   netip.AddrPort
	made     time.Time // when its hello had succeeded
	until    time.Time // the earlier end of both ends' certificates; the same at both ends

	trust   *Identity // by whose CAs cert was believed last; review's
	renewed bool      // another is dialed already, since this one ends soon; review's

	retired   chan struct{} // closed when it is not to be chosen any more; closed under table.mu
	handling  chan struct{} // the record's; set by adopt
	streams   atomic.Int64  // open ones, of both sides, without those that last
	gossip    atomic.Int64  // open ones of memberlist, of the peer
	datagrams chan []byte   // to send
	gatherer  gatherer
	draining  atomic.Bool   // no new streams; closes when there are none
	wake      chan struct{} // capacity 1: draining became true
}

func newPeerConn(qc *quic.Conn, h hello, c claim, try attempt, now time.Time) *peerConn {
	until := try.id.Expires()
	if c.cert.NotAfter.Before(until) {
		until = c.cert.NotAfter
	}
	return &peerConn{
		qc: qc, name: h.name, about: h.about, keys: h.keys, cert: c.cert, dialed: try.dialed(),
		number: cmp.Or(try.number, h.dial), remote: addrPort(qc.RemoteAddr()),
		protocol: agreedProtocol(qc.ConnectionState().TLS.NegotiatedProtocol), made: now, until: until, trust: try.id, retired: make(chan struct{}),
		datagrams: make(chan []byte, datagramQueue), wake: make(chan struct{}, 1),
	}
}

func (c *peerConn) open() bool { return c.qc.Context().Err() == nil }

// isRetired is for those who hold table.mu.
func (c *peerConn) isRetired() bool {
	select {
	case <-c.retired:
		return true
	default:
		return false
	}
}

func (c *peerConn) rtt() time.Duration { return c.qc.ConnectionStats().SmoothedRTT }

func (c *peerConn) drain(on bool) {
	if c.draining.Swap(on) || !on {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *peerConn) close(code quic.ApplicationErrorCode, why string) {
	_ = c.qc.CloseWithError(code, clip(why))
}

// closeEach closes connections side by side: each waits for its own loop to send the packet.
func closeEach(pcs []*peerConn, code quic.ApplicationErrorCode, why string) {
	var wg sync.WaitGroup
	for _, c := range pcs {
		wg.Go(func() { c.close(code, why) })
	}
	wg.Wait()
}

// openStream opens a stream; the peer learns of it with the first bytes. It waits while the peer allows no more.
func (m *Mesh) openStream(ctx context.Context, pc *peerConn, kind Kind) (*Stream, error) {
	qs, err := pc.qc.OpenStreamSync(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %v stream to %s: %w", kind, pc.name, err)
	}
	return newStream(qs, pc, kind, m.metrics), nil
}

// serve runs a connection until it is closed, and says then what became of it.
func (m *Mesh) serve(pc *peerConn) {
	m.traffic.begin(pc)
	defer m.traffic.end(pc)
	m.wg.Go(func() { m.receiveDatagrams(pc) })
	m.wg.Go(func() { m.sendDatagrams(pc) })
	m.acceptStreams(pc)
	<-pc.qc.Context().Done()
	why, left := m.explainClose(pc)
	m.table.remove(pc, why, left)
	m.notify(pc.name)
}

// explainClose returns in words why pc was closed, and whether the peer left. A refusal by the peer is kept.
func (m *Mesh) explainClose(pc *peerConn) (why string, left bool) {
	err := context.Cause(pc.qc.Context())
	if app, ok := errors.AsType[*quic.ApplicationError](err); ok {
		if app.Remote && app.ErrorCode >= codeRefused {
			m.refusals.add(pc.qc.RemoteAddr(), pc.name, remoteRefusal(app))
		}
		return clip(app.ErrorMessage), app.Remote && app.ErrorCode == codeLeaving
	}
	if _, ok := errors.AsType[*quic.IdleTimeoutError](err); ok {
		return fmt.Sprintf("silent for %v", m.cfg.Timings.IdleTimeout), false
	}
	if _, ok := errors.AsType[*quic.StatelessResetError](err); ok {
		return "restarted: it does not know the connection", false
	}
	return clip(fmt.Sprint("connection lost: ", err)), false
}

func remoteRefusal(app *quic.ApplicationError) *refusedError {
	return &refusedError{reason: reason(min(app.ErrorCode-codeRefused, 255)), text: clip(app.ErrorMessage), byPeer: true}
}

func (m *Mesh) acceptStreams(pc *peerConn) {
	for {
		qs, err := pc.qc.AcceptStream(pc.qc.Context())
		if err != nil {
			return // the connection is closed
		}
		m.wg.Go(func() { m.serveStream(pc, qs) })
	}
}

// serveStream reads the kind and lets its owner serve the stream. The stream is finished here in any case: one that is
// not would keep its place in the peer's limit for as long as the connection lives.
func (m *Mesh) serveStream(pc *peerConn, qs *quic.Stream) {
	var kind [1]byte
	if _, err := io.ReadFull(qs, kind[:]); err != nil {
		qs.CancelRead(codeDone)
		qs.CancelWrite(codeDone)
		return
	}
	s := newStream(qs, pc, Kind(kind[0]), m.metrics)
	s.sent.Store(true)
	switch {
	case s.kind == KindGossip:
		m.serveGossip(s)
		return
	case s.kind == KindControl:
		m.serveControl(s)
	case m.cfg.Streams != nil:
		m.cfg.Streams.ServeStream(pc.qc.Context(), pc.name, s.kind, s)
	default:
		s.Cancel(codeUnknownKind)
	}
	if !s.over.Load() {
		s.Close()
	}
}

// serveGossip gives memberlist a stream to read and to close, unless it has too many of that peer.
func (m *Mesh) serveGossip(s *Stream) {
	open := &s.conn.gossip
	if open.Add(1) > gossipStreams {
		open.Add(-1)
		m.metrics.drop("gossip_streams")
		s.Cancel(codeTooMany)
		return
	}
	s.end = func() { open.Add(-1) }
	m.transport.serve(s)
}

// serveControl serves what the first byte asks for. A ping is answered with that byte.
func (m *Mesh) serveControl(s *Stream) {
	var b [1]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return
	}
	switch b[0] {
	case controlPing:
		_, _ = s.Write(b[:]) // a peer that went away needs no answer
	case controlKeys:
		m.serveKeys(s)
	default:
		s.Cancel(codeUnknownKind)
	}
}

// ping reports whether the agent at the other end answers in time, and whether it could be asked at all: a peer may be
// short of streams.
func (m *Mesh) ping(ctx context.Context, pc *peerConn) (answers, asked bool) {
	s, err := m.openStream(ctx, pc, KindControl)
	if err != nil {
		return false, !pc.open()
	}
	defer s.Close()
	deadline, _ := ctx.Deadline()
	_ = s.SetDeadline(deadline)
	b := [1]byte{controlPing}
	if _, err := s.Write(b[:]); err != nil {
		return false, true
	}
	_, err = io.ReadFull(s, b[:])
	return err == nil, true
}

// closeDrained closes a connection that has been draining without a stream for a while: streams that the peer opened
// before it knew are not cut off. It returns early when the connection is wanted again.
func (c *peerConn) closeDrained() {
	var quiet time.Duration
	tick := time.NewTicker(drainQuiet / 4)
	defer tick.Stop()
	for quiet < drainQuiet {
		select {
		case <-c.qc.Context().Done():
			return
		case <-tick.C:
		}
		if !c.draining.Load() {
			return
		}
		if quiet += drainQuiet / 4; c.streams.Load() > 0 {
			quiet = 0
		}
	}
	c.close(codeSecond, "another connection is kept")
}

func (m *Mesh) receiveDatagrams(pc *peerConn) {
	in, _ := m.metrics.bytes("datagram")
	for {
		b, err := pc.qc.ReceiveDatagram(pc.qc.Context())
		if err != nil {
			return // the connection is closed
		}
		in.Add(float64(len(b)))
		if m.cfg.Datagrams == nil {
			m.metrics.drop("no_handler")
			continue
		}
		m.handleDatagram(pc, b)
	}
}

// handleDatagram waits for its turn: a pair may have two connections for a while.
func (m *Mesh) handleDatagram(pc *peerConn, b []byte) {
	pc.handling <- struct{}{}
	defer func() { <-pc.handling }()
	m.cfg.Datagrams.Datagram(pc.name, b)
}

// sendDatagrams stands between callers and quic-go, whose SendDatagram waits when the path is full. It also begins the
// end of a connection that drains, which saves each connection a goroutine.
func (m *Mesh) sendDatagrams(pc *peerConn) {
	_, out := m.metrics.bytes("datagram")
	for {
		select {
		case b := <-pc.datagrams:
			if err := pc.qc.SendDatagram(b); err != nil {
				m.metrics.drop("datagram_send")
				continue
			}
			out.Add(float64(len(b)))
		case <-pc.wake:
			m.wg.Go(pc.closeDrained)
		case <-pc.qc.Context().Done():
			return
		}
	}
}

func (m *Mesh) queueDatagram(pc *peerConn, b []byte) error {
	select {
	case pc.datagrams <- b:
		return nil
	default:
		m.metrics.drop("datagram_queue")
		return fmt.Errorf("send datagram to %s: its queue is full", pc.name)
	}
}

// SendDatagram sends at most MaxDatagram bytes over the connection to peer, if there is one. It never waits; the
// datagram may be lost. It keeps b, which must not change any more.
func (m *Mesh) SendDatagram(peer string, b []byte) error {
	if len(b) > MaxDatagram {
		return fmt.Errorf("send datagram of %d bytes: %w", len(b), ErrTooLarge)
	}
	pc := m.table.current(peer)
	if pc == nil {
		return fmt.Errorf("send datagram to %s: %w", peer, ErrNotConnected)
	}
	return m.queueDatagram(pc, b)
}
