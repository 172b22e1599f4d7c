package mesh

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxPacket is the most bytes of a gossip packet, and of a QUIC packet until the path is known to carry more: with 48 B
	// of IPv6 and UDP it passes the 1,280 B that every IPv6 path carries.
	maxPacket = 1200
	// readPacket is the size of the read buffer. Whatever is larger than a packet of ours is cut and fails to decrypt.
	readPacket = 2048
	// gossipBuffer is asked for as the socket's receive buffer: a second of packets while this process is held up.
	gossipBuffer = 2 << 20
)

// transport carries memberlist: packets over a UDP socket of its own, so that pings do not wait behind bulk; streams
// over the QUIC connection of the peer.
type transport struct {
	m    *Mesh
	sock net.PacketConn
	addr netip.AddrPort // advertised

	packets chan *memberlist.Packet
	streams chan net.Conn
	once    sync.Once
	done    chan struct{}
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(m *Mesh, sock net.PacketConn, addr netip.AddrPort) *transport {
	if s, ok := sock.(interface{ SetReadBuffer(int) error }); ok {
		_ = s.SetReadBuffer(gossipBuffer) // as much as the system allows
	}
	return &transport{
		m: m, sock: sock, addr: addr, done: make(chan struct{}),
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
	}
}

// FinalAdvertiseAddr returns the gossip address; the arguments are memberlist's own config, which is unused.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
}

// WriteTo sends a packet.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress sends a packet and returns when, from which memberlist computes round trips.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	to, err := netip.ParseAddrPort(a.Addr)
	if err != nil {
		return time.Time{}, fmt.Errorf("send gossip packet: %w", err)
	}
	if _, err := t.sock.WriteTo(b, net.UDPAddrFromAddrPort(to)); err != nil {
		return time.Time{}, fmt.Errorf("send gossip packet: %w", err)
	}
	_, out := t.m.metrics.bytes("packet")
	out.Add(float64(len(b)))
	t.m.traffic.gossipOut(to, len(b))
	return time.Now(), nil
}

// readPackets hands packets to memberlist until the socket is closed. It reads into one buffer and copies what came:
// memberlist keeps packets, which are far smaller than what a read must be prepared for.
func (t *transport) readPackets() {
	buf := make([]byte, readPacket)
	in, _ := t.m.metrics.bytes("packet")
	for {
		n, from, err := t.sock.ReadFrom(buf)
		if err != nil {
			select {
			case <-t.done:
				return
			default:
			}
			if !sleep(t.m.ctx, 10*time.Millisecond) { // a fault that stays must not spin
				return
			}
			continue
		}
		in.Add(float64(n))
		t.m.traffic.gossipIn(from, n)
		p := &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}
		select {
		case t.packets <- p:
		case <-t.done:
			return
		}
	}
}

// PacketCh returns the packets that came.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh returns the streams that peers opened.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// serve hands a peer's stream to memberlist, which closes it.
func (t *transport) serve(s *Stream) {
	select {
	case t.streams <- s:
	case <-t.done:
		s.Cancel(codeDone)
	}
}

// DialTimeout fails: a stream goes to a named peer, and memberlist is told to require names.
func (t *transport) DialTimeout(addr string, _ time.Duration) (net.Conn, error) {
	return nil, fmt.Errorf("dial %s without a name: %w", addr, ErrUnknownPeer)
}

// DialAddressTimeout opens a stream to the named peer, over the connection that there is, or a new one to the QUIC
// address that the peer told. The gossip address does not matter.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.m.ctx, timeout)
	defer cancel()
	s, err := t.m.Open(ctx, a.Name, KindGossip)
	if err != nil {
		return nil, err
	}
	_ = s.SetDeadline(time.Now().Add(timeout)) // memberlist sets none for all it does
	return s, nil
}

// Shutdown closes the socket. The QUIC connections are the mesh's to close.
func (t *transport) Shutdown() error {
	t.once.Do(func() {
		close(t.done)
		t.sock.Close()
	})
	return nil
}
