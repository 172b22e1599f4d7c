package forward

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

var (
	errQueueFull = errors.New("too many requests wait")
	errQueueTime = errors.New("no engine became free in time")
)

// waitRoom holds requests of models whose engines are all full: first in, first out per model, bounded in number and
// time. It is safe for concurrent use.
type waitRoom struct {
	limit   int
	timeout time.Duration

	mu     sync.Mutex
	queues map[string]*list.List // of *place, by model; a model without waiting requests has none
	n      int
}

// place is one request's place in the room. Its zero value is a place outside.
type place struct {
	room  *waitRoom
	model string
	item  *list.Element
	turn  chan struct{} // closed when the place becomes the first
	until time.Time
}

func newWaitRoom(limit int, timeout time.Duration) *waitRoom {
	return &waitRoom{limit: limit, timeout: timeout, queues: map[string]*list.List{}}
}

// busy reports whether requests for the model wait: a new one goes behind them.
func (r *waitRoom) busy(model string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queues[model] != nil
}

// len returns the number of requests that wait.
func (r *waitRoom) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// enter takes the last place for the model. It returns errQueueFull when the room is full.
func (r *waitRoom) enter(model string) (*place, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n >= r.limit {
		return nil, errQueueFull
	}
	q := r.queues[model]
	if q == nil {
		q = list.New()
		r.queues[model] = q
	}
	p := &place{room: r, model: model, turn: make(chan struct{}), until: time.Now().Add(r.timeout)}
	p.item = q.PushBack(p)
	if q.Len() == 1 {
		close(p.turn)
	}
	r.n++
	return p, nil
}

// await blocks until the place is the first and changed is closed or a moment has passed, so that it is worth looking
// for an engine. The first call of the first in line returns when changed does.
func (p *place) await(ctx context.Context, changed <-chan struct{}) error {
	timeout := time.NewTimer(time.Until(p.until))
	defer timeout.Stop()
	select {
	case <-p.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return errQueueTime
	}
	// Loads of engines also change by time alone, so the first in line looks again without being told.
	again := time.NewTimer(100 * time.Millisecond)
	defer again.Stop()
	select {
	case <-changed:
	case <-again.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return errQueueTime
	}
	return nil
}

// leave gives the place up; the next in line has its turn. It may be called on nil and more than once.
func (p *place) leave() {
	if p == nil || p.item == nil {
		return
	}
	r := p.room
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[p.model]
	first := q.Front() == p.item
	q.Remove(p.item)
	p.item = nil
	r.n--
	switch next := q.Front(); {
	case next == nil:
		delete(r.queues, p.model)
	case first:
		close(next.Value.(*place).turn)
	}
}
