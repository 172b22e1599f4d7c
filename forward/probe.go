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
	agents := x.toProbe(short)
	answers := make(chan probeAnswer, len(agents))
	wait := probeFloor
	for agent := range agents {
		rtt := x.g.Peers.RTT(agent)
		wait = max(wait, probeWait(rtt))
		x.g.probing.Go(func() { x.g.ask(agent, rtt, answers) })
	}
	if len(agents) > 0 {
		x.gather(short, answers, len(agents), wait)
	}
}

// toProbe marks the candidates that are asked and returns their agents, each once. Suspects are always asked: an
// answer takes their price away, and makes them fresh. The best are, unless there is no other.
func (x *exchange) toProbe(short []Candidate) map[string]bool {
	agents := map[string]bool{}
	for i := range short {
		if c := &short[i]; c.State == Suspect {
			c.Asked = true
			agents[c.ID.Agent()] = true
		}
	}
	if len(short) < 2 {
		return agents
	}
	for _, i := range ProbeSet(&x.q, short) {
		c := &short[i]
		c.Asked = true
		switch {
		case c.State == Own:
			c.Probed = true
		case c.State == Fresh && x.g.Peers.RTT(c.ID.Agent()).Seconds() > c.WholeSeconds(&x.q):
			// The round trip costs more than any choice can save.
		default:
			agents[c.ID.Agent()] = true
		}
	}
	return agents
}

type probeAnswer struct {
	agent string
	Report
}

// ask probes one agent and tells the view, and the waiting request if it still waits. It ends within the accept deadline.
func (g *Ingress) ask(agent string, rtt time.Duration, answers chan<- probeAnswer) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), acceptDeadline(rtt))
	defer cancel()
	report, err := g.probe(ctx, agent, rtt)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			g.View.Missed(agent, start, time.Now())
		}
		g.metrics.probes.WithLabelValues("missed").Inc()
		return
	}
	result := "answered"
	if time.Since(start) > probeWait(rtt) {
		result = "late"
	}
	g.metrics.probes.WithLabelValues(result).Inc()
	g.Hear(agent, report, time.Now())
	answers <- probeAnswer{agent, report} // has room for every probe of the request
}

func (x *exchange) gather(short []Candidate, answers <-chan probeAnswer, asked int, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for range asked {
		select {
		case a := <-answers:
			for i := range short {
				c := &short[i]
				if l, ok := a.loadOf(c.ID); ok && c.ID.Agent() == a.agent {
					c.Load, c.Known, c.Probed = l, true, true
				}
			}
		case <-timer.C:
			return
		}
	}
}

// Probe asks an agent for its load outside of a decision, and takes in the answer.
func (g *Ingress) Probe(ctx context.Context, agent string) error {
	report, err := g.probe(ctx, agent, g.Peers.RTT(agent))
	if err != nil {
		return err
	}
	g.Hear(agent, report, time.Now())
	return nil
}
