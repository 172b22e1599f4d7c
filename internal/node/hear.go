package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh"
)

// maxEngines bounds the engines of one agent.
const maxEngines = 256

// PeerUp implements mesh.PeerHandler: a new peer gets what this agent has to say, and what was known of its earlier life
// is dropped.
func (n *Node) PeerUp(p mesh.Peer) {
	n.mu.Lock()
	replaced := n.lives[p.Name].instance != p.Instance
	if replaced {
		n.lives[p.Name] = life{instance: p.Instance}
	}
	n.mu.Unlock()
	if replaced {
		n.view.PeerReplaced(p.Name)
	}
	n.view.PeerUp(p.Name, time.Now())
	n.tasks.Go(func() { n.greet(p.Name) })
}

// greet sends a peer the announcement and the whole digests.
func (n *Node) greet(peer string) {
	ctx, cancel := context.WithTimeout(n.ctx, 10*time.Second)
	defer cancel()
	announcement, _ := n.announcement()
	err := n.mesh.SendReliable(ctx, peer, announcement)
	for _, b := range n.wholeDigests() {
		if err == nil {
			err = n.mesh.SendReliable(ctx, peer, b)
		}
	}
	if err != nil && n.ctx.Err() == nil {
		n.log.Warn("greeting not sent; it is repeated with the next announcement", "peer", peer, "err", err)
	}
	for _, b := range datagrams(n.ingress.Owner.Report(n.heartbeats())) {
		_ = n.mesh.SendDatagram(peer, b) // a lost heartbeat is followed by the next
	}
}

// PeerDown implements mesh.PeerHandler.
func (n *Node) PeerDown(name, reason string) {
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
		err = n.ingress.Owner.ServeProbe(s, n.heartbeats())
	case mesh.KindDigestPull:
		err = n.servePull(s)
	default:
		s.Cancel(codeUnknownKind)
	}
	if err != nil {
		n.log.Debug("stream ended", "peer", peer, "kind", kind.String(), "err", err)
	}
}

// codeUnknownKind cancels a stream of a kind that this version does not know.
const codeUnknownKind = 32

// Message implements mesh.MessageHandler.
func (n *Node) Message(from string, b []byte) {
	if len(b) == 0 {
		return
	}
	var err error
	switch b[0] {
	case messageEngines:
		err = n.hearEngines(from, b[1:])
	case messageDigests:
		err = n.hearDigests(from, b[1:])
	default:
		err = fmt.Errorf("message of kind %d is not known to this version", b[0])
	}
	if err != nil {
		n.metrics.badMessages.Inc()
		n.log.Warn("message dropped", "peer", from, "err", err)
		return
	}
	n.view.Heard(from, time.Now())
}

func (n *Node) hearEngines(from string, b []byte) error {
	r := engine.NewReader(b)
	number, instance := r.Uvarint(), r.Uint64()
	count := r.Int(maxEngines)
	if err := r.Err(); err != nil {
		return fmt.Errorf("parse announcement: %w", err)
	}
	rest := r.Rest()
	engines := make([]engine.Engine, 0, count)
	for range count {
		e, after, err := engine.ParseEngine(rest, from)
		if err != nil {
			return fmt.Errorf("parse announcement: %w", err)
		}
		engines, rest = append(engines, e), after
	}
	if n.isNews(from, instance, number) {
		n.view.Announce(from, engines, time.Now())
	}
	return nil
}

// isNews reports whether an announcement is newer than the last one of the same life: messages come in any order, and
// again.
func (n *Node) isNews(from string, instance, number uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l, known := n.lives[from]; known && (l.instance != instance || number <= l.announced) {
		return false
	}
	n.lives[from] = life{instance, number}
	return true
}

// hearDigests takes in digests of engines that their owner has announced, of the life that it announced. Others would take
// places in the index that nobody frees, or bring back what an earlier life held; they are sent again after the
// announcement.
func (n *Node) hearDigests(from string, b []byte) error {
	for len(b) > 0 {
		d, rest, err := cachestate.ParseDelta(b, from, n.index.Geometry())
		if err != nil {
			return fmt.Errorf("parse digest: %w", err)
		}
		b = rest
		if gen, ok := n.view.Generation(d.Engine); !ok || gen != d.Generation {
			continue
		}
		if outcome := n.index.Apply(&d); outcome.NeedFull() {
			n.pull(digestID{d.Engine, d.Tier})
		}
		n.digestHeard(digestID{d.Engine, d.Tier})
	}
	return nil
}

func (n *Node) digestHeard(id digestID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.digestAt[id] = time.Now()
}

// heartbeats returns the period of this agent's heartbeats.
func (n *Node) heartbeats() time.Duration { return time.Duration(n.period.Load()) }

// forget drops what is kept of engines and agents that the view does not know any more.
func (n *Node) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.digestAt, func(id digestID, _ time.Time) bool { _, known := n.view.Generation(id.engine); return !known })
	maps.DeleteFunc(n.lives, func(agent string, _ life) bool {
		_, known := n.mesh.Peer(agent)
		return !known
	})
}

// Datagram implements mesh.MessageHandler: a heartbeat.
func (n *Node) Datagram(peer string, b []byte) {
	report, err := forward.ParseReport(b)
	if err != nil {
		n.metrics.badMessages.Inc()
		return
	}
	n.ingress.Hear(peer, report, time.Now())
}

// maxStateEntry is more than one digest takes in the version vector.
const maxStateEntry = 600

// LocalState implements mesh.StateHandler: the version vector of the digests that this agent has. It is the last resort
// for a peer that misses what an owner sends. The fastest tier stands first, in case there is not room for all.
func (n *Node) LocalState() []byte {
	var b []byte
	for t := cachestate.TierGPU; t.Valid(); t++ {
		index := n.index.Tier(t)
		if index == nil {
			continue
		}
		for id, v := range index.Versions() {
			if len(b) > mesh.MaxState-maxStateEntry {
				return b
			}
			b = append(engine.AppendString(b, string(id)), byte(t))
			b = binary.AppendUvarint(b, uint64(v.Generation))
			b = binary.AppendUvarint(b, v.Number)
		}
	}
	return b
}

// MergeState implements mesh.StateHandler: digests that somebody has newer are pulled from their owners.
func (n *Node) MergeState(b []byte) {
	r := engine.NewReader(b)
	for len(r.Rest()) > 0 {
		id := digestID{engine.ID(r.String(512)), cachestate.Tier(r.Byte())}
		gen, number := engine.Generation(r.Uvarint()), r.Uvarint()
		if r.Err() != nil {
			n.metrics.badMessages.Inc()
			return
		}
		if n.behind(id, gen, number) {
			n.pull(id)
		}
	}
}

// behind reports whether a version of a digest is newer than what is here, and of the life that its owner has announced.
func (n *Node) behind(id digestID, gen engine.Generation, number uint64) bool {
	if now, known := n.view.Generation(id.engine); !known || now != gen || !id.tier.Valid() || id.engine.Agent() == n.config.Mesh.Name {
		return false
	}
	have, _ := n.have(id)
	return have.Generation != gen || have.Number < number
}

// errGone says that a peer asked for an engine that this agent does not have.
var errGone = errors.New("no such engine")
