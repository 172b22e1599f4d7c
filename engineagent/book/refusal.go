package book

import (
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Ask is what is known of a request that is to be booked.
type Ask struct {
	Generation engine.Generation // that the decision was made for; 0 for any
	// QueuedAtProbe is the QueuedSeconds that the decision was made with; negative when the owner was not asked.
	QueuedAtProbe float64
	Second        bool // another owner has bounced it: refused only when it cannot be served
	Forced        bool // too few engines are left that are not ejected: an ejected one takes it
}

// Reason says why a request was refused. The values are labels and wire words.
type Reason string

// The reasons of a refusal.
const (
	ReasonDown       Reason = "down"
	ReasonDraining   Reason = "draining"
	ReasonFull       Reason = "full"
	ReasonGeneration Reason = "generation" // the cache that the decision counted on is gone
	ReasonQueue      Reason = "queue"      // the queue grew since the probe
	ReasonEjected    Reason = "ejected"    // the engine is an outlier, or returns and has enough for now
)

// maxQueueGrowth is how much the queue may grow, in seconds, between a probe and the request: less bounces requests
// for the noise of one other prompt, more lets a burst of equal decisions through.
const maxQueueGrowth = 0.5

// Refusal returns why a request cannot be booked, "" when it can. It looks at facts of this engine only.
func (b *Book) Refusal(a Ask, now time.Time) Reason {
	b.advance(now)
	flags := b.Flags(now)
	switch {
	case flags&engine.Down != 0:
		return ReasonDown
	case flags&engine.Draining != 0:
		return ReasonDraining
	case flags&engine.Full != 0:
		return ReasonFull
	case flags&engine.Ejected != 0 && !a.Forced:
		return ReasonEjected
	case a.Second:
		return ""
	case a.Generation != 0 && a.Generation != b.generation:
		return ReasonGeneration
	case a.QueuedAtProbe >= 0 && b.queuedSeconds(now)-a.QueuedAtProbe > maxQueueGrowth:
		return ReasonQueue
	}
	return ""
}
