package spread

import (
	"context"
	"time"

	"github.com/kvmesh/kvmesh/forward"
)

// maxDatagram bounds a heartbeat: with its headers it must fit a path of 1,280 bytes.
const maxDatagram = 1100

// beat sends heartbeats: one a period, and one when the state of an engine changes, but not more than four a period: an
// engine that is full and free again many times a second would cost every peer two packets each time.
func (t *Teller) beat(ctx context.Context) error {
	for {
		period := HeartbeatPeriod(t.Carrier.Agents())
		t.period.Store(int64(period))
		t.heartbeat(period)
		sent := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(period):
			continue
		case <-t.stateChanged:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(sent.Add(period / 4))):
		}
	}
}

// heartbeat tells the loads of this agent's engines to every peer, and to this agent's own view.
func (t *Teller) heartbeat(period time.Duration) {
	report := t.report(period)
	if t.View != nil {
		t.View.Hear(t.Self, report, time.Now())
	}
	peers := t.reached()
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
