// Command residence checks that a mesh believes what its engines hold. It starts agents and simulated engines as processes
// of its own, plays traffic at them while their caches are too small for it, breaks their streams of KV events, and
// compares what an agent believes of a prompt with what the engine would find of it. Run it through
// deploy/checks/residency, which builds what it needs. Figures and exit code are those of deploy/checks/serving.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == engineCommand {
		if err := serveEngine(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "engine:", err)
			os.Exit(1)
		}
		return
	}
	check.Main("residence", checks())
}

// checks are in the order in which they run: what is quick to fail comes first.
func checks() []check.Check {
	all := []check.Check{
		{Name: "golden", Run: checkGolden, Limit: 5 * time.Minute, Short: true},
		{Name: "faults", Run: checkFaults, Limit: 15 * time.Minute, Short: true},
		{Name: "identity", Run: checkIdentity, Limit: 10 * time.Minute, Short: true},
		{Name: "unstable", Run: checkUnstable, Limit: 10 * time.Minute},
		{Name: "flood", Run: checkFlood, Limit: 5 * time.Minute},
	}
	for i, r := range churnRuns() {
		all = append(all, check.Check{Name: r.name, Run: r.play, Limit: 20 * time.Minute, Short: i == 0})
	}
	return append(all,
		check.Check{Name: "interop", Run: checkInterop, Limit: 10 * time.Minute},
		check.Check{Name: "fuzz", Run: checkFuzz, Limit: 20 * time.Minute, Short: true},
		check.Check{Name: "conformance", Run: checkConformance, Limit: time.Hour, Asked: true},
	)
}
