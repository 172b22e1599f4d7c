package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// requests are sent in the time that a write may take to fail.
	requests = 1000
	// requestsAtOnce begin while the agents that stay still count on those that are lost.
	requestsAtOnce = 200
	atOnceTake     = time.Second
	// A request that waited for a quorum, even for one try, would be hundreds of milliseconds late; what two cores add to
	// one that does not is less.
	medianBound, tailBound = 2, 50 // ms
	// oneStateBound is within what time after their start the agents that were lost have what the others have.
	oneStateBound = 30 * time.Second
)

// majority is one loss of three of five.
type majority struct {
	m                             *testMesh
	stay, go3                     []*agent
	before, atOnce, during, after *outcomes
	told                          told
}

// told is what the authors of writes without a quorum were told.
type told struct {
	writes, acknowledged int
	longest              time.Duration
	unclear              []error
}

// loseMajority compares requests with a quorum, without, and with one again.
func (m *testMesh) loseMajority(ctx context.Context) error {
	x := &majority{m: m, stay: m.Agents[:kept], go3: m.Agents[kept:]}
	index, err := m.write(ctx, x.stay[0])
	if err != nil {
		return err
	}
	send(ctx, x.stay, keptModel, requestsAtOnce, atOnceTake) // opens connections
	x.before = send(ctx, x.stay, keptModel, requests, writeBound)
	for _, a := range x.go3 {
		a.Process.Kill()
	}
	m.h.Say("failover: three of five are killed")
	writing, written := make(chan struct{}), make(chan struct{})
	go func() { defer close(written); x.write(ctx, writing) }()
	x.atOnce = send(ctx, x.stay, commonModel, requestsAtOnce, atOnceTake)
	x.during = send(ctx, x.stay, keptModel, requests, writeBound)
	close(writing)
	<-written
	if err := x.comeBack(ctx, index); err != nil {
		return fmt.Errorf("three are back: %w", err)
	}
	x.after = send(ctx, x.stay, keptModel, requests, writeBound)
	x.report()
	return nil
}

// write writes by those that stay, one after the other, until writing is closed.
func (x *majority) write(ctx context.Context, writing <-chan struct{}) {
	for ; ; x.told.writes++ {
		select {
		case <-writing:
			return
		default:
		}
		begin := time.Now()
		_, err := x.m.write(ctx, x.stay[x.told.writes%len(x.stay)])
		x.told.longest = max(x.told.longest, time.Since(begin))
		switch {
		case err == nil:
			x.told.acknowledged++
		case !isNoQuorum(err):
			x.told.unclear = append(x.told.unclear, err)
		}
	}
}

// comeBack starts the three again. What was acknowledged before must still be there, and the next write everywhere.
func (x *majority) comeBack(ctx context.Context, acknowledged uint64) error {
	begin := time.Now()
	for _, a := range x.go3 {
		if err := x.m.StartAgent(a); err != nil {
			return err
		}
	}
	if err := x.m.awaitOneState(2 * oneStateBound); err != nil {
		return err
	}
	took := time.Since(begin)
	last, err := x.m.write(ctx, x.go3[0])
	if err != nil {
		return err
	}
	if err := x.m.awaitOneState(oneStateBound); err != nil {
		return err
	}
	states, err := x.m.states(ctx)
	if err != nil {
		return err
	}
	without, err := x.m.without(ctx, last)
	if err != nil {
		return err
	}
	f := x.m.h.Figures
	f.AtMost("three_back_one_state_s", took.Seconds(), oneStateBound.Seconds(), "from their start until all five are ready, vote, and have the same index and hash")
	f.AtMost("three_back_states", float64(len(states)), 1, "pairs of index and hash on five agents after one more write: %v", states)
	f.Zero("three_back_agents_without_the_last_policy", float64(without), "index %d; the last one before the loss was %d", last, acknowledged)
	if last <= acknowledged {
		return errors.New("indexes go back")
	}
	return nil
}

func (x *majority) report() {
	f := x.m.h.Figures
	f.AtMost("no_quorum_told_s", x.told.longest.Seconds(), writeBound.Seconds(), "the longest of %d runs of `kvmesh policy apply` with three of five killed", x.told.writes)
	f.AtLeast("no_quorum_writes", float64(x.told.writes), 2, "one at each agent that stays")
	f.Zero("no_quorum_writes_acknowledged", float64(x.told.acknowledged), "of %d", x.told.writes)
	f.Zero("no_quorum_answers_unclear", float64(len(x.told.unclear)), "that do not say `no quorum`: %v", errors.Join(x.told.unclear...))
	f.Zero("no_quorum_requests_failed", float64(len(x.during.failed)), "of %d in %v%s", requests, writeBound, x.during.why())
	f.Zero("three_killed_requests_failed", float64(len(x.atOnce.failed)), "of %d in the first second after the death of three with their engines in the mesh; "+
		"first bytes p50 %.1f ms, p99 %.1f%s", requestsAtOnce, x.atOnce.ttft(0.5), x.atOnce.ttft(0.99), x.atOnce.why())
	x.added("p50", 0.5, medianBound)
	x.added("p99", 0.99, tailBound)
}

// added compares with the slower of before and after: what else the machine does changes meanwhile.
func (x *majority) added(name string, q, bound float64) {
	before, during, after := x.before.ttft(q), x.during.ttft(q), x.after.ttft(q)
	x.m.h.Figures.AtMost("no_quorum_ttft_added_ms_"+name, during-max(before, after), bound,
		"of %d requests at the same two agents, on the same two engines: %.2f before, %.2f without a quorum, %.2f with one again; failed %d, %d, %d",
		requests, before, during, after, len(x.before.failed), len(x.during.failed), len(x.after.failed))
}
