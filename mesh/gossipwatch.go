package mesh

import (
	"math/rand/v2"
	"net"
)

// gossipTries is how many gossip packets in a row a peer must leave without answer before that is worth a note: with one in
// ten lost on each way, six in 10,000 peers would do so by chance.
const gossipTries = 5

// watchGossip sends every peer a gossip packet by turns, one peer each probe interval. memberlist would not notice that
// none gets through between two agents: others, and streams, answer for the peer.
func (m *Mesh) watchGossip() {
	var turn []string
	for sleep(m.ctx, m.cfg.Timings.ProbeInterval) {
		if len(turn) == 0 {
			turn = m.table.linked()
			rand.Shuffle(len(turn), func(i, j int) { turn[i], turn[j] = turn[j], turn[i] })
			continue
		}
		m.tryGossip(turn[0])
		turn = turn[1:]
	}
}

// tryGossip keeps whether gossip packets to a peer and back get through.
func (m *Mesh) tryGossip(name string) {
	list := m.list.Load()
	for range gossipTries {
		p, ok := m.table.peer(name)
		if !ok || !p.Connected || !p.GossipAddr.IsValid() || m.ctx.Err() != nil {
			return
		}
		if _, err := list.Ping(name, net.UDPAddrFromAddrPort(p.GossipAddr)); err == nil {
			m.table.gossips(name, true)
			return
		}
	}
	m.table.gossips(name, false)
}
