package mesh

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/quic-go/quic-go"
)

var (
	// errSelf is returned by a dial that reached this agent itself.
	errSelf = errors.New("the address is this agent's own")
	// errSecond is returned by greet for a peer that is connected already.
	errSecond = errors.New("another connection is kept")
)

// attempt is how this end came to a handshake.
type attempt struct {
	id     *Identity // that this end shows and believes in it
	number uint64    // of this agent's dials, from 1; 0 at the acceptor
	asking bool      // only to learn whether a known agent answers
}

func (a attempt) dialed() bool { return a.number > 0 }

// acceptAll takes connections as fast as they come: quic-go refuses them when 32 wait.
func (m *Mesh) acceptAll(ln *quic.Listener) {
	for {
		qc, err := ln.Accept(m.ctx)
		if err != nil {
			m.cancel(fmt.Errorf("accept QUIC connections: %w", err)) // nothing, when the mesh is closed anyway
			return
		}
		m.wg.Go(func() {
			if pc := m.receive(qc); pc != nil {
				m.serve(pc)
			}
		})
	}
}

// receive does the acceptor's half of the handshake: certificate, hello of the dialer, then the own hello as the answer.
// The connection is in the table before that, because the dialer may use it at once. It returns nil when the dialer was
// refused or went away.
func (m *Mesh) receive(qc *quic.Conn) *peerConn {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Timings.HandshakeTimeout)
	defer cancel()
	pc, err := m.receiveHello(ctx, qc)
	if err != nil {
		_ = m.turnAway(qc, pc, err) // it has kept a refusal; nobody waits for this connection
		return nil
	}
	return pc
}

// receiveHello leaves the stream open when it fails: the close of the connection ends it, and brings the reason, which the
// dialer would miss behind an end of the stream.
func (m *Mesh) receiveHello(ctx context.Context, qc *quic.Conn) (*peerConn, error) {
	c, err := m.identify(qc, pinnedOf(qc.Context()).id)
	if err != nil {
		return nil, err
	}
	partial := &peerConn{name: c.name}
	if agreedProtocol(qc.ConnectionState().TLS.NegotiatedProtocol) == 0 {
		theirs := offerWords(pinnedOf(qc.Context()).offered)
		return partial, refusef(reasonVersion, "it speaks %s, this agent %v", theirs, m.tls.speaks)
	}
	s, err := qc.AcceptStream(ctx)
	if err != nil {
		return partial, err
	}
	deadline, _ := ctx.Deadline()
	_ = s.SetDeadline(deadline)
	var kind [1]byte
	if _, err := io.ReadFull(s, kind[:]); err != nil {
		return partial, err
	}
	if Kind(kind[0]) != KindControl {
		return partial, refusef(reasonHello, "the first stream is %v, not a hello", Kind(kind[0]))
	}
	try := attempt{id: pinnedOf(qc.Context()).id}
	pc, err := m.meet(ctx, qc, s, c, try)
	if err != nil {
		return partial, err
	}
	m.notify(pc.name)
	if _, err := s.Write(appendHello(nil, m.hello(try))); err != nil {
		// The connection is lost: serve finds that out and says so.
		m.log.Debug("cannot answer hello", "peer", pc.name, "err", err)
	}
	s.CancelRead(codeDone)
	s.Close()
	return pc, nil
}

// greet does the dialer's half on a connection whose TLS handshake is done; want is the name that was meant, "" for any.
// A seed that turns out to be connected already is not greeted again.
func (m *Mesh) greet(ctx context.Context, qc *quic.Conn, want string, try attempt) (*peerConn, error) {
	c, err := m.identify(qc, try.id)
	if err != nil {
		return nil, err
	}
	if agreedProtocol(qc.ConnectionState().TLS.NegotiatedProtocol) == 0 {
		return nil, m.awaitRefusal(ctx, qc)
	}
	if want != "" && c.name != want {
		return nil, refusef(reasonName, "the certificate is for %q, but %q was dialed", c.name, want)
	}
	if old := m.table.current(c.name); old != nil && want == "" {
		return old, errSecond
	}
	s, err := qc.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	defer s.CancelRead(codeDone)
	deadline, _ := ctx.Deadline()
	_ = s.SetDeadline(deadline)
	if _, err := s.Write(appendHello([]byte{byte(KindControl)}, m.hello(try))); err != nil {
		return nil, err
	}
	pc, err := m.meet(ctx, qc, s, c, try)
	if err != nil {
		return nil, err
	}
	m.notify(pc.name)
	return pc, nil
}

// awaitRefusal returns what the acceptor says of a connection on whose version TLS could not agree: it has seen what both
// speak.
func (m *Mesh) awaitRefusal(ctx context.Context, qc *quic.Conn) error {
	select {
	case <-qc.Context().Done():
		return context.Cause(qc.Context())
	case <-ctx.Done():
		return refusef(reasonVersion, "it does not speak %v", m.tls.speaks)
	}
}

func (m *Mesh) hello(try attempt) hello {
	return hello{about: m.about(), name: m.cfg.Name, dial: try.number, keys: m.keys.current().offer()}
}

// meet reads the other side's hello, decides whether it may be a peer, and adopts the connection.
func (m *Mesh) meet(ctx context.Context, qc *quic.Conn, s *quic.Stream, c claim, try attempt) (*peerConn, error) {
	h, err := readHello(s)
	if errors.Is(err, net.ErrClosed) { // the connection, perhaps with a refusal
		return nil, err
	}
	if err != nil {
		return nil, refusef(reasonHello, "%v", err)
	}
	if h.name != c.name {
		return nil, refusef(reasonName, "the hello is from %q, the certificate for %q", h.name, c.name)
	}
	if err := m.admit(ctx, h, try.asking); err != nil {
		return nil, err
	}
	pc := newPeerConn(qc, h, c, try, m.cfg.Now())
	stale, ok := m.table.adopt(pc)
	if !ok {
		return nil, ErrClosed
	}
	closeEach(stale, codeReplaced, "a new instance of the peer came")
	return pc, nil
}

// identify believes the certificate of a connection by the CAs of id, or says why not.
func (m *Mesh) identify(qc *quic.Conn, id *Identity) (claim, error) {
	var chain [][]byte
	for _, cert := range qc.ConnectionState().TLS.PeerCertificates {
		chain = append(chain, cert.Raw)
	}
	c, err := verify(id.CAs, chain, m.cfg.Now())
	if err != nil {
		why := reasonCertificate
		if ce, ok := errors.AsType[*certError](err); ok {
			why = ce.reason
		}
		if mesh := claimedMesh(qc); mesh != "" && mesh != m.cfg.MeshID {
			return c, refusef(reasonMesh, "it is of mesh %q, this is %q", mesh, m.cfg.MeshID)
		}
		return c, refusef(why, "%v", err)
	}
	if c.mesh != m.cfg.MeshID {
		return c, refusef(reasonMesh, "it is of mesh %q, this is %q", c.mesh, m.cfg.MeshID)
	}
	if m.creds.isRevoked(serialOf(c.cert)) {
		m.table.distrust(c.cert, c.name)
		return c, refuseRevoked(c.cert)
	}
	return c, nil
}

// claimedMesh returns the mesh that a certificate names, believed or not: it makes the better sentence.
func claimedMesh(qc *quic.Conn) string {
	for _, cert := range qc.ConnectionState().TLS.PeerCertificates {
		if mesh, _, err := parseURIs(cert.URIs); err == nil {
			return mesh
		}
	}
	return ""
}

// admit decides whether the agent of h may be the peer of its name. Two live agents with one name would take each
// other's place for ever, so the older stays: a newcomer from the same address is its next life, one from elsewhere is
// believed only when the older does not answer. Where the older could not be asked, the newcomer has to come again; who
// is only being asked is not worth a question itself.
func (m *Mesh) admit(ctx context.Context, h hello, asking bool) error {
	if h.name == m.cfg.Name {
		if h.about.instance == m.self.instance {
			return errSelf
		}
		return refusef(reasonNameTaken, "the name %q is this agent's own, at %v", h.name, m.self.quic)
	}
	old, known := m.table.about(h.name)
	if !known || old.instance == h.about.instance || old.quic == h.about.quic {
		return nil
	}
	answers, asked := false, false
	if !asking {
		answers, asked = m.answers(ctx, h.name, old)
	}
	switch {
	case answers:
		return refusef(reasonNameTaken, "the name %q is taken by an agent at %v, which answers", h.name, old.quic)
	case !asked:
		return refusef(reasonNameTaken, "the name %q is taken by an agent at %v, which cannot be asked now", h.name, old.quic)
	}
	return nil
}

// answers reports whether the agent old of that name answers now, over its connection or, for a live member, over a new
// one. That it does not answer is known only if asked is true.
func (m *Mesh) answers(ctx context.Context, name string, old about) (answers, asked bool) {
	within, cancel := context.WithTimeout(ctx, m.cfg.Timings.PingTimeout)
	defer cancel()
	pc := m.table.current(name)
	if pc == nil && m.table.wanted(name) {
		if pc, asked = m.ask(within, old.quic, name); !asked {
			return false, false
		}
	}
	if pc != nil && pc.about.instance == old.instance {
		answers, asked = m.ping(within, pc)
		return answers, asked && ctx.Err() == nil
	}
	return false, ctx.Err() == nil // it had PingTimeout, not what was left of the handshake's
}

// turnAway closes a connection whose handshake failed with err. A refusal of ours is kept and told to the other side;
// one of theirs is kept.
func (m *Mesh) turnAway(qc *quic.Conn, partial *peerConn, err error) error {
	name := ""
	if partial != nil {
		name = partial.name
	}
	if errors.Is(err, errSelf) {
		_ = qc.CloseWithError(codeSelf, "this is you")
		return errSelf
	}
	if ref, ok := errors.AsType[*refusedError](err); ok {
		_ = qc.CloseWithError(codeRefused+quic.ApplicationErrorCode(ref.reason), clip(ref.text))
		m.refusals.add(qc.RemoteAddr(), name, ref)
		return ref
	}
	if app, ok := errors.AsType[*quic.ApplicationError](err); ok && app.Remote {
		switch {
		case app.ErrorCode == codeSelf:
			return errSelf
		case app.ErrorCode >= codeRefused:
			ref := remoteRefusal(app)
			m.refusals.add(qc.RemoteAddr(), name, ref)
			return ref
		}
	}
	_ = qc.CloseWithError(codeClosed, "handshake failed")
	return err
}

// certificateName returns the name in the first certificate of a connection, believed or not.
func certificateName(certs []*x509.Certificate) string {
	if len(certs) == 0 {
		return ""
	}
	_, name, _ := parseURIs(certs[0].URIs)
	return name
}

// noProtocol is the TLS alert no_application_protocol (RFC 7301) as a QUIC error code (RFC 9001, 4.8).
const noProtocol quic.TransportErrorCode = 0x100 + 120

// explainDial makes a failed dial a sentence for an operator.
func explainDial(err error, addr netip.AddrPort, speaks protocols) error {
	if te, ok := errors.AsType[*quic.TransportError](err); ok && te.ErrorCode == noProtocol {
		return refusef(reasonVersion, "it does not speak %v: another major version", speaks)
	}
	timeout := errors.Is(err, context.DeadlineExceeded)
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		timeout = true
	}
	if timeout {
		return fmt.Errorf("no answer from %v/udp", addr)
	}
	return errors.New(strings.TrimSpace(clip(err.Error())))
}
