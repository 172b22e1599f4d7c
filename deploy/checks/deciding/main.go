// Command deciding checks how well kvmesh decides. It runs `kvmesh simulate`, which decides with the code of production in
// virtual time, against an oracle and against what others do; and it replays traffic on a real mesh to see whether the
// simulator tells the truth. Run it through deploy/checks/decisions. Figures and exit code are those of
// deploy/checks/serving.
package main

import (
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

func main() { check.Main("deciding", checks()) }

// checks are in the order in which they run: what is quick to fail comes first.
func checks() []check.Check {
	return []check.Check{
		{Name: "bench", Run: checkBench, Limit: 10 * time.Minute, Short: true},
		{Name: "oracle", Run: checkOracle, Limit: time.Hour, Short: true},
		{Name: "loaded", Run: checkLoaded, Limit: time.Hour},
		{Name: "stale", Run: checkStale, Limit: time.Hour},
		{Name: "lossy", Run: checkLossy, Limit: time.Hour},
		{Name: "burst", Run: checkBurst, Limit: time.Hour, Short: true},
		{Name: "mixed", Run: checkMixed, Limit: time.Hour},
		{Name: "baselines", Run: checkBaselines, Limit: 2 * time.Hour},
		{Name: "sessions", Run: checkSessions, Limit: 2 * time.Hour},
		{Name: "large", Run: checkLarge, Limit: 2 * time.Hour},
		{Name: "whole", Run: checkWhole, Limit: 10 * time.Minute},
		{Name: "mesh", Run: checkMesh, Limit: 20 * time.Minute},
	}
}
