package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kvmesh/kvmesh/internal/zmtp"
)

// replay asks for the batches from a number on and applies them. What is missing before the first that comes, or when
// none comes, stays missing: the caller sees it in the number that is wanted next.
func (f *Follower) replay(ctx context.Context, from uint64) {
	if f.source.Replay == "" {
		return
	}
	if err := f.ask(ctx, from, f.replayed); err != nil && ctx.Err() == nil {
		f.o.Logger.Warn("replay of KV events failed", "endpoint", f.source.Replay, "error", err)
	}
}

// replayed takes one batch of a replay.
func (f *Follower) replayed(m message) error {
	hash := xxhash.Sum64(m.payload)
	switch f.tracker.judge(m.seq, hash) {
	case apply:
	case early: // older ones are gone from the engine's memory
		if f.begun {
			f.lose("the engine does not remember all KV events that were missed")
		}
		f.tracker.skip(m.seq)
	case repeated:
		return nil
	case restarted:
		return errOther
	}
	f.count(func(s *Stats) { s.Replayed++ })
	f.apply(m, hash)
	return nil
}

// replayEnd is the number that ends a replay.
var replayEnd = bytes.Repeat([]byte{0xff}, 8)

var errReplayForm = errors.New("answer is no batch of KV events")

// maxReplay bounds the time of a whole replay: 10,000 batches take seconds.
const maxReplay = 30 * time.Second

// ask requests the batches from a number on and passes them to take, until the engine says that these were all.
func (f *Follower) ask(ctx context.Context, from uint64, take func(message) error) error {
	network, address, err := zmtp.Endpoint(f.source.Replay)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, maxReplay)
	defer cancel()
	conn, err := f.o.Dial(ctx, network, address)
	if err != nil {
		return err
	}
	c, err := zmtp.Open(conn, zmtp.Options{Socket: zmtp.DEALER, MaxMessage: MaxPayload})
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	silence := time.AfterFunc(f.o.Replay, func() { c.Close() })
	defer silence.Stop()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for {
		frames, err := c.Receive()
		if err != nil {
			return err
		}
		silence.Reset(f.o.Replay)
		if n := len(frames); n >= 2 && len(frames[n-1]) == 0 && bytes.Equal(frames[n-2], replayEnd) {
			return nil
		}
		m, ok := parse(frames)
		if !ok {
			return errReplayForm
		}
		if err := take(m); err != nil {
			return err
		}
	}
}
