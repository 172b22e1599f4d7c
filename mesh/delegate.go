package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"

	"github.com/hashicorp/memberlist"
)

// MaxState is the most bytes of LocalState: it goes both ways with every push/pull, in one piece of memory.
const MaxState = 1 << 20

// delegate is what memberlist calls. It calls most of it under its own lock, so that nothing here may call memberlist
// or wait: membership is noted, and reconcile, awakened, works on the last note of each member.
type delegate struct {
	m    *Mesh
	wake chan struct{} // capacity 1: the notes changed

	mu    sync.Mutex
	notes map[string]note // by name, since the last look
}

// note is the last that memberlist said of a member.
type note struct {
	alive  bool
	about  about
	gossip netip.AddrPort
}

var (
	_ memberlist.Delegate         = (*delegate)(nil)
	_ memberlist.EventDelegate    = (*delegate)(nil)
	_ memberlist.AliveDelegate    = (*delegate)(nil)
	_ memberlist.ConflictDelegate = (*delegate)(nil)
)

func newDelegate(m *Mesh) *delegate {
	return &delegate{m: m, wake: make(chan struct{}, 1), notes: map[string]note{}}
}

// NodeMeta returns what this agent says of itself.
func (d *delegate) NodeMeta(int) []byte { return encodeAbout(d.m.about()) }

// NotifyMsg drops a message: it names no sender, and what agents have to say goes over their connections.
func (d *delegate) NotifyMsg([]byte) { d.m.metrics.drop("message") }

// GetBroadcasts returns nothing: packet broadcast is too narrow for what agents have to say.
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState returns the handler's state.
func (d *delegate) LocalState(bool) []byte {
	if d.m.cfg.State == nil || !d.m.enter() {
		return nil
	}
	defer d.m.wg.Done()
	b := d.m.cfg.State.LocalState()
	if len(b) > MaxState {
		d.m.metrics.drop("local_state_size")
		return nil
	}
	return b
}

// MergeRemoteState gives a peer's state to the handler.
func (d *delegate) MergeRemoteState(b []byte, _ bool) {
	if len(b) > MaxState {
		d.m.metrics.drop("remote_state_size")
		return
	}
	if d.m.cfg.State == nil || len(b) == 0 || !d.m.enter() {
		return
	}
	defer d.m.wg.Done()
	d.m.cfg.State.MergeState(b)
}

// NotifyAlive vetoes members that could not be dialed or named.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	if !namePattern.MatchString(n.Name) {
		d.m.metrics.drop("bad_member")
		return fmt.Errorf("%q is no agent's name", n.Name)
	}
	if _, err := parseAbout(n.Meta); err != nil {
		d.m.metrics.drop("bad_member")
		return err
	}
	return nil
}

// NotifyConflict counts that gossip heard of one name at two addresses. Who may have it is decided at the handshake.
func (d *delegate) NotifyConflict(_, _ *memberlist.Node) { d.m.metrics.drop("gossip_conflict") }

// NotifyJoin notes a live member.
func (d *delegate) NotifyJoin(n *memberlist.Node) { d.note(n, true) }

// NotifyUpdate notes a member whose metadata changed: another life, or SetMeta.
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.note(n, true) }

// NotifyLeave notes a member that is dead or left.
func (d *delegate) NotifyLeave(n *memberlist.Node) { d.note(n, false) }

func (d *delegate) note(n *memberlist.Node, alive bool) {
	if n.Name == d.m.cfg.Name {
		return
	}
	a, err := parseAbout(n.Meta)
	if err != nil {
		return // NotifyAlive let none in
	}
	ip, _ := netip.AddrFromSlice(n.Addr)
	d.mu.Lock()
	d.notes[n.Name] = note{alive: alive, about: a, gossip: netip.AddrPortFrom(ip.Unmap(), n.Port)}
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// take returns the notes since the last call.
func (d *delegate) take() map[string]note {
	d.mu.Lock()
	defer d.mu.Unlock()
	notes := maps.Clone(d.notes)
	clear(d.notes)
	return notes
}

// reconcileAll brings the table up to what memberlist noted, and keeps a connection to each live member.
func (m *Mesh) reconcileAll() {
	keepers := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range keepers {
			stop()
		}
	}()
	for {
		select {
		case <-m.delegate.wake:
		case <-m.ctx.Done():
			return
		}
		for name, n := range m.delegate.take() {
			m.reconcile(name, n, keepers)
		}
	}
}

func (m *Mesh) reconcile(name string, n note, keepers map[string]context.CancelFunc) {
	stop, kept := keepers[name]
	switch {
	case n.alive:
		m.table.joined(name, n.about, n.gossip)
		if !kept {
			ctx, cancel := context.WithCancel(m.ctx)
			keepers[name] = cancel
			m.wg.Go(func() { m.keep(ctx, name) })
		}
	default:
		m.table.departed(name)
		if kept {
			stop()
			delete(keepers, name)
		}
	}
	m.notify(name)
}

// memberlistConfig returns memberlist's config: its LAN defaults, except where a reason stands.
func (m *Mesh) memberlistConfig() *memberlist.Config {
	t, c := m.cfg.Timings, memberlist.DefaultLANConfig()
	c.Name, c.Label, c.Keyring = m.cfg.Name, m.cfg.MeshID, m.keys.ring
	c.Transport, c.Logger = m.transport, slog.NewLogLogger(newLineHandler(m.log.Handler(), m.metrics), slog.LevelInfo)
	c.BindAddr, c.BindPort = m.transport.addr.Addr().String(), int(m.transport.addr.Port())
	c.Delegate, c.Events, c.Alive, c.Conflict = m.delegate, m.delegate, m.delegate, m.delegate
	c.RequireNodeNames = true                         // so that a stream always knows its connection
	c.EnableCompression = false                       // a half-full Bloom filter grows by a third in LZW
	c.UDPBufferSize = maxPacket                       // passes every path
	c.HandoffQueueDepth = 4096                        // a join of 1,000 agents at once
	c.TCPTimeout = t.HandshakeTimeout + t.IdleTimeout // a dial, and then silence
	c.GossipInterval, c.GossipToTheDeadTime = t.GossipInterval, t.GossipToTheDead
	c.ProbeInterval, c.ProbeTimeout = t.ProbeInterval, t.ProbeTimeout
	c.PushPullInterval, c.SuspicionMult = t.PushPullInterval, t.SuspicionMult
	c.DeadNodeReclaimTime = t.DeadNodeReclaim
	return c
}
