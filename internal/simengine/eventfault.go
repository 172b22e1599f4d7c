package simengine

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// EventFaults are failures of the KV events that leave over ZMQ. Unlike other faults they happen once, when they are set
// or to the batches that come next; setting all faults anew calls off what has not happened yet.
type EventFaults struct {
	// LoseBatches is how many of the next batches no subscriber sees, though each uses up a sequence number.
	LoseBatches int `json:"lose_batches,omitempty"`
	// LoseReplay keeps the lost batches from replay too, as when sending failed in the engine.
	LoseReplay bool `json:"lose_replay,omitempty"`
	// RepeatBatch sends the last batch once more.
	RepeatBatch bool `json:"repeat_batch,omitempty"`
	// SwapBatches sends the next two batches in the wrong order: the first waits for the second.
	SwapBatches bool `json:"swap_batches,omitempty"`
	// CutMillis closes all connections of both sockets and lets none in for that many milliseconds, while batches go on
	// being numbered and kept.
	CutMillis int `json:"cut_ms,omitempty"`
	// ForgetReplay empties the replay buffer, as when more batches came than it holds.
	ForgetReplay bool `json:"forget_replay,omitempty"`
}

func (f *EventFaults) validate() error {
	var errs []error
	if f.LoseBatches < 0 {
		errs = append(errs, fmt.Errorf("Faults.LoseBatches (%d) must not be negative", f.LoseBatches))
	}
	if f.CutMillis < 0 {
		errs = append(errs, fmt.Errorf("Faults.CutMillis (%d) must not be negative", f.CutMillis))
	}
	return errors.Join(errs...)
}

// LoseBatches drops the next n batches of KV events; replayToo keeps them from replay as well.
func (e *Engine) LoseBatches(n int, replayToo bool) {
	e.events.planned(func(p *plan) { p.lose, p.loseReplay = n, replayToo })
}

// RepeatBatch sends the last batch of KV events once more, under its number.
func (e *Engine) RepeatBatch() { e.events.repeat() }

// SwapBatches sends the next two batches of KV events in the wrong order.
func (e *Engine) SwapBatches() { e.events.planned(func(p *plan) { p.swap = true }) }

// CutEvents closes all connections for KV events and their replay, and closes new ones at once for the time d.
func (e *Engine) CutEvents(d time.Duration) { e.events.cut(d) }

// ForgetReplay empties the replay buffer.
func (e *Engine) ForgetReplay() { e.events.forget() }

// setEventFaults calls off what was planned, and does or plans what f says.
func (e *Engine) setEventFaults(f *EventFaults) {
	e.events.planned(func(p *plan) { p.lose, p.loseReplay, p.swap = max(f.LoseBatches, 0), f.LoseReplay, f.SwapBatches })
	if f.ForgetReplay {
		e.events.forget()
	}
	if f.RepeatBatch {
		e.events.repeat()
	}
	e.events.cut(time.Duration(f.CutMillis) * time.Millisecond)
}

// plan is what will happen to the next batches. Lost batches are not among those that are swapped.
type plan struct {
	lose       int
	loseReplay bool
	swap       bool
	held       *keptBatch // the first of two swapped batches
	last       *keptBatch // the last batch that was sent
}

// next says what is sent now that b has come, and whether b can be replayed.
func (p *plan) next(b keptBatch) (send []keptBatch, keep bool) {
	switch {
	case p.lose > 0:
		p.lose--
		return nil, !p.loseReplay
	case p.swap && p.held == nil:
		p.held = &b
		return nil, true
	case p.held != nil:
		send = []keptBatch{b, *p.held}
		p.swap, p.held = false, nil
	default:
		send = []keptBatch{b}
	}
	p.last = &send[len(send)-1]
	return send, true
}

// planned changes the plan. A batch that was held back for a swap that is called off is sent.
func (p *publisher) planned(change func(*plan)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.plan)
	if held := p.plan.held; held != nil && !p.plan.swap {
		p.plan.held, p.plan.last = nil, held
		p.send(*held)
	}
}

func (p *publisher) repeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plan.last != nil {
		p.send(*p.plan.last)
	}
}

func (p *publisher) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept, p.oldest = nil, 0
}

// cut closes the connections of both sockets for a time; 0 ends a cut.
func (p *publisher) cut(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutUntil = time.Now().Add(d)
	if d > 0 {
		p.closeConnsLocked()
	}
}

func (p *publisher) closeConnsLocked() {
	for conn := range p.conns {
		conn.Close()
	}
}

// restart forgets all batches and begins to take those of another life.
func (p *publisher) restart(life uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life, p.next, p.kept, p.oldest, p.plan = life, 0, nil, 0, plan{}
	p.closeConnsLocked()
}

// enter admits a connection, unless the sockets are cut off.
func (p *publisher) enter(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.cutUntil) {
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

// leave closes a connection for good.
func (p *publisher) leave(conn net.Conn) {
	conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}
