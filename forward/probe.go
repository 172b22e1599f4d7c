package forward

import (
	"context"
	"errors"
	"time"
)

// probeFloor is the least time that an answer to a probe is waited for. A round trip on a LAN is a tenth of it; longer
// waits cost every request what one slow peer costs.
const probeFloor = 2 * time.Millisecond

func probeWait(rtt time.Duration) time.Duration { return max(probeFloor, 4*rtt) }

// probe asks the best of short for their load and puts the answers in. Answers that come too late to be waited for still
// reach the view; none within the accept deadline counts as missed.
func (x *exchange) probe(short []Candidate) {
	if !x.q.Locality || len(short) < 2 {
		return
	}
	set := ProbeSet(x.q, short)
	answers := make(chan probeAnswer, len(set))
	asked, wait := 0, probeFloor
	for _, i := range set {
		c := &short[i]
		c.Asked = true
		if c.State == Own {
			c.Probed = true
			continue
		}
		rtt := x.g.Peers.RTT(c.ID.Agent())
		if rtt.Seconds() > c.WholeSeconds(x.q) && c.State == Fresh {
			continue // the round trip costs more than any choice can save
		}
		asked++
		wait = max(wait, probeWait(rtt))
		x.g.probing.Go(func() { x.g.ask(c.ID.Agent(), i, rtt, answers) })
	}
	x.gather(short, answers, asked, wait)
}

type probeAnswer struct {
	index int
	Report
}

// ask probes one agent and tells the view, and the waiting request if it still waits. It ends within the accept deadline.
func (g *Ingress) ask(agent string, index int, rtt time.Duration, answers chan<- probeAnswer) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), acceptDeadline(rtt))
	defer cancel()
	report, err := probe(ctx, g.Peers, agent)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			g.View.Missed(agent)
		}
		g.metrics.probes.WithLabelValues("missed").Inc()
		return
	}
	result := "answered"
	if time.Since(start) > probeWait(rtt) {
		result = "late"
	}
	g.metrics.probes.WithLabelValues(result).Inc()
	g.View.Hear(agent, report, time.Now())
	answers <- probeAnswer{index, report} // has room for every probe of the request
}

func (x *exchange) gather(short []Candidate, answers <-chan probeAnswer, asked int, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for range asked {
		select {
		case a := <-answers:
			c := &short[a.index]
			if l, ok := a.loadOf(c.ID); ok {
				c.Load, c.Known, c.Probed = l, true, true
			}
		case <-timer.C:
			return
		}
	}
}
