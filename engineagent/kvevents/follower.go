package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/zmtp"
)

// Sink takes what a Follower hears, in order, from one goroutine.
type Sink interface {
	// Apply takes the events of one batch, which are valid until it returns.
	Apply(rank int, events []cachestate.BlockEvent)
	// Lost says that what a rank holds is not known any more, and why. Its events from now on are whole again.
	Lost(rank int, why string)
	// Restarted says the same, because another process has taken the place of the one that was followed.
	Restarted(rank int, why string)
}

// Options are how a source is followed. Zero fields take the default that is named.
type Options struct {
	Dial   func(ctx context.Context, network, address string) (net.Conn, error) // zmtp.Dial
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Reorder is how long a batch may come after its successors: 100 ms. Longer delays what is behind it, shorter asks for
	// a replay without need.
	Reorder time.Duration
	// Replay is how long a replay may be silent: 1 s.
	Replay time.Duration
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Dial == nil {
		o.Dial = zmtp.Dial
	}
	if o.Listen == nil {
		o.Listen = (&net.ListenConfig{}).Listen
	}
	if o.Reorder == 0 {
		o.Reorder = 100 * time.Millisecond
	}
	if o.Replay == 0 {
		o.Replay = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Stats count what a Follower saw.
type Stats struct {
	Connected bool
	Next      uint64 // number of the batch that is wanted
	Batches   uint64 // applied
	Replayed  uint64 // of those, out of a replay
	Repeated  uint64 // batches that came again
	Gaps      uint64 // times that batches were missing
	Lost      uint64 // times that they could not be had
	Restarts  uint64
	Broken    uint64 // batches that could not be decoded
	Skipped   uint64 // events that were not understood
}

// Follower follows one source.
type Follower struct {
	source Source
	o      Options
	sink   Sink

	tracker tracker
	begun   bool // a batch was applied
	decoder Decoder
	batch   Batch
	held    map[uint64][]byte // batches that came early

	mu    sync.Mutex
	stats Stats // guarded by mu
}

// NewFollower returns a Follower that does nothing until Run.
func NewFollower(s Source, o Options, sink Sink) *Follower {
	return &Follower{source: s, o: o.withDefaults(), sink: sink, held: map[uint64][]byte{}}
}

// Stats returns the counts so far. It is safe for concurrent use.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

func (f *Follower) count(change func(*Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.stats)
	f.stats.Next = f.tracker.next
}

// The pauses between attempts to connect, which double from the first to the last.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Run follows the source until ctx ends, through every loss of the connection. It returns an error only for a source that
// can never be followed.
func (f *Follower) Run(ctx context.Context) error {
	network, address, err := zmtp.Endpoint(f.source.Endpoint)
	if err != nil {
		return err
	}
	open := func(ctx context.Context) (net.Conn, error) { return f.o.Dial(ctx, network, address) }
	if f.source.Bind {
		l, err := f.o.Listen(ctx, network, address)
		if err != nil {
			return fmt.Errorf("listen for KV events: %w", err)
		}
		defer context.AfterFunc(ctx, func() { l.Close() })()
		defer l.Close()
		open = func(context.Context) (net.Conn, error) { return l.Accept() }
	}
	pause := firstPause
	complaint := ""
	for ctx.Err() == nil {
		began := time.Now()
		err := f.session(ctx, open)
		f.count(func(s *Stats) { s.Connected = false })
		if err != nil && ctx.Err() == nil && err.Error() != complaint {
			complaint = err.Error()
			f.o.Logger.Warn("KV events interrupted", "endpoint", f.source.Endpoint, "error", err)
		}
		if time.Since(began) > lastPause {
			pause, complaint = firstPause, ""
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(float64(pause) * (0.75 + 0.5*rand.Float64()))):
		}
		pause = min(2*pause, lastPause)
	}
	return nil
}

// message is one batch as it came.
type message struct {
	seq     uint64
	payload []byte
}

// backlog is how many batches may wait while a replay is read. Beyond it the connection is not read, so that the engine's
// own bound decides, and what it drops shows as a gap.
const backlog = 1024

// session is one connection to the publisher.
func (f *Follower) session(ctx context.Context, open func(context.Context) (net.Conn, error)) error {
	conn, err := open(ctx)
	if err != nil {
		return err
	}
	sub, err := zmtp.Open(conn, zmtp.Options{Socket: zmtp.SUB, Topics: []string{f.source.Topic}, MaxMessage: MaxPayload})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	live := make(chan message, backlog)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { sub.Close() })()
	defer cancel(nil)
	wg.Go(func() { cancel(read(ctx, sub, live)) })
	f.count(func(s *Stats) { s.Connected = true })
	clear(f.held)
	f.resume(ctx)
	f.follow(ctx, live)
	return context.Cause(ctx)
}

// read passes the messages of a connection on until it ends.
func read(ctx context.Context, sub *zmtp.Conn, live chan<- message) error {
	for {
		frames, err := sub.Receive()
		if err != nil {
			return err
		}
		m, ok := parse(frames)
		if !ok {
			continue // not a batch
		}
		select {
		case live <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// parse reads a message: the payload is its last frame, the number the one before it.
func parse(frames [][]byte) (message, bool) {
	n := len(frames)
	if n < 2 || len(frames[n-2]) != 8 {
		return message{}, false
	}
	payload := make([]byte, len(frames[n-1]))
	copy(payload, frames[n-1])
	return message{binary.BigEndian.Uint64(frames[n-2]), payload}, true
}

// resume finds out, on a new connection, what was missed. For the first time, that is everything that the engine still
// remembers. Later, the last batch must be there as it was: then it is the same process, and what followed comes along.
func (f *Follower) resume(ctx context.Context) {
	if !f.begun {
		f.replay(ctx, 0)
		return
	}
	if f.source.Replay != "" && f.proven(ctx) {
		return
	}
	if ctx.Err() == nil {
		f.restart("the connection was lost and nothing proves that the engine is the same")
		f.replay(ctx, 0)
	}
}

// proven asks for the last batch that was applied and all since.
func (f *Follower) proven(ctx context.Context) bool {
	last := f.tracker.next - 1
	same := false
	err := f.ask(ctx, last, func(m message) error {
		hash := xxhash.Sum64(m.payload)
		if !same {
			if same = m.seq == last && f.tracker.knows(m.seq, hash); !same {
				return errOther
			}
			return nil
		}
		return f.replayed(m)
	})
	return same && err == nil
}

var errOther = errors.New("another process")

// follow takes batches as they come until ctx ends.
func (f *Follower) follow(ctx context.Context, live <-chan message) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	waiting := false
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-live:
			f.take(ctx, m)
		case <-timer.C:
			waiting = false
			f.fill(ctx)
		}
		switch {
		case len(f.held) == 0:
			waiting = false
			timer.Stop()
		case !waiting:
			waiting = true
			timer.Reset(f.o.Reorder)
		}
	}
}

// maxHeld bounds the batches that wait for one before them.
const maxHeld = 256

// take takes one batch.
func (f *Follower) take(ctx context.Context, m message) {
	hash := xxhash.Sum64(m.payload)
	if !f.begun && len(f.held) == 0 && m.seq > f.tracker.next && f.source.Replay == "" {
		f.tracker.skip(m.seq) // what was before is not known, and nothing says that it is
	}
	switch f.tracker.judge(m.seq, hash) {
	case apply:
		f.apply(m, hash)
		f.release()
	case repeated:
		f.count(func(s *Stats) { s.Repeated++ })
	case restarted:
		f.restart("its KV events began again")
		f.replay(ctx, 0)
		f.take(ctx, m)
	case early:
		if f.held[m.seq] = m.payload; len(f.held) > maxHeld {
			f.fill(ctx)
		}
	}
}

// release applies the batches that waited for the ones that came.
func (f *Follower) release() {
	for {
		payload, ok := f.held[f.tracker.next]
		if !ok {
			return
		}
		delete(f.held, f.tracker.next)
		f.apply(message{f.tracker.next, payload}, xxhash.Sum64(payload))
	}
}

// fill closes the gap before the batches that wait, by a replay or by forgetting.
func (f *Follower) fill(ctx context.Context) {
	if len(f.held) == 0 {
		return
	}
	f.count(func(s *Stats) { s.Gaps++ })
	f.replay(ctx, f.tracker.next)
	f.release()
	for len(f.held) > 0 && ctx.Err() == nil {
		first := ^uint64(0)
		for seq := range f.held {
			first = min(first, seq)
		}
		if first < f.tracker.next {
			delete(f.held, first)
			continue
		}
		f.lose(fmt.Sprintf("%d batches of KV events were missed", first-f.tracker.next))
		f.tracker.skip(first)
		f.release()
	}
}

// apply applies the batch that is wanted.
func (f *Follower) apply(m message, hash uint64) {
	f.begun = true
	f.tracker.applied(hash)
	if err := f.decoder.Decode(m.payload, &f.batch); err != nil {
		f.count(func(s *Stats) { s.Broken++ })
		f.lose("a batch of KV events could not be read: " + err.Error())
		return
	}
	f.count(func(s *Stats) {
		s.Batches++
		s.Skipped += uint64(f.batch.Skipped)
	})
	f.sink.Apply(f.rank(), f.batch.Events)
}

// rank returns the rank of the batch in hand.
func (f *Follower) rank() int {
	if f.batch.HasRank {
		return f.batch.Rank
	}
	return f.source.Rank
}

func (f *Follower) lose(why string) {
	f.count(func(s *Stats) { s.Lost++ })
	f.sink.Lost(f.rank(), why)
}

func (f *Follower) restart(why string) {
	f.count(func(s *Stats) { s.Restarts++ })
	f.tracker.reset(0)
	f.begun = false
	clear(f.held)
	f.sink.Restarted(f.rank(), why)
}
