package spread

import (
	"context"
	"time"

	"github.com/kvmesh/kvmesh/forward"
)

// maxDatagram bounds a heartbeat: with its headers it must fit a path of 1,280 bytes.
const maxDatagram = 1100

// beatSlots is the number of parts of a quarter of the period in which peers get their heartbeats one after the other: in
// a large mesh they would take CPU from requests for tens of milliseconds if they all went at once.
const beatSlots = 16

// beat sends heartbeats: one a period, and one when the state of an engine changes, but not more than four a period: an
// engine that is full and free again many times a second would cost every peer two packets each time.
func (t *Teller) beat(ctx context.Context) error {
	for changed := true; ctx.Err() == nil; {
		period := HeartbeatPeriod(t.Carrier.Agents())
		t.period.Store(int64(period))
		sent := time.Now()
		if changed {
			t.beatTo(t.reached(), period) // at once
			changed = false
		} else {
			changed = t.beatInTurn(ctx, period)
		}
		if changed = changed || t.changedWithin(ctx, time.Until(sent.Add(period))); changed {
			wait(ctx, time.Until(sent.Add(period/4)))
		}
	}
	return nil
}

// beatInTurn sends a heartbeat to each peer when it is its turn, until the state of an engine changes.
func (t *Teller) beatInTurn(ctx context.Context, period time.Duration) (changed bool) {
	var slots [beatSlots][]*peer
	for _, p := range t.reached() {
		i := int(p.share * beatSlots)
		slots[i] = append(slots[i], p)
	}
	for _, peers := range slots {
		t.beatTo(peers, period)
		if t.changedWithin(ctx, period/4/beatSlots) {
			return true
		}
	}
	return false
}

// changedWithin waits, and reports whether the state of an engine changed meanwhile.
func (t *Teller) changedWithin(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-t.stateChanged:
		return true
	}
	return false
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// beatTo tells the loads of this agent's engines to peers, and to this agent's own view.
func (t *Teller) beatTo(peers []*peer, period time.Duration) {
	report := t.report(period)
	if t.View != nil {
		t.View.Hear(t.Self, report, time.Now())
	}
	for _, b := range datagrams(report) {
		for _, p := range peers {
			_ = t.Carrier.SendDatagram(p.name, b) // a lost heartbeat is followed by the next
		}
	}
}

// report is the loads of this agent's engines now.
func (t *Teller) report(period time.Duration) forward.Report {
	r := forward.Report{Period: period}
	for _, s := range t.Sources {
		r.Loads = append(r.Loads, forward.EngineLoad{Name: s.Engine().ID.Name(), Load: s.Load()})
	}
	return r
}

// HeartbeatPeriod returns the period of this agent's heartbeats now.
func (t *Teller) HeartbeatPeriod() time.Duration { return time.Duration(t.period.Load()) }

// datagrams splits a report into as many as fit a packet each.
func datagrams(r forward.Report) [][]byte {
	var out [][]byte
	part := forward.Report{Period: r.Period}
	for _, l := range r.Loads {
		longer := forward.Report{Period: r.Period, Loads: append(part.Loads, l)}
		if len(part.Loads) > 0 && len(forward.AppendReport(nil, longer)) > maxDatagram {
			out = append(out, forward.AppendReport(nil, part))
			longer.Loads = []forward.EngineLoad{l}
		}
		part = longer
	}
	return append(out, forward.AppendReport(nil, part))
}
