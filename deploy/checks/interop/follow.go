package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/engineagent/kvevents"
)

// believed is a Sink that keeps the blocks that it is told of.
type believed struct {
	pause time.Duration // that the next batch takes

	mu       sync.Mutex
	blocks   map[uint64]bool
	lost     int
	restarts int
}

// Apply implements kvevents.Sink.
func (b *believed) Apply(_ int, events []cachestate.BlockEvent) {
	time.Sleep(b.pause)
	b.pause = 0
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		for _, h := range e.Hashes {
			b.blocks[h] = true
		}
	}
}

// Lost implements kvevents.Sink.
func (b *believed) Lost(int, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost++
	clear(b.blocks)
}

// Restarted implements kvevents.Sink.
func (b *believed) Restarted(int, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.restarts++
	clear(b.blocks)
}

// against returns how many of the peer's blocks are missing, and how many are wrong.
func (b *believed) against(p *peer) (missing, wrong int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wrong = len(b.blocks)
	for block := range p.blocks {
		if b.blocks[block] {
			wrong--
		} else {
			missing++
		}
	}
	return missing, wrong
}

// right waits until exactly the peer's blocks are believed, and returns how long that took.
func (b *believed) right(ctx context.Context, p *peer, limit time.Duration) (time.Duration, error) {
	start := time.Now()
	err := check.Await(ctx, limit, "the right blocks", func() bool {
		missing, wrong := b.against(p)
		return missing+wrong == 0
	})
	if missing, wrong := b.against(p); err != nil {
		return 0, fmt.Errorf("%w: %d of %d missing, %d wrong", err, missing, p.next, wrong)
	}
	return time.Since(start), nil
}

// following is a Follower at work.
type following struct {
	*believed
	*kvevents.Follower
	cancel context.CancelFunc
	done   chan error
}

// follow follows a source in the background until end is called. The first batch takes so long.
func follow(ctx context.Context, s kvevents.Source, pause time.Duration) *following {
	b := &believed{blocks: map[uint64]bool{}, pause: pause}
	ctx, cancel := context.WithCancel(ctx)
	f := &following{b, kvevents.NewFollower(s, kvevents.Options{}, b), cancel, make(chan error, 1)}
	go func() { f.done <- f.Run(ctx) }()
	return f
}

func (f *following) end() error {
	f.cancel()
	return <-f.done
}

// givenUp counts the times that what was believed was given up.
func (b *believed) givenUp() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost + b.restarts
}

// followLost joins late and loses batches in the middle and at the end, with both forms of replay.
func (c *checks) followLost(ctx context.Context) error {
	return errors.Join(c.followGaps(ctx, "old_form"), c.followGaps(ctx, "new_form", "--replay-topic"))
}

func (c *checks) followGaps(ctx context.Context, form string, args ...string) (err error) {
	p, err := c.start(ctx, args...)
	if err != nil {
		return err
	}
	defer p.stop()
	if err := p.do("send 3000"); err != nil {
		return err
	}
	f := follow(ctx, kvevents.Source{Endpoint: p.pub, Replay: p.replay, Topic: "kv@"}, 0)
	defer func() { err = errors.Join(err, f.end()) }()
	for _, step := range []struct {
		name  string
		lines []string
		bound float64
		what  string
	}{
		{"join", nil, 5, "3,000 earlier batches"},
		{"gap", []string{"lose 100", "send 1"}, 2, "100 lost batches"},
		{"end", []string{"lose 100"}, 2, "100 lost batches before a pause"},
	} {
		for _, line := range step.lines {
			if err := p.do(line); err != nil {
				return err
			}
		}
		took, err := f.right(ctx, p, 10*time.Second)
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		c.figures.AtMost("follow_"+step.name+"_"+form+"_seconds", took.Seconds(), step.bound, "until %s are known", step.what)
	}
	c.figures.Zero("follow_given_up_"+form, float64(f.givenUp()), "times that what was known was given up")
	return nil
}

// followRestart kills the peer and starts another on its ports: with replay it publishes before we are back, without it
// is idle.
func (c *checks) followRestart(ctx context.Context) error {
	return errors.Join(c.followNewProcess(ctx, true), c.followNewProcess(ctx, false))
}

func (c *checks) followNewProcess(ctx context.Context, replay bool) (err error) {
	p, err := c.start(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	s, name, lines := kvevents.Source{Endpoint: p.pub, Topic: "kv@"}, "follow_restart_idle_seconds", "idle"
	if replay {
		s.Replay, name, lines = p.replay, "follow_restart_seconds", "send 10"
	}
	f := follow(ctx, s, 0)
	defer func() { err = errors.Join(err, f.end()) }()
	time.Sleep(settle)
	if err := p.do("send 10"); err != nil {
		return err
	}
	if _, err := f.right(ctx, p, 5*time.Second); err != nil {
		return fmt.Errorf("before the restart: %w", err)
	}
	p.stop()
	q, err := c.start(ctx, "--pub", p.pub, "--replay", p.replay)
	if err != nil {
		return err
	}
	defer q.stop()
	if err := q.do(lines); err != nil {
		return err
	}
	took, err := f.right(ctx, q, 10*time.Second)
	if err != nil {
		return fmt.Errorf("after the restart: %w", err)
	}
	c.figures.AtMost(name, took.Seconds(), 2, "until only the new process's blocks are believed")
	return nil
}

// followFlood publishes more than is read for 3 s: PUB drops at its high-water mark, and ROUTER may.
func (c *checks) followFlood(ctx context.Context) (err error) {
	p, err := c.start(ctx, "--hwm", "1000", "--tokens", "500") // 2.5 KB a batch
	if err != nil {
		return err
	}
	defer p.stop()
	f := follow(ctx, kvevents.Source{Endpoint: p.pub, Replay: p.replay, Topic: "kv@"}, 3*time.Second)
	defer func() { err = errors.Join(err, f.end()) }()
	time.Sleep(settle)
	if err := p.do("flood 9900"); err != nil {
		return err
	}
	took, err := f.right(ctx, p, time.Minute)
	if err != nil {
		return fmt.Errorf("after the flood: %w", err)
	}
	stats := f.Stats()
	c.figures.AtMost("follow_flood_seconds", took.Seconds(), 30, "until 9,900 batches are known that came at once; given up "+
		"%d times", f.givenUp())
	c.figures.AtLeast("follow_flood_replayed", float64(stats.Replayed), 1000, "batches by replay: with fewer it was no flood")
	return nil
}

// followBound follows two publishers that connect to us, one after the other.
func (c *checks) followBound(ctx context.Context) (err error) {
	path := "ipc://" + filepath.Join(c.dir, "bound.sock")
	f := follow(ctx, kvevents.Source{Endpoint: path, Bind: true, Topic: "kv@"}, 0)
	defer func() { err = errors.Join(err, f.end()) }()
	for _, name := range []string{"follow_bound_seconds", "follow_bound_again_seconds"} {
		if err := c.followConnecting(ctx, f, path, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *checks) followConnecting(ctx context.Context, f *following, path, name string) error {
	p, err := c.start(ctx, "--connect", "--pub", path)
	if err != nil {
		return err
	}
	defer p.stop()
	time.Sleep(2 * settle) // it connects in the background
	if err := p.do("send 10"); err != nil {
		return err
	}
	took, err := f.right(ctx, p, 10*time.Second)
	if err != nil {
		return err
	}
	c.figures.AtMost(name, took.Seconds(), 2, "until only the batches of a connecting publisher are known")
	return nil
}
