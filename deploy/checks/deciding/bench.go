package main

import (
	"context"
	"fmt"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// checkBench times one decision, overlap included, in the mesh of 64 engines and of 1,024.
func checkBench(ctx context.Context, h *check.Harness) error {
	out, err := check.Command{Dir: h.Root, Args: []string{
		"go", "test", "-run", "^$", "-bench", "^BenchmarkDecide$", "-benchmem", "-benchtime", "0.5s", "-count=3", "./forward",
	}}.Run(ctx)
	if err != nil {
		return err
	}
	best, err := check.BestTimes(out)
	if err != nil {
		return err
	}
	for engines, bound := range map[string]float64{"64": 20_000, "1024": 100_000} {
		ns, ok := best["BenchmarkDecide/"+engines]
		if !ok {
			h.Figures.Broken("decide_"+engines+"_engines_ns", fmt.Errorf("the benchmark did not run: %s", check.Tail(out, 300)))
			continue
		}
		h.Figures.AtMost("decide_"+engines+"_engines_ns", ns, bound, "candidates, overlap of 250 keys, shortlist, probe set and rank; best of 3 runs")
	}
	return nil
}
