package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/internal/zmtp"
)

// dial opens a connection to a peer's endpoint.
func dial(ctx context.Context, endpoint string, o zmtp.Options) (*zmtp.Conn, error) {
	network, address, err := zmtp.Endpoint(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := zmtp.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return open(ctx, conn, o)
}

func open(ctx context.Context, conn net.Conn, o zmtp.Options) (*zmtp.Conn, error) {
	c, err := zmtp.Open(conn, o)
	if err == nil {
		context.AfterFunc(ctx, func() { c.Close() })
	}
	return c, err
}

var subscription = zmtp.Options{Socket: zmtp.SUB, Topics: []string{"kv@"}}

// settle is how long a subscription may take to reach a publisher.
const settle = 300 * time.Millisecond

// subscribe counts the batches that arrive out of 2,000, over each network and in both directions.
func (c *checks) subscribe(ctx context.Context) error {
	return errors.Join(
		c.subscribeTo(ctx, "ipv4", "tcp://127.0.0.1:*"),
		c.subscribeTo(ctx, "ipv6", "tcp://[::1]:*"),
		c.subscribeTo(ctx, "ipc", "ipc://"+filepath.Join(c.dir, "pub.sock")),
		c.subscribeBound(ctx),
	)
}

func (c *checks) subscribeTo(ctx context.Context, name, endpoint string) error {
	p, err := c.start(ctx, "--pub", endpoint)
	if err != nil {
		return err
	}
	defer p.stop()
	sub, err := dial(ctx, p.pub, subscription)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return c.countBatches(p, sub, "zmtp_subscribe_"+name)
}

func (c *checks) subscribeBound(ctx context.Context) error {
	ln, err := zmtp.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer ln.Close()
	p, err := c.start(ctx, "--connect", "--pub", "tcp://"+ln.Addr().String())
	if err != nil {
		return err
	}
	defer p.stop()
	conn, err := ln.Accept()
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	sub, err := open(ctx, conn, subscription)
	if err != nil {
		return fmt.Errorf("accepted: %w", err)
	}
	return c.countBatches(p, sub, "zmtp_subscribe_bound")
}

func (c *checks) countBatches(p *peer, sub *zmtp.Conn, name string) error {
	defer sub.Close()
	time.Sleep(settle)
	const n = 2000
	if err := p.do(fmt.Sprintf("send %d", n)); err != nil {
		return err
	}
	missing := n
	for want := range uint64(n) {
		frames, err := sub.Receive()
		if err != nil {
			return fmt.Errorf("receive batch %d: %w", want, err)
		}
		if len(frames) == 3 && string(frames[0]) == "kv@engine@model" && binary.BigEndian.Uint64(frames[1]) == want {
			missing--
		}
	}
	c.figures.Zero(name+"_missing", float64(missing), "batches of %d that did not come in order from libzmq %s", n, p.version)
	return nil
}

// replay counts what one request brings, in both forms.
func (c *checks) replay(ctx context.Context) error {
	return errors.Join(c.replayIn(ctx, 3), c.replayIn(ctx, 4, "--replay-topic"))
}

func (c *checks) replayIn(ctx context.Context, frames int, args ...string) error {
	p, err := c.start(ctx, args...)
	if err != nil {
		return err
	}
	defer p.stop()
	if err := p.do("send 500"); err != nil { // fewer than ROUTER's high-water mark, beyond which it drops
		return err
	}
	dealer, err := dial(ctx, p.replay, zmtp.Options{Socket: zmtp.DEALER})
	if err != nil {
		return err
	}
	defer dealer.Close()
	n, err := answerOf(dealer, 100, frames)
	if err != nil {
		return err
	}
	c.figures.Zero(fmt.Sprintf("zmtp_replay_%d_frames_missing", frames), float64(400-n), "batches of 400 after the 100th")
	return nil
}

// answerOf asks for the batches from a number on and counts those of the answer that are in order and have so many
// frames.
func answerOf(dealer *zmtp.Conn, from uint64, frames int) (int, error) {
	if err := dealer.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return 0, fmt.Errorf("ask for a replay: %w", err)
	}
	for n := 0; ; n++ {
		m, err := dealer.Receive()
		if err != nil {
			return n, fmt.Errorf("read a replay: %w", err)
		}
		seq := m[len(m)-2]
		if bytes.Equal(seq, bytes.Repeat([]byte{0xff}, 8)) {
			return n, nil
		}
		if len(m) != frames || binary.BigEndian.Uint64(seq) != from+uint64(n) {
			return n, fmt.Errorf("read a replay: message %d is %q", n, m)
		}
	}
}

// heartbeat lets both sides ask for signs of life while nothing is published: the connection must stay.
func (c *checks) heartbeat(ctx context.Context) error {
	return errors.Join(
		c.beat(ctx, "theirs", time.Minute, "--heartbeat", "100"),
		c.beat(ctx, "ours", 100*time.Millisecond),
		c.beat(ctx, "both", 70*time.Millisecond, "--heartbeat", "100"),
	)
}

func (c *checks) beat(ctx context.Context, whose string, silence time.Duration, args ...string) error {
	p, err := c.start(ctx, args...)
	if err != nil {
		return err
	}
	defer p.stop()
	o := subscription
	o.Silence = silence
	sub, err := dial(ctx, p.pub, o)
	if err != nil {
		return err
	}
	defer sub.Close()
	received := make(chan error, 1)
	go func() {
		_, err := sub.Receive()
		received <- err
	}()
	time.Sleep(2 * time.Second)
	if err := p.do("send 1"); err != nil {
		return err
	}
	select {
	case err = <-received:
	case <-time.After(time.Second):
		err = errors.New("nothing came")
	}
	lost := 0.0
	if err != nil {
		lost = 1
	}
	c.figures.Zero("zmtp_heartbeat_"+whose+"_lost", lost, "connections lost in 2 s of heartbeats; the end was %v", err)
	return nil
}

// silence stops the peer's process: its kernel goes on acknowledging.
func (c *checks) silence(ctx context.Context) error {
	p, err := c.start(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	o := subscription
	o.Silence = 500 * time.Millisecond
	sub, err := dial(ctx, p.pub, o)
	if err != nil {
		return err
	}
	defer sub.Close()
	start := time.Now()
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop peer: %w", err)
	}
	_, err = sub.Receive()
	if !errors.Is(err, zmtp.ErrSilent) {
		return fmt.Errorf("receive from a stopped peer: %w", err)
	}
	c.figures.AtMost("zmtp_silence_seconds", time.Since(start).Seconds(), 1.5, "until a stopped publisher counts as dead, asked after 0.5 s")
	return nil
}
