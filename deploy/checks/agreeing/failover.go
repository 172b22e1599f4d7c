package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// writeBound is after what time at most a write works, or its author knows why not.
const writeBound = 5 * time.Second

// checkFailover kills voters of a mesh of five.
func checkFailover(ctx context.Context, h *check.Harness) error {
	done := h.Working("failover")
	defer done()
	m, err := startMesh(ctx, h)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.loseLeaders(ctx, size(h, 10, 2)); err != nil {
		return fmt.Errorf("leader killed: %w", err)
	}
	return m.loseMajority(ctx)
}

// loseLeaders kills the leader again and again, each time until writes work again and it is back.
func (m *testMesh) loseLeaders(ctx context.Context, times int) error {
	var took []time.Duration
	lost := 0
	for range times {
		d, index, err := m.loseLeader(ctx)
		if err != nil {
			return err
		}
		without, err := m.without(ctx, index)
		if err != nil {
			return err
		}
		took, lost = append(took, d), lost+without
		m.h.Say("failover: a write works %.2f s after the leader's death", d.Seconds())
	}
	slices.Sort(took)
	m.h.Figures.AtMost("leader_killed_writes_work_s", took[len(took)-1].Seconds(), writeBound.Seconds(),
		"from kill -9 to the end of a `kvmesh policy apply` that did it, the longest of %d; the median %.2f", times, took[len(took)/2].Seconds())
	m.h.Figures.Zero("leader_killed_agents_without_the_write", float64(lost), "once the leader is back, in %d rounds on five agents", times)
	return nil
}

// loseLeader kills the leader, and returns how long after that which write worked.
func (m *testMesh) loseLeader(ctx context.Context) (took time.Duration, index uint64, err error) {
	leader, err := m.leader()
	if err != nil {
		return 0, 0, err
	}
	ask := m.Agents[0]
	if ask == leader {
		ask = m.Agents[1]
	}
	begin := time.Now()
	leader.Process.Kill()
	for {
		if index, err = m.write(ctx, ask); err == nil {
			break
		}
		if !isNoQuorum(err) || time.Since(begin) > 4*writeBound {
			return 0, 0, err
		}
	}
	took = time.Since(begin)
	return took, index, errors.Join(m.StartAgent(leader), m.awaitOneState(time.Minute))
}

// isNoQuorum reports whether an operator was told why a write did not work.
func isNoQuorum(err error) bool { return err != nil && strings.Contains(err.Error(), "no quorum") }
