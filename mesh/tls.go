package mesh

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"

	"github.com/quic-go/quic-go"
)

// tlsConfigs are the two halves of mutual TLS 1.3. TLS proves that the peer has the key of the certificate that it
// shows; whether that certificate is believed is decided by identify right after the handshake, before a byte of the
// peer is read. A TLS alert carries no text, so only this way does a refused peer learn the reason. There are no session
// tickets: a resumed session would skip the certificate.
type tlsConfigs struct {
	speaks  protocols
	foreign func(addr net.Addr, offered []string) // is told of a dialer that TLS will refuse for its protocols
}

func (c tlsConfigs) base() *tls.Config {
	return &tls.Config{NextProtos: c.speaks.alpn(), MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}
}

// server takes the certificate that was pinned when the connection began.
func (c tlsConfigs) server() *tls.Config {
	conf := c.base()
	conf.ClientAuth = tls.RequireAnyClientCert
	conf.GetConfigForClient = func(hi *tls.ClientHelloInfo) (*tls.Config, error) {
		pin := pinnedOf(hi.Context())
		pin.offered = hi.SupportedProtos
		if !slices.ContainsFunc(pin.offered, func(p string) bool { return slices.Contains(conf.NextProtos, p) }) {
			c.foreign(hi.Conn.RemoteAddr(), pin.offered)
		}
		own := conf.Clone()
		own.Certificates = []tls.Certificate{pin.id.Certificate}
		return own, nil
	}
	return conf
}

// client returns the config of one dial.
func (c tlsConfigs) client(id *Identity) *tls.Config {
	conf := c.base()
	conf.Certificates = []tls.Certificate{id.Certificate}
	conf.InsecureSkipVerify = true // identify verifies, against our own CAs and the name that was meant
	return conf
}

// resetKey derives the key of stateless resets from the agent's own, so that a restarted agent can say "I do not know
// this connection" in a way that its peers believe, and they need not wait for the idle timeout. After a renewal that
// changed the key, a restart is noticed by its hello or by silence, as QUIC has one reset key for a socket's life.
func resetKey(id Identity) *quic.StatelessResetKey {
	var key quic.StatelessResetKey
	secret, err := x509.MarshalPKCS8PrivateKey(id.Certificate.PrivateKey)
	if err == nil {
		var b []byte
		b, err = hkdf.Key(sha256.New, secret, nil, "kvmesh stateless reset", len(key))
		copy(key[:], b)
	}
	if err != nil { // a key that cannot be read out: resets work within this process's life only
		rand.Read(key[:])
	}
	return &key
}

// Flow control. A stream that is not read may hold its window of the peer's bytes here, and a client that reads slowly leaves
// its stream unread: so the first window is small, some hundred events of a token each. Events are sent one by one, and
// quic-go keeps each in a packet's buffer until it is read: a window full of small ones takes six times its size. Only what
// is read faster than four round trips a window, a request's body or another long transfer, gets more, doubling each round
// trip: the largest carries 1 GB/s over 1 ms and 20 MB/s over 50.
//
// The window of a connection never binds: it is that of all streams that can be open. Were it smaller, the streams of slow
// clients would fill it and hold up all others between the two agents.
const (
	maxStreams       = 4096 // of one side: an ingress may hold thousands of slow streams to one owner
	streamWindow     = 32 << 10
	maxStreamWindow  = 1 << 20
	connectionWindow = 2 * maxStreams * maxStreamWindow
)

// quicConfig returns the one QUIC config, for both directions.
func quicConfig(t Timings) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           t.HandshakeTimeout,
		MaxIdleTimeout:                 t.IdleTimeout,
		KeepAlivePeriod:                t.KeepAlive,
		MaxIncomingStreams:             maxStreams,
		MaxIncomingUniStreams:          -1, // unused
		InitialStreamReceiveWindow:     streamWindow,
		MaxStreamReceiveWindow:         maxStreamWindow,
		InitialConnectionReceiveWindow: connectionWindow,
		MaxConnectionReceiveWindow:     connectionWindow,
		EnableDatagrams:                true,
		// The least that QUIC allows; larger packets are used once one has been found to pass. The default of quic-go is 1,280
		// without headers, and less only where the first write of that size fails: a narrow hop farther on would drop every
		// handshake.
		InitialPacketSize: maxPacket,
	}
}
