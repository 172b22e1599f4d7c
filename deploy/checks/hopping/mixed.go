package main

import (
	"context"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// checkMixed has 100,000 requests end in every way while engines fail, in one process in fake time: over real sockets that would
// take ten times as long on two cores. Half of them are of a class that continues and hedges. What is left of them fails the test
// by itself.
func checkMixed(ctx context.Context, h *check.Harness) error {
	tests := check.Tests{
		Package: "./internal/simcluster", Run: "^TestAllIsUndoneAfterManyMixedOutcomes$", Long: !h.Short, Prefix: "mixed_",
		Most: map[string]float64{
			"mixed_plain_left": 0, "mixed_plain_goroutines_more": 0, "mixed_continued_left": 0, "mixed_continued_goroutines_more": 0,
		},
	}
	return tests.Measure(ctx, h)
}
