package simcluster

import (
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// long is the size in bytes of prompts whose prefill teaches the speed of an engine.
const long = 8000

// TestEngineThatIsIllIsLeftOutAndReturns has one of four engines ill under a steady load.
func TestEngineThatIsIllIsLeftOutAndReturns(t *testing.T) {
	for name, x := range map[string]struct {
		fault simengine.Faults
		most  int // requests of a minute that the ill engine may get, of 400
	}{
		"accepts and never answers": {simengine.Faults{Stall: true}, 20},
		"fails":                     {simengine.Faults{ErrorRate: 1}, 20},
		"is ten times slower":       {simengine.Faults{Slow: 10}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			Test(t, Config{Agents: 4, Delay: lan}, func(t *testing.T, c *Cluster) {
				c.Whole(wholeWithin)
				f := &traffic{c: c}
				f.every(t, 150*time.Millisecond, 20*time.Second, long, 0, 1, 2, 3)
				c.Engine(3).SetFaults(x.fault)
				before := c.Engine(3).Stats()
				f.every(t, 150*time.Millisecond, time.Minute, long, 0, 1, 2, 3)
				whole(t, f.wait())
				is := c.Engine(3).Stats()
				if n := int(is.Requests-before.Requests) + int(is.FaultsInduced-before.FaultsInduced); n > x.most {
					t.Errorf("it got %d requests, want %d at most", n, x.most)
				} else {
					t.Logf("it got %d requests", n)
				}
				c.Engine(3).SetFaults(simengine.Faults{})
				again := &traffic{c: c}
				again.every(t, 150*time.Millisecond, 90*time.Second, long, 0, 1, 2)
				whole(t, again.wait())
				if e, _ := c.EngineOf(0, 3); e.State != "fresh" {
					t.Errorf("a minute and a half later it is %s", e.State)
				}
				used(t, c, 3)
				c.Quiet(time.Second)
			})
		})
	}
}
