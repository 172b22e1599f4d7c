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

// quicConfig returns the one QUIC config, for both directions. Streams and windows are sized for requests: an ingress
// may hold thousands of slow streams to one owner, and a prompt of some MiB should not wait for a window update.
func quicConfig(t Timings) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           t.HandshakeTimeout,
		MaxIdleTimeout:                 t.IdleTimeout,
		KeepAlivePeriod:                t.KeepAlive,
		MaxIncomingStreams:             4096,
		MaxIncomingUniStreams:          -1, // unused
		InitialStreamReceiveWindow:     1 << 20,
		MaxStreamReceiveWindow:         8 << 20,
		InitialConnectionReceiveWindow: 8 << 20,
		MaxConnectionReceiveWindow:     64 << 20,
		EnableDatagrams:                true,
		// The least that QUIC allows; larger packets are used once one has been found to pass. The default of quic-go is 1,280
		// without headers, and less only where the first write of that size fails: a narrow hop farther on would drop every
		// handshake.
		InitialPacketSize: maxPacket,
	}
}
