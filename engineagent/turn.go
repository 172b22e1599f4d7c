package engineagent

import (
	"cmp"
	"context"
	"errors"

	"github.com/kvmesh/kvmesh/engineagent/book"
)

// maxPrefillStep bounds what an engine, or a configuration, may say of its prefill step.
const maxPrefillStep = 1 << 24

// ErrDown is returned by Turn when the engine went down before the request was handed to it.
var ErrDown = errors.New("engine went down before the request's turn")

// Turn waits until the request may go to the engine: shorter ones that came meanwhile may go first. The error is ErrDown,
// that the engine was ejected, or the cause for which ctx ended. The booking stands in either case, until Finish.
func (b *Booking) Turn(ctx context.Context) error {
	select {
	case <-b.turn:
		return nil
	case <-b.outage:
		return ErrDown
	case <-b.stuck.Done():
		return context.Cause(b.stuck)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Queued returns how many requests wait with the owner for their turn.
func (a *Agent) Queued() int { return look(a.book, (*book.Book).Queued) }

// windowLocked is how much prefill may be with the engine before the next request goes there. Ranks that are one engine
// prefill side by side.
func (a *Agent) windowLocked() int {
	if a.cfg.NoQueue {
		return 0
	}
	return cmp.Or(a.cfg.PrefillStep, a.step, book.DefaultWindow) * max(a.ranks, 1)
}

// paceLocked takes what became known of how much the engine prefills at once.
func (a *Agent) paceLocked() {
	window := a.windowLocked()
	a.book.update(func(b *book.Book) { b.SetWindow(window) })
}
