package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

const (
	meshEngines = 8
	meshTime    = "10m"
	// meshSpeedUp is what two cores can carry: both legs stream some 1.4 million tokens.
	meshSpeedUp = 3
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
	real, err := replay(ctx, h)
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
	figure := func(name string, of, to, simOf, simTo float64) {
		h.Figures.AtMost("mesh_"+name+"_off", math.Abs(of/to/(simOf/simTo)-1), meshBound,
			"real: kvmesh %.3f and round robin %.3f, ratio %.3f; simulated: %.3f and %.3f, ratio %.3f; %d requests, speed-up %d",
			of, to, of/to, simOf, simTo, simOf/simTo, real["kvmesh"].Requests, meshSpeedUp)
	}
	k, r := real["kvmesh"], real["round_robin"]
	figure("hit_ratio", k.Hit, r.Hit, routed.Hit, plain.Hit)
	figure("ttft_mean", k.Mean, r.Mean, routed.Mean, plain.Mean)
	h.Figures.Zero("mesh_errors", float64(k.Errors+r.Errors), "of %d requests through the mesh and %d by round robin", k.Requests, r.Requests)
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
	}}.Run(ctx)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(out), &legs); err != nil {
		return nil, fmt.Errorf("read the line of kvmesh demo: %w: %s", err, check.Tail(out, 300))
	}
	return legs, nil
}
