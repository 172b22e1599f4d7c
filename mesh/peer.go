package mesh

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// State is what gossip says of a peer.
type State uint8

// The states of a peer. A peer that gossip has not told of yet, but that is connected, is StateAlive.
const (
	StateAlive State = iota
	StateDead        // silent
	StateLeft        // said that it goes
)

// String returns the state's name, as it is in metrics.
func (s State) String() string {
	switch s {
	case StateAlive:
		return "alive"
	case StateDead:
		return "dead"
	case StateLeft:
		return "left"
	}
	return "unknown"
}

// Peer is one other agent as this one sees it now.
type Peer struct {
	Name       string
	Instance   uint64         // of its process; another number is another life
	Started    time.Time      // of its process, by its own clock
	QUICAddr   netip.AddrPort // as it advertises them; GossipAddr is zero until gossip tells
	GossipAddr netip.AddrPort
	Meta       []byte // Config.Meta of the peer; not to be changed
	State      State
	Connected  bool          // a connection stands
	Protocol   uint8         // the version that both speak on it; 0 without one
	RTT        time.Duration // smoothed, of that connection; 0 without one
}

// Peers returns all peers known now, dead ones for Timings.ForgetAfter, in order of their names.
func (m *Mesh) Peers() []Peer {
	peers := m.table.peers()
	slices.SortFunc(peers, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	return peers
}

// Peer returns one of Peers.
func (m *Mesh) Peer(name string) (Peer, bool) { return m.table.peer(name) }

// notify tells the peer handler what became of the peer since it was told last, if anything did. It compares states, so
// whoever changes the table calls it afterwards and need not know what it changed.
func (m *Mesh) notify(name string) {
	m.notifyMu.Lock()
	defer m.notifyMu.Unlock()
	now, up, reason := m.table.reach(name)
	was, told := m.reported[name]
	if told && (!up || was.Instance != now.Instance) {
		delete(m.reported, name)
		if up {
			reason = "restarted: a new instance came"
		}
		reason = cmp.Or(reason, "connection lost")
		m.log.Info("peer down", "peer", name, "reason", reason)
		if m.cfg.Peers != nil {
			m.cfg.Peers.PeerDown(name, reason)
		}
		told = false
	}
	if up && !told {
		m.reported[name] = now
		m.log.Info("peer up", "peer", name, "addr", now.QUICAddr, "instance", now.Instance)
		if m.cfg.Peers != nil {
			m.cfg.Peers.PeerUp(now)
		}
	}
}

func (m *Mesh) countPeers() map[State]int {
	n := map[State]int{StateAlive: 0, StateDead: 0, StateLeft: 0}
	for _, p := range m.table.peers() {
		n[p.State]++
	}
	return n
}
