package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// demoLeg is one of the two objects of kvmesh demo --json.
type demoLeg struct {
	Requests         int     `json:"requests"`
	Errors           int     `json:"errors"`
	CachedTokenRatio float64 `json:"cached_token_ratio"`
	TTFTMean         float64 `json:"ttft_mean_s"`
	TTFTP95          float64 `json:"ttft_p95_s"`
	LoadCoV          float64 `json:"load_cov"`
}

type demoResult struct {
	RoundRobin demoLeg `json:"round_robin"`
	Kvmesh     demoLeg `json:"kvmesh"`
}

// checkDemo runs the demo as a newcomer does.
func checkDemo(ctx context.Context, h *harness) error {
	start := time.Now()
	out, err := check.Command{Dir: h.Root, Args: []string{h.Bin, "demo", "--json"}}.Run(ctx)
	if err != nil {
		return err
	}
	seconds := time.Since(start).Seconds()
	var r demoResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return fmt.Errorf("read the demo's line: %w: %s", err, check.Tail(out, 300))
	}
	h.demoFigures(r, seconds)
	return nil
}

func (h *harness) demoFigures(r demoResult, seconds float64) {
	plain, routed := r.RoundRobin, r.Kvmesh
	h.Figures.AtLeast("demo_cached_token_ratio_gain", routed.CachedTokenRatio/plain.CachedTokenRatio, 1.5,
		"kvmesh %.3f, round robin %.3f", routed.CachedTokenRatio, plain.CachedTokenRatio)
	h.Figures.AtMost("demo_ttft_mean_gain", routed.TTFTMean/plain.TTFTMean, 0.8,
		"kvmesh %.3f s, round robin %.3f s; p95 %.3f and %.3f s", routed.TTFTMean, plain.TTFTMean, routed.TTFTP95, plain.TTFTP95)
	h.Figures.Zero("demo_errors", float64(routed.Errors+plain.Errors), "of %d requests through kvmesh and %d by round robin; load_cov %.3f and %.3f",
		routed.Requests, plain.Requests, routed.LoadCoV, plain.LoadCoV)
	h.Figures.AtLeast("demo_requests", float64(min(routed.Requests, plain.Requests)), 1, "requests of the smaller leg")
	h.Figures.AtMost("demo_seconds", seconds, 90, "wall clock of kvmesh demo --json")
}
