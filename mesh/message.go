package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	maxInbox      = 4096     // messages that wait to be checked: some seconds of deltas of 1,000 peers
	maxInboxBytes = 64 << 20 // and their bytes, since one may have 4 MiB
)

// inbox holds what memberlist received until its signature is checked: memberlist's goroutines must not wait for that.
type inbox struct {
	queue chan []byte
	bytes atomic.Int64 // Invariant: the sum of the lengths in queue, once put and take have returned
}

func newInbox() *inbox { return &inbox{queue: make(chan []byte, maxInbox)} }

// put takes b unless the inbox is full.
func (i *inbox) put(b []byte) bool {
	if i.bytes.Add(int64(len(b))) <= maxInboxBytes {
		select {
		case i.queue <- b:
			return true
		default:
		}
	}
	i.bytes.Add(-int64(len(b)))
	return false
}

// deliverAll checks and delivers messages one by one.
func (m *Mesh) deliverAll() {
	for {
		select {
		case b := <-m.inbox.queue:
			m.inbox.bytes.Add(-int64(len(b)))
			m.deliver(b)
		case <-m.ctx.Done():
			return
		}
	}
}

// deliver drops what was not signed with the key that the sender's own connection showed.
func (m *Mesh) deliver(b []byte) {
	e, err := parseEnvelope(b)
	if err != nil {
		m.metrics.drop("bad_envelope")
		return
	}
	key := m.table.key(e.sender)
	if key == nil {
		m.metrics.drop("unknown_sender")
		return
	}
	if e.check(m.cfg.MeshID, key) != nil {
		m.metrics.drop("bad_signature")
		return
	}
	if m.cfg.Messages == nil {
		m.metrics.drop("no_handler")
		return
	}
	m.cfg.Messages.Message(e.sender, e.payload)
}

// SendReliable signs b and sends it to peer as a memberlist user message, over the connection that there is, or a new
// one. It returns when all of b is written; the peer may still drop it when it is behind. ctx bounds the wait for a
// connection; a write that does not proceed ends after HandshakeTimeout + IdleTimeout. It keeps nothing of b.
func (m *Mesh) SendReliable(ctx context.Context, peer string, b []byte) error {
	msg, err := m.seal(b)
	if err != nil {
		return err
	}
	return m.sendSealed(ctx, peer, msg)
}

func (m *Mesh) seal(b []byte) ([]byte, error) {
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("send message of %d bytes: %w", len(b), ErrTooLarge)
	}
	return seal(m.cfg.Identity, m.cfg.MeshID, m.cfg.Name, b)
}

// sendSealed makes the connection first, within ctx; memberlist then finds it and is bounded by its own timeout.
func (m *Mesh) sendSealed(ctx context.Context, peer string, msg []byte) error {
	list := m.list.Load()
	if list == nil {
		return fmt.Errorf("send to %s: %w", peer, ErrClosed)
	}
	if _, err := m.connection(ctx, peer); err != nil {
		return fmt.Errorf("send to %s: %w", peer, err)
	}
	if err := list.SendReliable(placeholder(peer), msg); err != nil {
		return fmt.Errorf("send to %s: %w", peer, err)
	}
	return nil
}

// placeholder is a memberlist node of that name: our transport finds peers by name, so the address does not matter.
func placeholder(peer string) *memberlist.Node {
	return &memberlist.Node{Name: peer, Addr: net.IPv4(127, 0, 0, 1), Port: 1}
}

// broadcastWriters bounds the peers that one broadcast is being written to at a time, since memberlist encrypts, and so
// copies, the message for each. A write returns as soon as the message is queued, so few are enough.
const broadcastWriters = 8

// broadcastPatience is how long a write holds the place of another. One that takes longer waits for its peer, not for
// this machine, and may not hold up the writes to the others.
const broadcastPatience = 50 * time.Millisecond

// BroadcastReliable is SendReliable to every connected peer; b is signed once for all. A peer to which an earlier
// broadcast has been written for a while and still is will be skipped and counted. It returns what went wrong for which peers, joined, when all
// are done or ctx ends; writes that are under way then go on, each bounded as in SendReliable.
func (m *Mesh) BroadcastReliable(ctx context.Context, b []byte) error {
	msg, err := m.seal(b)
	if err != nil {
		return err
	}
	pcs := m.table.connected()
	slots, results := make(chan struct{}, broadcastWriters), make(chan error, len(pcs))
	var errs []error
	for _, pc := range pcs {
		select {
		case slots <- struct{}{}:
			m.broadcastTo(ctx, pc, msg, slots, results)
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	for range pcs {
		select {
		case err := <-results:
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return errors.Join(errs...)
}

// broadcastTo begins one write of a broadcast. It frees its slot and puts its result when it is done.
func (m *Mesh) broadcastTo(ctx context.Context, pc *peerConn, msg []byte, slots <-chan struct{}, results chan<- error) {
	free := sync.OnceFunc(func() { <-slots })
	patience := time.AfterFunc(broadcastPatience, free)
	if !m.spawn(func() {
		err := m.writeBroadcast(ctx, pc, msg)
		patience.Stop()
		free()
		results <- err
	}) {
		results <- ErrClosed
	}
}

// writeBroadcast writes to one peer, unless an earlier broadcast to it does not get done: a peer that takes nothing has
// one write at a time.
func (m *Mesh) writeBroadcast(ctx context.Context, pc *peerConn, msg []byte) error {
	patience := time.NewTimer(broadcastPatience)
	defer patience.Stop()
	select {
	case pc.writing <- struct{}{}:
		defer func() { <-pc.writing }()
		return m.sendSealed(ctx, pc.name, msg)
	case <-patience.C:
	case <-ctx.Done():
	}
	m.metrics.drop("broadcast_behind")
	return fmt.Errorf("send to %s: an earlier broadcast is still being written", pc.name)
}
