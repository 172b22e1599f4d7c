package main

import (
	"context"
	"strconv"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// The policies that are named here; kvmesh simulate --help lists all.
const (
	kvmesh    = "kvmesh"
	oracle    = "oracle"
	bestExact = "best-exact"
)

// usual is the mesh of which DESIGN's numbers are: 64 engines, digests and heartbeats every second, probes.
func usual(more ...string) []string {
	return append([]string{"--engines", "64", "--digest", "1s", "--heartbeat", "1s"}, more...)
}

// eachTraffic runs f for each workload, and reports what could not be measured.
func eachTraffic(h *check.Harness, f func(t traffic) error) error {
	all, err := traffics(h)
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := f(t); err != nil {
			return err
		}
	}
	return nil
}

// coding reports whether a workload is the closed loop of coding agents: its long contexts have bounds of their own.
func (t traffic) coding() bool { return t.name == "coding_agent" }

func (t traffic) bound(usual, coding float64) float64 {
	if t.coding() {
		return coding
	}
	return usual
}

func checkOracle(ctx context.Context, h *check.Harness) error {
	return eachTraffic(h, func(t traffic) error {
		r, err := compare(ctx, h, usual(t.args...)...)
		if err != nil {
			return err
		}
		h.Figures.AtLeast("oracle_"+t.name+"_hit_ratio", r.hit.mean(), 0.98, "%s", r.note(&r.hit))
		h.Figures.AtMost("oracle_"+t.name+"_ttft_mean", r.mean.mean(), t.bound(1.05, 1.08), "%s", r.note(&r.mean))
		h.Figures.AtMost("oracle_"+t.name+"_ttft_p95", r.p95.mean(), t.bound(1.12, 1.15), "%s", r.note(&r.p95))
		return nil
	})
}

// checkLoaded is about a busy fleet, where the oracle's constant price of new work is wrong.
func checkLoaded(ctx context.Context, h *check.Harness) error {
	return eachTraffic(h, func(t traffic) error {
		load := "1.25"
		if t.name == "mixture" {
			load = "1.15"
		}
		r, err := compare(ctx, h, usual(append(t.args, "--load", load)...)...)
		if err != nil {
			return err
		}
		h.Figures.AtMost("loaded_"+t.name+"_ttft_mean", r.mean.mean(), t.bound(0.95, 1.08), "load × %s; %s", load, r.note(&r.mean))
		return nil
	})
}

func checkStale(ctx context.Context, h *check.Harness) error {
	return eachTraffic(h, func(t traffic) error {
		r, err := compare(ctx, h, usual(append(t.args, "--digest", "30s")...)...)
		if err != nil {
			return err
		}
		h.Figures.AtLeast("stale_"+t.name+"_hit_ratio", r.hit.mean(), 0.95, "digests every 30 s; %s", r.note(&r.hit))
		h.Figures.AtMost("stale_"+t.name+"_ttft_mean", r.mean.mean(), 1.10, "digests every 30 s; %s", r.note(&r.mean))
		return nil
	})
}

func checkLossy(ctx context.Context, h *check.Harness) error {
	return eachTraffic(h, func(t traffic) error {
		r, err := compare(ctx, h, usual(append(t.args, "--heartbeat-loss", "0.2", "--probe-loss", "0.05")...)...)
		if err != nil {
			return err
		}
		h.Figures.AtMost("lossy_"+t.name+"_ttft_mean", r.mean.mean(), 1.08, "of heartbeats 20 %% and of probes 5 %% are lost; %s", r.note(&r.mean))
		return nil
	})
}

// burstSize is how many requests come at one instant.
const burstSize = 160

// checkBurst shows why no decision takes the minimum over all: the oracle, exact and fresh, herds.
func checkBurst(ctx context.Context, h *check.Harness) error {
	all, err := traffics(h)
	if err != nil {
		return err
	}
	var mean, herd spread
	for seed := range seeds(h) {
		args := usual(append(all[0].args, "--burst", strconv.Itoa(burstSize), "--seed", strconv.Itoa(seed+1))...)
		r, err := simulate(ctx, h, []string{oracle, kvmesh}, args...)
		if err != nil {
			return err
		}
		mean.add(r[kvmesh].Mean, above)
		herd.add(r[oracle].Mean, above)
	}
	h.Figures.AtMost("burst_ttft_mean_s", mean.mean(), 3, "%d requests of the conversation trace at the same instant, mean of %d seeds, the worst %.2f s; the oracle %.1f s",
		burstSize, mean.n, mean.worst, herd.mean())
	return nil
}

// checkMixed is about a fleet of two speeds. The oracle does not know them.
func checkMixed(ctx context.Context, h *check.Harness) error {
	return eachTraffic(h, func(t traffic) error {
		r, err := compare(ctx, h, usual(append(t.args, "--slow-share", "0.5", "--slow-factor", "0.5", "--load", "0.75")...)...)
		if err != nil {
			return err
		}
		h.Figures.AtMost("mixed_"+t.name+"_ttft_mean", r.mean.mean(), 1, "half of the engines at half speed, load × 0.75; %s", r.note(&r.mean))
		h.Figures.AtMost("mixed_"+t.name+"_ttft_p99", r.p99.mean(), 0.9, "half of the engines at half speed, load × 0.75; %s", r.note(&r.p99))
		return nil
	})
}

// checkLarge is about more engines, where the oracle is not the best exact rule any more. Traces are cut.
func checkLarge(ctx context.Context, h *check.Harness) error {
	return eachTraffic(h, func(t traffic) error {
		for _, large := range []struct{ engines, length string }{{"256", "600s"}, {"1000", "300s"}} {
			args := []string{"--engines", large.engines, "--digest", "1s", "--heartbeat", "1s", "--duration", large.length}
			n := seeds(h)
			if large.engines == "1000" {
				n = 1 // minutes each, and with so many requests seeds differ by little
			}
			r, err := compareSeeds(ctx, h, n, bestExact, append(args, t.args...)...)
			if err != nil {
				return err
			}
			h.Figures.AtMost("large_"+t.name+"_"+large.engines+"_engines_ttft_mean", r.mean.mean(), 1.05, "%s", r.note(&r.mean))
		}
		return nil
	})
}

// wholeBound is how long the simulation of the whole trace may take, in seconds.
const wholeBound = 60

// checkWhole times the simulation of 16 copies of the whole conversation trace.
func checkWhole(ctx context.Context, h *check.Harness) error {
	all, err := traffics(h)
	if err != nil {
		return err
	}
	r, err := simulate(ctx, h, []string{kvmesh}, usual(append(all[0].args, "--duration", "3600s")...)...)
	if err != nil {
		return err
	}
	h.Figures.AtMost("whole_conversation_wall_s", r[kvmesh].Wall, wholeBound, "%d requests, hits %.3f, TTFT mean %.3f s, %.1f kB/s into each agent",
		r[kvmesh].Requests, r[kvmesh].Hit, r[kvmesh].Mean, r[kvmesh].BytesIn/1e3)
	return nil
}
