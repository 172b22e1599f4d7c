// Command agreeing checks the state that a mesh agrees on: that it can be written soon after a leader is lost, that nothing
// acknowledged is ever lost, that it reaches every agent, and that no request waits for it. It runs whole agents as
// processes, and the tests that measure in fake time. Run it through deploy/checks/agreed. Figures and exit code are those
// of deploy/checks/serving.
package main

import (
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

func main() { check.Main("agreeing", checks()) }

// checks are in the order in which they run: what is quick to fail comes first. What is not part of --short runs in make
// test, in its short form.
func checks() []check.Check {
	return []check.Check{
		{Name: "versions", Run: checkVersions, Limit: 5 * time.Minute, Short: true},
		{Name: "linear", Run: checkLinear, Limit: 30 * time.Minute, Short: true},
		{Name: "crash", Run: checkCrash, Limit: 30 * time.Minute, Short: true},
		{Name: "failover", Run: checkFailover, Limit: 20 * time.Minute, Short: true},
		{Name: "spread", Run: checkSpread, Limit: time.Hour},
		{Name: "geometry", Run: checkGeometry, Limit: time.Hour},
		{Name: "scheme", Run: checkScheme, Limit: 2 * time.Hour},
	}
}
