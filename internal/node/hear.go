package node

import (
	"context"
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/spread"
	"github.com/kvmesh/kvmesh/mesh"
)

// PeerUp implements mesh.PeerHandler: what was known of the peer's earlier life is dropped, and it gets what this agent has
// to say.
func (n *Node) PeerUp(p mesh.Peer) {
	n.listener.PeerUp(p.Name, p.Instance)
	n.teller.PeerUp(p.Name, p.Instance)
}

// PeerDown implements mesh.PeerHandler.
func (n *Node) PeerDown(name, reason string) {
	n.teller.PeerDown(name)
	n.view.PeerDown(name, fmt.Errorf("peer %s is down: %s", name, reason))
}

// ServeStream implements mesh.StreamHandler.
func (n *Node) ServeStream(ctx context.Context, peer string, kind mesh.Kind, s *mesh.Stream) {
	n.view.Heard(peer, time.Now())
	var err error
	switch kind {
	case mesh.KindRequest:
		n.serving.Add(1)
		err = n.ingress.Owner.ServeRequest(ctx, s)
		n.serving.Add(-1)
	case mesh.KindProbe:
		err = n.ingress.Owner.ServeProbe(s, n.teller.HeartbeatPeriod())
	case mesh.KindDigestPull:
		err = n.teller.ServePull(peer, s)
	case mesh.KindRaft:
		n.agreement.group.Serve(s)
	case mesh.KindFeed:
		err = n.listener.ServeFeed(peer, s)
	default:
		s.Cancel(codeUnknownKind)
	}
	if err != nil {
		n.log.Debug("stream ended", "peer", peer, "kind", kind.String(), "err", err)
	}
}

// codeUnknownKind cancels a stream of a kind that this version does not know.
const codeUnknownKind = 32

// Datagram implements mesh.DatagramHandler: a heartbeat, or part of a probe.
func (n *Node) Datagram(peer string, b []byte) {
	if !forward.IsProbe(b) {
		n.listener.Datagram(peer, b)
		return
	}
	if err := n.ingress.ServeDatagram(peer, b, n.teller.HeartbeatPeriod()); err != nil {
		n.log.Debug("probe not served", "peer", peer, "err", err)
	}
}

// forget drops what is kept of agents that the mesh does not know any more.
func (n *Node) forget() {
	known := func(agent string) bool { _, known := n.mesh.Peer(agent); return known }
	n.listener.Forget(known)
	n.teller.Forget(known)
}

// carrier lets spread reach the peers without knowing the mesh.
type carrier struct {
	*mesh.Mesh
}

var _ spread.Carrier = carrier{}

// Agents implements spread.Carrier.
func (c carrier) Agents() int {
	count := 1
	for _, p := range c.Peers() {
		if p.Connected {
			count++
		}
	}
	return count
}

// OpenFeed implements spread.Carrier.
func (c carrier) OpenFeed(ctx context.Context, peer string) (spread.Stream, error) {
	return c.open(ctx, peer, mesh.KindFeed)
}

// OpenPull implements spread.Carrier.
func (c carrier) OpenPull(ctx context.Context, peer string) (spread.Stream, error) {
	return c.open(ctx, peer, mesh.KindDigestPull)
}

func (c carrier) open(ctx context.Context, peer string, kind mesh.Kind) (spread.Stream, error) {
	s, err := c.Open(ctx, peer, kind)
	if err != nil {
		return nil, err // a nil *mesh.Stream would be no nil Stream
	}
	return s, nil
}
