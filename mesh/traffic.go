package mesh

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Traffic is what went over the wire so far, at IP level: with the headers of IP and UDP, as an operator's counters of a
// link have it less its own framing.
type Traffic struct {
	BytesIn, BytesOut, PacketsIn, PacketsOut uint64
}

// The bytes of an IP header without options, and of UDP's.
const (
	overhead4 = 20 + 8
	overhead6 = 40 + 8
)

// overhead returns what a packet to or from addr has beside its payload.
func overhead(addr netip.Addr) uint64 {
	if addr.Unmap().Is4() {
		return overhead4
	}
	return overhead6
}

func (t *Traffic) add(u Traffic) {
	t.BytesIn += u.BytesIn
	t.BytesOut += u.BytesOut
	t.PacketsIn += u.PacketsIn
	t.PacketsOut += u.PacketsOut
}

// traffic counts what an agent sends and receives. Its zero value is ready for use, and safe for concurrent use.
type traffic struct {
	gossip struct{ bytesIn, bytesOut, packetsIn, packetsOut atomic.Uint64 }

	mu    sync.Mutex
	live  map[*peerConn]bool
	ended Traffic // of connections that are live no more
}

func (t *traffic) gossipIn(from net.Addr, payload int) {
	t.gossip.bytesIn.Add(uint64(payload) + overhead(addrPort(from).Addr()))
	t.gossip.packetsIn.Add(1)
}

func (t *traffic) gossipOut(to netip.AddrPort, payload int) {
	t.gossip.bytesOut.Add(uint64(payload) + overhead(to.Addr()))
	t.gossip.packetsOut.Add(1)
}

// begin counts a connection from its first packet on, until end.
func (t *traffic) begin(pc *peerConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[*peerConn]bool{}
	}
	t.live[pc] = true
}

func (t *traffic) end(pc *peerConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, pc)
	t.ended.add(pc.traffic())
}

// traffic reads quic-go's counters, which are of UDP payload.
func (c *peerConn) traffic() Traffic {
	s, more := c.qc.ConnectionStats(), overhead(c.remote.Addr())
	return Traffic{
		BytesIn: s.BytesReceived + more*s.PacketsReceived, BytesOut: s.BytesSent + more*s.PacketsSent,
		PacketsIn: s.PacketsReceived, PacketsOut: s.PacketsSent,
	}
}

// Traffic returns what went over the two sockets of this agent: by QUIC, and by gossip packets. Neither ever shrinks. QUIC
// counts connections that became a peer's, from their first packet on: quic-go does not tell what a dial that failed took.
func (m *Mesh) Traffic() (quic, gossip Traffic) {
	t := &m.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	quic = t.ended
	for pc := range t.live {
		quic.add(pc.traffic())
	}
	g := &t.gossip
	return quic, Traffic{
		BytesIn: g.bytesIn.Load(), BytesOut: g.bytesOut.Load(), PacketsIn: g.packetsIn.Load(), PacketsOut: g.packetsOut.Load(),
	}
}

var (
	wireBytes = prometheus.NewDesc("kvmesh_mesh_wire_bytes_total",
		"Bytes on the wire, IP and UDP headers included, by what carries them (quic, gossip) and direction.",
		[]string{"carrier", "direction"}, nil)
	wirePackets = prometheus.NewDesc("kvmesh_mesh_wire_packets_total",
		"Packets on the wire, by what carries them (quic, gossip) and direction.", []string{"carrier", "direction"}, nil)
)

// collectTraffic shows Traffic as metrics.
func (m *Mesh) collectTraffic(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, n uint64, carrier, direction string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), carrier, direction)
	}
	quic, gossip := m.Traffic()
	for carrier, t := range map[string]Traffic{"quic": quic, "gossip": gossip} {
		send(wireBytes, t.BytesIn, carrier, "in")
		send(wireBytes, t.BytesOut, carrier, "out")
		send(wirePackets, t.PacketsIn, carrier, "in")
		send(wirePackets, t.PacketsOut, carrier, "out")
	}
}
