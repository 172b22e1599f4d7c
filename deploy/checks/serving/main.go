// Command serving checks a mesh that serves requests, from outside: it starts whole agents and simulated engines as
// processes of its own, sends them real requests, ends or stops some of them, and measures. Every figure is one line of
// JSON on standard output with the bound that it must keep; progress goes to standard error. The exit code is 1 when a
// figure falls short. Run it through deploy/checks/serve, which builds what it needs.
package main

import (
	"context"
	"os"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// harness is what all checks share.
type harness struct{ *check.Harness }

// nestedVariable is set for the .ci/run of a clone: the check of a clone inside it would never end.
const nestedVariable = "KVMESH_CHECKS_NESTED"

func main() { check.Main("serving", checks()) }

// checks are in the order in which they run: what is quick to fail comes first.
func checks() []check.Check {
	on := func(run func(context.Context, *harness) error) func(context.Context, *check.Harness) error {
		return func(ctx context.Context, h *check.Harness) error { return run(ctx, &harness{h}) }
	}
	nested := os.Getenv(nestedVariable) != ""
	return []check.Check{
		{Name: "keys", Run: on(checkKeys), Limit: 5 * time.Minute},
		{Name: "overlap", Run: on(checkOverlap), Limit: 2 * time.Minute, Short: true},
		{Name: "sdk", Run: on(checkSDK), Limit: 10 * time.Minute, Short: true}, // building the Go client takes 100 s of CPU, once
		{Name: "kill", Run: on(checkKill), Limit: 4 * time.Minute, Short: true},
		{Name: "aborts", Run: on(checkAborts), Limit: 5 * time.Minute, Short: true},
		{Name: "demo", Run: on(checkDemo), Limit: 3 * time.Minute, Short: true},
		{Name: "bench", Run: on(checkBench), Limit: 5 * time.Minute},
		{Name: "clone", Run: on(checkClone), Limit: 45 * time.Minute, Asked: nested},
	}
}
