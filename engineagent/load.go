package engineagent

import (
	"cmp"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Load returns a new reading of what delays the next request. It waits for no lesson and no event.
func (a *Agent) Load() engine.Load {
	return a.book.load()
}

// Booked returns the number of requests that are booked and not finished: 0 when nothing runs.
func (a *Agent) Booked() int {
	return look(a.book, (*book.Book).Booked)
}

// maxRunningOf returns how many requests may be in flight on an engine that says n, 0 for nothing.
func maxRunningOf(n int) int { return cmp.Or(n, DefaultMaxRunning) }

// capacityLocked is the capacity that the mirror may use: the engine's, as far as evidence bears it out.
func (a *Agent) capacityLocked() int64 {
	if !a.reuses {
		return 0
	}
	return int64(float64(a.sizeLocked()) * a.evidence.scale)
}

// sizeLocked is the size of the engine's KV cache in tokens.
func (a *Agent) sizeLocked() int64 {
	if a.engine.CapacityTokens > 0 {
		return a.engine.CapacityTokens
	}
	return DefaultCapacityTokens
}
