package simscale

import (
	"sync"

	"github.com/kvmesh/kvmesh/internal/spread"
)

// The kinds of traffic.
const (
	kindFeed      = "feed"
	kindHeartbeat = "heartbeat"
	kindPull      = "pull"
	kindAck       = "ack"
	kindGossip    = "gossip"
	wire          = "wire" // all of them
)

// amount is bytes and packets.
type amount struct{ bytes, packets int64 }

// traffic counts what came to the listeners, and what was sent for it. It is safe for concurrent use.
type traffic struct {
	mu      sync.Mutex
	in, out map[string]amount // by kind
}

func newTraffic() *traffic { return &traffic{in: map[string]amount{}, out: map[string]amount{}} }

// sent counts a message that is sent, and again for each time that some of it is lost.
func (t *traffic) sent(kind string, bytes, packets int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add(t.out, kind, bytes, packets)
}

// came counts a message that arrives, and what says so to its sender.
func (t *traffic) came(kind string, c spread.Cost) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add(t.in, kind, c.Bytes, c.Packets)
	add(t.in, kindAck, c.AckBytes, c.AckPackets) // those for as much that the listener itself sends
	add(t.out, kindAck, c.AckBytes, c.AckPackets)
}

func add(to map[string]amount, kind string, bytes, packets int) {
	a := to[kind]
	to[kind] = amount{a.bytes + int64(bytes), a.packets + int64(packets)}
}

// reset forgets what was counted.
func (t *traffic) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.in)
	clear(t.out)
}

// rates returns bytes by kind and packets in all, of an agent in a second, when so many listeners have listened so long.
func rates(of map[string]amount, listeners int, seconds, gossipBytes, gossipPackets float64) (bytes map[string]float64, packets float64) {
	bytes = map[string]float64{kindGossip: gossipBytes, wire: gossipBytes}
	packets = gossipPackets
	by := float64(listeners) * seconds
	for kind, a := range of {
		bytes[kind] = float64(a.bytes) / by
		bytes[wire] += bytes[kind]
		packets += float64(a.packets) / by
	}
	return bytes, packets
}
