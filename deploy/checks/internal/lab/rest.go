package lab

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// gauges are the metrics that must be 0 when nothing runs.
var gauges = []string{
	"kvmesh_forward_in_flight_requests", "kvmesh_forward_waiting_requests", "kvmesh_forward_body_bytes", "kvmesh_node_peer_streams",
}

// AwaitRest waits until nothing runs: all counters of all agents are 0 and no engine has work. What is not, is in the error.
func (m *Mesh) AwaitRest(ctx context.Context, limit time.Duration) error {
	if left := m.Left(ctx, limit); len(left) > 0 {
		return fmt.Errorf("not at rest after %v: %s", limit, strings.Join(left, "; "))
	}
	return ctx.Err()
}

// Left waits until nothing runs, and returns what still does at the limit, agent by agent.
func (m *Mesh) Left(ctx context.Context, limit time.Duration) (left []string) {
	_ = check.Await(ctx, limit, "nothing to run", func() bool { left = m.busy(ctx); return len(left) == 0 })
	return left
}

// busy says what is not at rest.
func (m *Mesh) busy(ctx context.Context) []string {
	var out []string
	for _, a := range m.Agents {
		n, err := a.unrest(ctx)
		switch {
		case err != nil:
			out = append(out, fmt.Sprintf("%s does not answer: %v", a.Name, err))
		case len(n) > 0:
			out = append(out, a.Name+": "+strings.Join(n, ", "))
		}
	}
	return out
}

// unrest names the counters of an agent and its engine that are not 0.
func (a *Agent) unrest(ctx context.Context) (out []string, err error) {
	note := func(name string, n float64) {
		if n != 0 {
			out = append(out, fmt.Sprintf("%s %g", name, n))
		}
	}
	s, err := a.Status(ctx)
	if err != nil {
		return nil, err
	}
	c := &s.Counters
	note("in flight", float64(c.InFlight))
	note("waiting", float64(c.Waiting))
	note("streams of peers", float64(c.PeerStreams))
	for id, n := range c.Booked {
		note("booked at "+id, float64(n))
	}
	metrics, err := a.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range gauges {
		if metrics[name] == nil {
			return nil, fmt.Errorf("no metric is called %s", name)
		}
		note(name, metrics.Sum(name))
	}
	e, err := a.EngineStats(ctx)
	if err != nil {
		return nil, err
	}
	note("running at the engine", float64(e.Running))
	note("waiting at the engine", float64(e.Waiting))
	return out, nil
}

// Goroutines returns how many goroutines each agent has, by name.
func (m *Mesh) Goroutines(ctx context.Context) (map[string]float64, error) {
	out := map[string]float64{}
	for _, a := range m.Agents {
		metrics, err := a.Metrics(ctx)
		if err != nil {
			return nil, err
		}
		out[a.Name] = metrics.Sum("go_goroutines")
	}
	return out, nil
}
