package agreed

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var (
	failovers         = flag.Int("failovers", 3, "leaders that TestFailoverTimes loses, of each kind")
	failoverHeartbeat = flag.Duration("failover-heartbeat", DefaultConfig().Timings.Heartbeat, "Timings.Heartbeat of TestFailoverTimes")
)

// TestFailoverTimes measures in the simulation's time how long after a leader is gone a write that began right then is in
// force. It fails only where one never is.
func TestFailoverTimes(t *testing.T) {
	for _, kind := range []string{"killed", "cut off"} {
		var took []time.Duration
		for range *failovers {
			synctest.Test(t, func(t *testing.T) { took = append(took, loseLeader(t, kind)) })
		}
		slices.Sort(took)
		at := func(share float64) time.Duration {
			return took[int(share*float64(len(took)-1))].Round(time.Millisecond)
		}
		t.Logf("leader %s, heartbeat %v: p50 %v, p99 %v, longest %v of %d", kind, *failoverHeartbeat, at(0.5), at(0.99), at(1), len(took))
	}
}

func loseLeader(t *testing.T, kind string) time.Duration {
	c := newCluster(t)
	c.heartbeat = *failoverHeartbeat
	c.found(5)
	w := c.add("w", -1)
	c.propose("w", "1", "a")
	time.Sleep(time.Second)
	begin, leader := time.Now(), c.leader()
	if kind == "killed" {
		c.killAgent(leader)
	} else {
		c.partition([]string{leader})
	}
	for i := 0; ; i++ {
		_, err := w.Propose(t.Context(), *policy("2", "b"))
		if err == nil {
			return time.Since(begin)
		}
		if !errors.Is(err, ErrNoQuorum) || i > 3 {
			t.Fatal(fmt.Errorf("write %d: %w", i, err))
		}
	}
}
