// Command hopping checks the way of a request through two agents while what it passes breaks: that nothing is lost, that
// what cannot go on is said, and that nothing is left behind. It runs whole agents and simulated engines as processes. Run it
// through deploy/checks/hop. Figures and exit code are those of deploy/checks/serving.
package main

import (
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

func main() {
	lab.Inside(runChaos)
	check.Main("hopping", checks())
}

// checks are in the order in which they run: what is quick to fail comes first.
func checks() []check.Check {
	return []check.Check{
		{Name: "calm", Run: checkCalm, Limit: 5 * time.Minute, Short: true},
		{Name: "mixed", Run: checkMixed, Limit: 15 * time.Minute},
		{Name: "cancels", Run: checkCancels, Limit: 10 * time.Minute},
		{Name: "rolling", Run: checkRolling, Limit: 10 * time.Minute, Short: true},
		{Name: "engines", Run: checkEngines, Limit: 15 * time.Minute},
		{Name: "hedge", Run: checkHedge, Limit: 10 * time.Minute},
		{Name: "carry", Run: checkCarry, Limit: 5 * time.Minute},
		{Name: "events", Run: checkEvents, Limit: 5 * time.Minute},
		{Name: "delay", Run: checkDelay, Limit: 5 * time.Minute},
		{Name: "memory", Run: checkMemory, Limit: 15 * time.Minute},
		{Name: "overload", Run: checkOverload, Limit: 10 * time.Minute, Short: true},
		{Name: "sdk", Run: checkSDK, Limit: 10 * time.Minute},
		{Name: "chaos", Run: checkChaos, Limit: 20 * time.Minute, Short: true},
		{Name: "cuts", Run: checkCuts, Limit: 15 * time.Minute},
	}
}
