package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

const (
	meshEngines = 8
	meshTime    = "10m"
	// meshSpeedUp multiplies what a request costs beside its engine's time: reading, hashing and carrying 48 kB.
	meshSpeedUp = 2
	// meshBound is how far the simulator may be from a real mesh, as a share.
	meshBound = 0.10
)

// demoLeg is one of the two objects of kvmesh demo --json.
type demoLeg struct {
	Requests int     `json:"requests"`
	Errors   int     `json:"errors"`
	Hit      float64 `json:"cached_token_ratio"`
	Mean     float64 `json:"ttft_mean_s"`
	P95      float64 `json:"ttft_p95_s"`
}

// checkMesh replays the same arrivals on real agents and in the simulator.
func checkMesh(ctx context.Context, h *check.Harness) error {
	measured, err := replay(ctx, h)
	if err != nil {
		return err
	}
	all, err := traffics(h)
	if err != nil {
		return err
	}
	// Periods of agents in a mesh of 8, in the time of the trace.
	period := strconv.FormatFloat(0.5*meshSpeedUp, 'f', -1, 64) + "s"
	simulated, err := simulate(ctx, h, []string{"round-robin", kvmesh}, append(all[0].args,
		"--engines", strconv.Itoa(meshEngines), "--duration", meshTime, "--warm-up", "1ms", "--digest", period, "--heartbeat", period)...)
	if err != nil {
		return err
	}
	plain, routed := simulated["round-robin"], simulated[kvmesh]
	k, r := measured["kvmesh"], measured["round_robin"]
	h.Figures.AtMost("mesh_hit_ratio_off", math.Abs(k.Hit/routed.Hit-1), meshBound,
		"real %.3f, simulated %.3f; round robin %.3f and %.3f; %d requests, speed-up %d", k.Hit, routed.Hit, r.Hit, plain.Hit, k.Requests, meshSpeedUp)
	ratio, wanted := k.Mean/r.Mean, routed.Mean/plain.Mean
	h.Figures.AtMost("mesh_ttft_mean_ratio_off", math.Abs(ratio/wanted-1), meshBound,
		"of kvmesh to round robin: real %.3f (%.3f and %.3f s of a clock that is %d times faster), simulated %.3f (%.3f and %.3f s)",
		ratio, k.Mean, r.Mean, meshSpeedUp, wanted, routed.Mean, plain.Mean)
	h.Figures.Zero("mesh_errors", float64(k.Errors+r.Errors), "%d of %d requests through the mesh and %d of %d by round robin", k.Errors, k.Requests, r.Errors, r.Requests)
	return nil
}

// replay plays recorded conversations on engines of the simulator's model, by round robin and through a mesh.
func replay(ctx context.Context, h *check.Harness) (legs map[string]demoLeg, err error) {
	all, err := traffics(h)
	if err != nil {
		return nil, err
	}
	trace := all[0].args[len(all[0].args)-1]
	out, err := check.Command{Dir: h.Root, Args: []string{
		h.Bin, "demo", "--json", "--replay", meshTime, "--trace", trace, "--engines", strconv.Itoa(meshEngines), "--speed-up", strconv.Itoa(meshSpeedUp),
	}, Progress: os.Stderr}.Run(ctx)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(out), &legs); err != nil {
		return nil, fmt.Errorf("read the line of kvmesh demo: %w: %s", err, check.Tail(out, 300))
	}
	return legs, nil
}
