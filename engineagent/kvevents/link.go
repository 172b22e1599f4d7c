package kvevents

import (
	"context"
	"encoding/binary"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/semaphore"

	"github.com/kvmesh/kvmesh/internal/zmtp"
)

// link is one connection to the publisher.
type link struct {
	conn *zmtp.Conn
	id   uint64 // grows with every connection
}

// note is what the connections tell the Follower.
type note struct {
	link *link
	kind noteKind
	m    message // of noteBatch
	err  error   // of noteClosed
}

type noteKind uint8

const (
	noteOpened noteKind = iota
	noteBatch
	noteBroken // a message that is no batch
	noteClosed
)

// Bounds of what waits while a replay is read. Beyond them connections are not read, so that the engine's own bound
// decides, and what it drops shows as a gap.
const (
	backlog      = 1024
	backlogBytes = MaxPayload
)

// silence is how long a publisher may say nothing before it is asked for a sign of life. Twice that is how late the end of
// a connection is noticed; a libzmq that is starved for so long is taken for dead.
const silence = 2 * time.Second

// maxLinks bounds the publishers that are connected to us at once: one, and those that died without saying so.
const maxLinks = 16

// inbox is where connections leave what they read.
type inbox struct {
	notes chan note
	bytes *semaphore.Weighted
}

func newInbox() inbox {
	return inbox{make(chan note, backlog), semaphore.NewWeighted(backlogBytes)}
}

// put waits for room.
func (b *inbox) put(ctx context.Context, n note) error {
	if err := b.bytes.Acquire(ctx, int64(len(n.m.payload))); err != nil {
		return err
	}
	select {
	case b.notes <- n:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// taken makes room after a note was taken out.
func (b *inbox) taken(n note) { b.bytes.Release(int64(len(n.m.payload))) }

// persist makes attempts until ctx ends, with pauses.
func (f *Follower) persist(ctx context.Context, attempt func(context.Context) error) {
	b := f.newBackoff()
	for ctx.Err() == nil {
		began := time.Now()
		b.wait(ctx, began, attempt(ctx))
	}
}

// connect serves a publisher that binds, until the connection ends.
func (f *Follower) connect(ctx context.Context, network, address string) error {
	conn, err := f.o.Dial(ctx, network, address)
	if err != nil {
		return err
	}
	return f.serve(ctx, conn)
}

// accept serves the publishers that connect to us, until the listener breaks.
func (f *Follower) accept(ctx context.Context, network, address string) error {
	ln, err := f.o.Listen(ctx, network, address)
	if err != nil {
		return err
	}
	return f.acceptFrom(ctx, ln)
}

func (f *Follower) acceptFrom(ctx context.Context, ln net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ln.Close()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	places := make(chan struct{}, maxLinks)
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		select {
		case places <- struct{}{}:
			wg.Go(func() {
				if err := f.serve(ctx, conn); ctx.Err() == nil {
					f.o.Logger.Debug("publisher of KV events left", "err", err)
				}
				<-places
			})
		default:
			conn.Close()
		}
	}
}

// serve reads one connection until it ends.
func (f *Follower) serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c, err := zmtp.Open(conn, zmtp.Options{
		Socket: zmtp.SUB, Topics: []string{f.source.Topic}, MaxMessage: MaxPayload + maxTopic,
		Handshake: silence, Silence: silence,
	})
	if err != nil {
		return err
	}
	l := &link{c, f.links.Add(1)}
	if err := f.inbox.put(ctx, note{link: l, kind: noteOpened}); err != nil {
		return err
	}
	err = f.read(ctx, l)
	_ = f.inbox.put(ctx, note{link: l, kind: noteClosed, err: err}) // fails when nobody wants to know
	return err
}

// read passes messages on until the connection ends.
func (f *Follower) read(ctx context.Context, l *link) error {
	for {
		frames, err := l.conn.Receive()
		if err != nil {
			return err
		}
		n := note{link: l, kind: noteBroken}
		if m, ok := parse(frames); ok {
			m.payload = slices.Clone(m.payload)
			n.kind, n.m = noteBatch, m
		}
		if err := f.inbox.put(ctx, n); err != nil {
			return err
		}
	}
}

// maxTopic is more than all frames besides the payload take.
const maxTopic = 64 << 10

// parse reads a message: the payload is its last frame, the number the one before it. The highest number ends a replay.
func parse(frames [][]byte) (message, bool) {
	n := len(frames)
	if n < 2 || len(frames[n-2]) != 8 || len(frames[n-1]) == 0 || len(frames[n-1]) > MaxPayload {
		return message{}, false
	}
	m := message{binary.BigEndian.Uint64(frames[n-2]), xxhash.Sum64(frames[n-1]), frames[n-1]}
	return m, m.seq != math.MaxUint64
}
