package kvevents

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/zmtp"
)

// Sink takes what a Follower hears, in order, from one goroutine.
type Sink interface {
	// Apply takes the events of one batch, which are valid until it returns. There may be none.
	Apply(rank int, events []cachestate.BlockEvent)
	// Lost says that what a rank holds is not known any more, and why. Its events from now on are whole again.
	Lost(rank int, why string)
	// Restarted says the same, because another process has taken the place of the one that was followed, or may have:
	// hashes of the old one mean nothing.
	Restarted(rank int, why string)
}

// Options are how a source is followed. Zero fields take the default that is named.
type Options struct {
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)     // zmtp.Dial
	Listen func(ctx context.Context, network, address string) (net.Listener, error) // zmtp.Listen
	// Reorder is how long a batch may come after its successors: 100 ms. Longer delays what is behind it, shorter asks for
	// a replay without need.
	Reorder time.Duration
	// Replay is how long a replay may be silent: 1 s. It is also how long a gap may stay open while a replay comes in;
	// beyond it what is held is given up.
	Replay time.Duration
	// Jitter draws from [0, 1) for the pauses between attempts to connect: rand.Float64.
	Jitter func() float64
	Logger *slog.Logger // discards
}

func (o Options) withDefaults() Options {
	if o.Dial == nil {
		o.Dial = zmtp.Dial
	}
	if o.Listen == nil {
		o.Listen = zmtp.Listen
	}
	if o.Reorder == 0 {
		o.Reorder = 100 * time.Millisecond
	}
	if o.Replay == 0 {
		o.Replay = time.Second
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Stats say what a Follower saw.
type Stats struct {
	Connected bool
	Since     time.Time // when Connected became what it is; zero before the first connection
	Next      uint64    // number of the batch that is wanted
	Batches   uint64    // applied
	Events    uint64    // in them
	Replayed  uint64    // batches that came out of a replay
	Repeated  uint64    // batches that came again
	Late      uint64    // batches that came after they were given up
	Gaps      uint64    // times that batches were missing
	Lost      uint64    // times that what is held was not known any more
	Restarts  uint64    // times that the process was another, or may have been
	Broken    uint64    // messages that could not be read
	Skipped   uint64    // events that were not understood; those of removals are in Lost too
}
