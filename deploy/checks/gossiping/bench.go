package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// distribution is how values spread: over agents, or over samples.
type distribution struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// cost is what an agent needs.
type cost struct {
	CPU     distribution            `json:"cpu_share"`
	BytesIn map[string]distribution `json:"bytes_in_per_s"`
}

// in returns the bytes that come to an agent in a second, headers included.
func (c *cost) in() float64 { return c.BytesIn["wire"].Mean }

// benchResult is the line of kvmesh bench mesh --json.
type benchResult struct {
	Agents    int          `json:"agents"`
	Changes   float64      `json:"changes_per_s"`
	Rest      cost         `json:"rest"`
	Changing  cost         `json:"changing"`
	RSS       distribution `json:"rss_bytes"`
	Staleness distribution `json:"digest_staleness_s"`
	LoadAge   distribution `json:"heartbeat_age_s"`
	Unknown   int          `json:"unknown_digests"`
	Probe     struct {
		Probes    int          `json:"probes"`
		Missed    int          `json:"missed"`
		RoundTrip distribution `json:"round_trip_s"`
		CPU       float64      `json:"cpu_s"`
	} `json:"probe"`
	Memory []struct {
		RSS float64 `json:"rss_bytes"`
	} `json:"memory"`
	Connections float64 `json:"connection_bytes"`
}

// bench runs kvmesh bench mesh.
func bench(ctx context.Context, h *check.Harness, args ...string) (r benchResult, err error) {
	begin := time.Now()
	out, err := check.Command{Dir: h.Root, Args: append([]string{h.Bin, "bench", "mesh", "--json"}, args...)}.Run(ctx)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return r, fmt.Errorf("read the line of kvmesh bench mesh: %w: %s", err, check.Tail(out, 300))
	}
	h.Say("bench mesh %s: %.0f s", strings.Join(args, " "), time.Since(begin).Seconds())
	return r, nil
}

const (
	kilo = 1e3
	mega = 1 << 20
)

// checkBench measures real agents on this machine, which should have nothing else to do.
func checkBench(ctx context.Context, h *check.Harness) error {
	args := []string{"--agents", "32", "--changes", "100", "--for", "60s", "--idle", "20s"}
	if h.Short {
		// Fewer agents, since other work may run beside, and neither probes, whose round trips would show that, nor CPU time.
		args = []string{"--agents", "16", "--changes", "100", "--for", "10s", "--idle", "5s", "--probes", "0"}
	}
	r, err := bench(ctx, h, args...)
	if err != nil {
		return err
	}
	n := fmt.Sprintf("%d_real_agents", r.Agents)
	h.Figures.AtMost("digest_staleness_p99_s_"+n, r.Staleness.P99, 2, "%.0f key changes a second each; p50 %.2f, most %.2f; an agent had no digest %d times", r.Changes, r.Staleness.P50, r.Staleness.Max, r.Unknown)
	h.Figures.AtMost("load_staleness_p99_s_"+n, r.LoadAge.P99, 1.5, "p50 %.2f, most %.2f", r.LoadAge.P50, r.LoadAge.Max)
	h.Figures.AtMost("rss_mib_"+n, r.RSS.Max/mega, 128, "the largest of all; mean %.1f", r.RSS.Mean/mega)
	h.Say("bytes in: at rest %.1f kB/s, with changes %.1f kB/s; CPU at rest %.4f of a core", r.Rest.in()/kilo, r.Changing.in()/kilo, r.Rest.CPU.Mean)
	if h.Short {
		return nil
	}
	h.Figures.AtMost("cpu_at_rest_share_"+n, r.Rest.CPU.Mean, 0.03, "of a core, engine's stand-in included; most %.4f; with changes %.4f", r.Rest.CPU.Max, r.Changing.CPU.Mean)
	p := &r.Probe
	h.Figures.AtLeast("probes_answered_share_"+n, float64(p.Probes)/float64(p.Probes+p.Missed), 0.999, "of %d within a second", p.Probes+p.Missed)
	h.Figures.AtMost("probe_round_trip_p50_ms_"+n, kilo*p.RoundTrip.P50, 0.3, "of %d probes", p.Probes)
	h.Figures.AtMost("probe_round_trip_p99_ms_"+n, kilo*p.RoundTrip.P99, 2, "most %.2f", kilo*p.RoundTrip.Max)
	h.Figures.AtMost("probe_cpu_us_"+n, 1e6*p.CPU, 100, "user and system time of both ends, less what the mesh needs at rest")
	return nil
}
