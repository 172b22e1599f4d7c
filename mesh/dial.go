package mesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"
)

// Open opens a stream of that kind to peer, over its connection, or a new one when there is none. The caller must end
// the stream with Close or Cancel. The peer learns of it with the first Read or Write.
func (m *Mesh) Open(ctx context.Context, peer string, kind Kind) (*Stream, error) {
	pc, err := m.connection(ctx, peer)
	if err != nil {
		return nil, fmt.Errorf("open %v stream to %s: %w", kind, peer, err)
	}
	return m.openStream(ctx, pc, kind)
}

// connection returns the connection to name. When there is none it dials, once for all who ask meanwhile.
func (m *Mesh) connection(ctx context.Context, name string) (*peerConn, error) {
	if pc := m.table.current(name); pc != nil {
		return pc, nil
	}
	if !m.running.Load() || m.ctx.Err() != nil || m.leaving.Load() {
		return nil, ErrClosed
	}
	call, err := m.sharedDial(name)
	if err != nil {
		return nil, err
	}
	select {
	case <-call.done:
		return call.pc, call.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, context.Cause(ctx))
	}
}

// sharedDial returns the dial to name that is under way, or begins one. It outlives the caller's patience.
func (m *Mesh) sharedDial(name string) (*dialCall, error) {
	t := m.table
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[name]
	if r == nil || !r.about.quic.IsValid() {
		return nil, ErrUnknownPeer
	}
	if r.dial != nil {
		return r.dial, nil
	}
	call, addr := &dialCall{done: make(chan struct{})}, r.about.quic
	if !m.spawn(func() {
		call.pc, call.err = m.dial(m.ctx, addr, name)
		t.dialed(name, call)
		close(call.done)
	}) {
		return nil, ErrClosed
	}
	r.dial = call
	return call, nil
}

// isFailing reports whether the last dial to name failed, and no connection came since.
func (t *table) isFailing(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.records[name]
	return r != nil && !r.failing.IsZero()
}

// dialed keeps how a dial ended.
func (t *table) dialed(name string, call *dialCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.recordLocked(name)
	r.dial = nil
	if r.dialErr = call.err; call.err == nil {
		r.failing = time.Time{}
	} else if r.failing.IsZero() {
		r.failing = time.Now()
	}
}

// dial connects to addr and serves the connection; want is the name that is meant, "" for any of the mesh, in which case
// the connection may be an older one to that peer.
func (m *Mesh) dial(ctx context.Context, addr netip.AddrPort, want string) (*peerConn, error) {
	slots := m.dialSlots
	if m.table.isFailing(want) {
		slots = m.retrySlots
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return nil, ErrClosed
	}
	return m.connect(ctx, addr, want, m.attempt(false))
}

// ask dials a known agent of that name within the handshake of another, to learn whether it is there; pc is nil where it
// does not answer. It waits for no slot, since whoever waits for its answer may hold one; asked is false when none is
// free.
func (m *Mesh) ask(ctx context.Context, addr netip.AddrPort, name string) (pc *peerConn, asked bool) {
	select {
	case m.askSlots <- struct{}{}:
		defer func() { <-m.askSlots }()
	default:
		return nil, false
	}
	if m.leaving.Load() {
		return nil, false
	}
	pc, err := m.connect(ctx, addr, name, m.attempt(true))
	return pc, !errors.Is(err, ErrClosed)
}

func (m *Mesh) attempt(asking bool) attempt {
	return attempt{id: m.creds.identity(), number: m.dials.Add(1), asking: asking}
}

func (m *Mesh) connect(ctx context.Context, addr netip.AddrPort, want string, try attempt) (*peerConn, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timings.HandshakeTimeout)
	defer cancel()
	to := net.UDPAddrFromAddrPort(addr)
	qc, err := m.quic.Dial(ctx, to, m.tls.client(try.id), m.quicConfig)
	if err != nil {
		err = explainDial(err, addr, m.tls.speaks)
		if ref, ok := errors.AsType[*refusedError](err); ok {
			ref.byPeer = true
			m.refusals.add(to, want, ref)
		}
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
	}
	pc, err := m.greet(ctx, qc, want, try)
	if errors.Is(err, errSecond) {
		_ = qc.CloseWithError(codeSecond, errSecond.Error())
		return pc, nil
	}
	if err != nil {
		partial := &peerConn{name: certificateName(qc.ConnectionState().TLS.PeerCertificates)}
		// The acceptor's handshake ends half a round trip after ours; a close before that would reach it without its text.
		sleep(m.ctx, 2*qc.ConnectionStats().SmoothedRTT)
		err = m.turnAway(qc, partial, err)
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
	}
	if !m.spawn(func() { m.serve(pc) }) {
		pc.close(codeClosed, "agent stopped")
		return nil, ErrClosed
	}
	if mine := m.keys.current().offer(); newer(mine, pc.keys) || newer(pc.keys, mine) {
		m.exchangeKeys(ctx, pc) // first of all: without common keys the two cannot be members
	}
	return pc, nil
}

// dialSpread for each known peer is the time over which agents spread their dials to one that all hear of at once: its
// handshakes take most of that.
const dialSpread = 2 * time.Millisecond

// patience returns how long to wait before a dial to name. The greater name gives the smaller a head start, so that most
// pairs dial once.
func (m *Mesh) patience(name string) time.Duration {
	spread := time.Duration(m.table.size()) * dialSpread
	d := rand.N(spread + 1)
	if m.cfg.Name > name {
		d += spread + m.cfg.Timings.HeadStart
	}
	return d
}

// keep holds a connection to a member until ctx ends: it dials, waits for the connection's end, and dials again.
func (m *Mesh) keep(ctx context.Context, name string) {
	wait := backoff{min: m.cfg.Timings.RetryMin, max: m.cfg.Timings.RetryMax}
	for ctx.Err() == nil {
		if m.table.current(name) == nil && !sleep(ctx, m.patience(name)) {
			return
		}
		pc := m.table.current(name)
		if pc == nil && m.table.wanted(name) && !m.leaving.Load() {
			pc, _ = m.connection(ctx, name) // the error is kept for Health
		}
		if pc != nil {
			wait.reset()
			select {
			case <-pc.qc.Context().Done():
			case <-pc.retired:
			case <-ctx.Done():
				return
			}
		}
		if !sleep(ctx, wait.next()) {
			return
		}
	}
}

// backoff is a growing wait with jitter.
type backoff struct {
	min, max time.Duration
	n        int // waits since the reset
}

// next returns the next wait: half to all of min doubled n times, at most max.
func (b *backoff) next() time.Duration {
	d := b.max
	if b.n < 30 { // beyond, the shift would overflow
		d = min(b.min<<b.n, b.max)
	}
	b.n++
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.n = 0 }

// sleep reports whether d went by before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	if u, ok := a.(*net.UDPAddr); ok {
		ap := u.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return ap
}
