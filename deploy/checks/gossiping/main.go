// Command gossiping checks what it costs agents to know of each other, and what they know. It measures real agents
// (`kvmesh bench mesh`), a model of as many as no machine holds, whole clusters in fake time, agents in network namespaces,
// and an agent that meets a hostile member. Run it through deploy/checks/gossip. Figures and exit code are those of
// deploy/checks/serving.
package main

import (
	"context"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

func main() {
	lab.Inside(func(ctx context.Context, h *check.Harness, _ []string) error { return runLab(ctx, h) })
	check.Main("gossiping", checks())
}

// checks are in the order in which they run: what is quick to fail comes first.
func checks() []check.Check {
	return []check.Check{
		{Name: "overlap", Run: checkOverlap, Limit: 20 * time.Minute, Short: true},
		{Name: "hostile", Run: checkHostile, Limit: 5 * time.Minute, Short: true},
		{Name: "netns", Run: checkNamespaces, Limit: 15 * time.Minute, Short: true},
		{Name: "bench", Run: checkBench, Limit: 15 * time.Minute, Short: true},
		{Name: "connections", Run: checkConnections, Limit: 5 * time.Minute},
		{Name: "scale", Run: checkScale, Limit: time.Hour},
		{Name: "memory", Run: checkMemory, Limit: time.Hour},
		{Name: "scripts", Run: checkScripts, Limit: 3 * time.Hour},
	}
}
