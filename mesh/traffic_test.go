package mesh

import (
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// tally is a socket that counts what passes through it, with 28 bytes of headers a packet.
type tally struct {
	*memSock
	in, out tallied
}

type tallied struct{ bytes, packets atomic.Uint64 }

func (t *tallied) add(payload int) {
	t.bytes.Add(uint64(payload) + 28)
	t.packets.Add(1)
}

func (t *tally) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := t.memSock.ReadFrom(p)
	if err == nil {
		t.in.add(n)
	}
	return n, from, err
}

func (t *tally) WriteTo(p []byte, to net.Addr) (int, error) {
	t.out.add(len(p))
	return t.memSock.WriteTo(p, to)
}

// tallyOf makes c listen on sockets that are counted: the QUIC one, then that of gossip.
func tallyOf(w *world, c *Config) *[]*tally {
	var socks []*tally
	c.ListenPacket = func(network, addr string) (net.PacketConn, error) {
		s, err := w.net.ListenPacket(network, addr)
		if err != nil {
			return nil, err
		}
		t := &tally{memSock: s.(*memSock)}
		socks = append(socks, t)
		return t, nil
	}
	return &socks
}

func TestTrafficIsWhatPassedTheSockets(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.config("a")
		socks := tallyOf(w, &c)
		a := w.run(c)
		b := w.run(w.config("b", a.QUICAddr().String()))
		w.run(w.config("c", a.QUICAddr().String()))
		await(t, 3*time.Second, "peers", connectedTo(a, "b", "c"))
		for range 300 {
			a.SendDatagram("b", make([]byte, 100))
			a.SendDatagram("c", make([]byte, 100))
			time.Sleep(100 * time.Millisecond)
		}
		if err := b.Leave(time.Second); err != nil { // else a would dial it again, and dials that fail are not counted
			t.Error(err)
		}
		b.stop()
		time.Sleep(10 * time.Second)
		quic, gossip := a.Traffic()
		if len(a.traffic.live) != 1 {
			t.Errorf("%d connections are counted as live, want that of c alone", len(a.traffic.live))
		}
		g := (*socks)[1]
		want := Traffic{g.in.bytes.Load(), g.out.bytes.Load(), g.in.packets.Load(), g.out.packets.Load()}
		if gossip != want || gossip.PacketsIn == 0 {
			t.Errorf("gossip = %+v, the socket counted %+v", gossip, want)
		}
		q := (*socks)[0]
		for _, x := range []struct {
			name      string
			got, want uint64
		}{
			{"bytes in", quic.BytesIn, q.in.bytes.Load()},
			{"bytes out", quic.BytesOut, q.out.bytes.Load()},
			{"packets in", quic.PacketsIn, q.in.packets.Load()},
			{"packets out", quic.PacketsOut, q.out.packets.Load()},
		} {
			// Packets of a handshake share datagrams, and the last one of a connection is not counted by quic-go.
			if off := float64(x.got)/float64(x.want) - 1; math.Abs(off) > 0.02 {
				t.Errorf("QUIC %s = %d, the socket counted %d", x.name, x.got, x.want)
			}
		}
		if n := counter(t, a.reg, "kvmesh_mesh_wire_packets_total", "carrier", "gossip"); n == 0 {
			t.Error("no gossip packets in the metrics")
		}
	})
}

func TestHeadersOfAPacketDependOnItsAddress(t *testing.T) {
	for addr, want := range map[string]uint64{"10.0.0.1": 28, "2001:db8::1": 48, "::ffff:10.0.0.1": 28} {
		if got := overhead(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %d bytes, want %d", addr, got, want)
		}
	}
}
