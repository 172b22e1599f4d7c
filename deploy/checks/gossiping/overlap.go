package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// checkOverlap times what each request waits for, and compares it with its twin.
func checkOverlap(ctx context.Context, h *check.Harness) error {
	if err := timeOverlap(ctx, h); err != nil {
		return err
	}
	cases := 1_000_000
	if h.Short {
		cases = 50_000
	}
	const test = "TestIndexAgreesWithItsTwin"
	out, err := check.Command{Dir: h.Root, Args: []string{
		"go", "test", "-count=1", "-json", "-run", "^" + test + "$", "./cachestate", "-cases", strconv.Itoa(cases),
	}}.Run(ctx)
	r, readErr := check.ReadTests(out)
	switch {
	case readErr != nil:
		return readErr
	case r.Failed == 0 && err != nil:
		return err
	case r.Failed == 0 && len(r.Missing([]string{"cachestate." + test})) > 0:
		return fmt.Errorf("%s did not run: %s", test, check.Tail(out, 300))
	}
	h.Figures.Zero("overlap_differs_from_twin", float64(r.Failed), "%d pairs of prompt and engine, on random data, after deltas came while others read", cases)
	return nil
}

// timeOverlap takes the best of some runs of each shape, and the slower shape.
func timeOverlap(ctx context.Context, h *check.Harness) error {
	long, runs := "1s", "3"
	if h.Short {
		long, runs = "0.3s", "2"
	}
	args := []string{"go", "test", "-run", "^$", "-bench", "^BenchmarkOverlapUnderDeltas$", "-benchtime", long, "-count", runs, "./cachestate"}
	out, err := check.Command{Dir: h.Root, Args: args}.Run(ctx)
	if err != nil {
		return err
	}
	best, err := check.BestTimes(out)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		engines string
		bound   float64
	}{{"64", 10}, {"1024", 60}} {
		name := "BenchmarkOverlapUnderDeltas/engines=" + x.engines + "/"
		usual, wide := best[name+"usual"], best[name+"spread"]
		if usual == 0 || wide == 0 {
			return fmt.Errorf("%s did not run: %s", name, check.Tail(out, 300))
		}
		h.Figures.AtMost("overlap_us_"+x.engines+"_engines", max(usual, wide)/kilo, x.bound,
			"250 keys while every digest changes by 100 keys a second, best of %s runs; %.1f when few engines hold much of the prompt, %.1f when each holds another part", runs, usual/kilo, wide/kilo)
	}
	return nil
}
