package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// checkConnections looks at what an agent pays for 1,000 peers with which it has nothing to do.
func checkConnections(ctx context.Context, h *check.Harness) error {
	out, err := check.Command{Dir: h.Root, Args: []string{
		"go", "test", "-run", "^$", "-bench", "^BenchmarkIdleConnections$", "-benchtime", "1x", "./mesh",
	}}.Run(ctx)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		unit, name string
		bound      float64
	}{
		{"KiB/conn", "idle_connection_kib", 100},
		{"goroutines/conn", "idle_connection_goroutines", 8},
		{"%cpu", "idle_1000_connections_cpu_percent", 15},
	} {
		v, err := metricOf(out, x.unit)
		if err != nil {
			return err
		}
		h.Figures.AtMost(x.name, v, x.bound, "of one end, with 1,000 of them and keep-alives each second")
	}
	return nil
}

// metricOf returns the value before a unit in the output of go test -bench.
func metricOf(out, unit string) (float64, error) {
	words := strings.Fields(out)
	for i, w := range words {
		if w == unit && i > 0 {
			return strconv.ParseFloat(words[i-1], 64)
		}
	}
	return 0, fmt.Errorf("no %s in %s", unit, check.Tail(out, 300))
}
