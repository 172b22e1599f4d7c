package main

import (
	"context"
	"math"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// modelBound is how far the model may be from real agents, as a share.
const modelBound = 0.10

// traceChanges is how many keys of an engine change in a second under the conversation trace; what the issue calls load
// at 1,000 agents. At 100 the flips alone have an entropy of 0.4 MB/s there.
const traceChanges = "30"

// checkScale looks at meshes that no machine holds: one listener of a model whose owners run the real code, and the model
// against real agents where both can be measured.
func checkScale(ctx context.Context, h *check.Harness) error {
	minute := []string{"--simulated", "--for", "60s"}
	small, err := bench(ctx, h, append(minute, "--agents", "64", "--changes", "100")...)
	if err != nil {
		return err
	}
	h.Figures.AtMost("bytes_in_kb_per_s_64_agents", small.Changing.in()/kilo, 60, "simulated, 100 key changes a second at each engine; at rest %.1f", small.Rest.in()/kilo)
	h.Figures.AtMost("digest_staleness_p99_s_64_agents", small.Staleness.P99, 2, "simulated; p50 %.2f", small.Staleness.P50)
	large, err := bench(ctx, h, append(minute, "--agents", "1000", "--changes", traceChanges)...)
	if err != nil {
		return err
	}
	busy, err := bench(ctx, h, append(minute, "--agents", "1000", "--changes", "100")...)
	if err != nil {
		return err
	}
	h.Figures.AtMost("bytes_in_kb_per_s_1000_agents", large.Changing.in()/kilo, 400, "simulated, %s key changes a second at each engine, as in the conversation trace; at 100 a second %.1f; at rest %.1f",
		traceChanges, busy.Changing.in()/kilo, large.Rest.in()/kilo)
	h.Figures.AtMost("digest_staleness_p99_s_1000_agents", max(large.Staleness.P99, busy.Staleness.P99), 8, "simulated, the worse of both rates; p50 %.2f, most %.2f; an agent had no digest %d times",
		large.Staleness.P50, large.Staleness.Max, large.Unknown)
	return compareModel(ctx, h)
}

// compareModel measures 32 real agents and models them.
func compareModel(ctx context.Context, h *check.Harness) error {
	args := []string{"--agents", "32", "--changes", "100", "--for", "60s"}
	model, err := bench(ctx, h, append([]string{"--simulated"}, args...)...)
	if err != nil {
		return err
	}
	real, err := bench(ctx, h, append([]string{"--probes", "0"}, args...)...)
	if err != nil {
		return err
	}
	h.Figures.AtMost("model_bytes_in_off_32_agents", math.Abs(model.Changing.in()/real.Changing.in()-1), modelBound, "real %.1f kB/s, model %.1f", real.Changing.in()/kilo, model.Changing.in()/kilo)
	h.Figures.AtMost("model_digest_staleness_off_32_agents", math.Abs(model.Staleness.Mean/real.Staleness.Mean-1), modelBound, "means: real %.2f s, model %.2f", real.Staleness.Mean, model.Staleness.Mean)
	return nil
}
