package kvevents

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/zmtp"
)

// replayEnd is the number that ends a replay.
var replayEnd = bytes.Repeat([]byte{0xff}, 8)

var errReplayForm = errors.New("answer is no batch of KV events")

// ask requests the batches from a number on and passes them to take, until the engine says that these were all. They are
// read beside, as fast as they come: what is not taken from libzmq's ROUTER in time it drops.
func (f *Follower) ask(ctx context.Context, from uint64, take func(message) error) error {
	answered, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(f.o.Replay, func() { cancel(errDeaf) })
	defer silence.Stop()
	c, err := f.dialReplay(answered)
	if err != nil {
		return cmp.Or(context.Cause(answered), err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.Close()
	defer context.AfterFunc(answered, func() { c.Close() })()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return cmp.Or(context.Cause(answered), err)
	}
	q := newQueue()
	defer q.abandon()
	wg.Go(func() { q.end(readReplay(c, q, silence, f.o.Replay)) })
	for ctx.Err() == nil {
		m, err := q.pop()
		if errors.Is(err, errReplayEnd) {
			return nil
		}
		if err != nil {
			return cmp.Or(context.Cause(answered), err)
		}
		if err := take(m); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (f *Follower) dialReplay(ctx context.Context) (*zmtp.Conn, error) {
	network, address, err := zmtp.Endpoint(f.source.Replay)
	if err != nil {
		return nil, err
	}
	conn, err := f.o.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return zmtp.Open(conn, zmtp.Options{Socket: zmtp.DEALER, MaxMessage: MaxPayload + maxTopic})
}

// errReplayEnd is how a whole answer ends.
var errReplayEnd = errors.New("these were all")

// readReplay reads an answer into q. It keeps silence from firing for as long as the engine goes on answering.
func readReplay(c *zmtp.Conn, q *queue, silence *time.Timer, limit time.Duration) error {
	for {
		frames, err := c.Receive()
		if err != nil {
			return err
		}
		silence.Stop()
		if n := len(frames); n >= 2 && len(frames[n-1]) == 0 && bytes.Equal(frames[n-2], replayEnd) {
			return errReplayEnd
		}
		m, ok := parse(frames)
		if !ok {
			return errReplayForm
		}
		m.payload = slices.Clone(m.payload)
		if !q.push(m) {
			return context.Canceled
		}
		silence.Reset(limit)
	}
}

// queue passes messages from one goroutine to another, within backlogBytes.
type queue struct {
	mu        sync.Mutex // guards all
	changed   sync.Cond
	messages  []message
	bytes     int
	err       error // after the messages
	abandoned bool
}

func newQueue() *queue {
	q := &queue{}
	q.changed.L = &q.mu
	return q
}

// push waits for room. It reports whether anybody still pops.
func (q *queue) push(m message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes >= backlogBytes && !q.abandoned {
		q.changed.Wait()
	}
	q.messages = append(q.messages, m)
	q.bytes += len(m.payload)
	q.changed.Broadcast()
	return !q.abandoned
}

// end says that no more comes, and why.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
	q.changed.Broadcast()
}

// abandon says that nobody pops any more.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.abandoned = true
	q.changed.Broadcast()
}

// pop waits for a message. After the last one it returns the error of end.
func (q *queue) pop() (message, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.messages) == 0 && q.err == nil {
		q.changed.Wait()
	}
	if len(q.messages) == 0 {
		return message{}, q.err
	}
	m := q.messages[0]
	q.messages[0] = message{}
	q.messages = q.messages[1:]
	q.bytes -= len(m.payload)
	q.changed.Broadcast()
	return m, nil
}
