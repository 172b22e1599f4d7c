package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// result is one line of kvmesh simulate --json.
type result struct {
	Policy    string  `json:"policy"`
	Requests  int     `json:"requests"`
	Hit       float64 `json:"hit_ratio"`
	Mean      float64 `json:"ttft_mean_s"`
	P95       float64 `json:"ttft_p95_s"`
	P99       float64 `json:"ttft_p99_s"`
	FollowUp  float64 `json:"follow_up_hit_ratio"`
	LoadCoV   float64 `json:"load_cov"`
	ServedCoV float64 `json:"served_cov"`
	Used      float64 `json:"utilisation"`
	Bounces   float64 `json:"bounce_ratio"`
	Probes    float64 `json:"probe_per_request"`
	BytesIn   float64 `json:"bytes_in_per_agent_s"`
	Wall      float64 `json:"wall_s"`
}

// seeds are of the runs that each figure is the mean of.
func seeds(h *check.Harness) int {
	if h.Short {
		return 1
	}
	return 3
}

// traffic is one workload of the comparison, and what is said of it.
type traffic struct {
	name string
	args []string
}

// traffics are those of the comparison. Recorded traces are not part of the repository; what --short needs is in the binary.
func traffics(h *check.Harness) ([]traffic, error) {
	dir := os.Getenv("TRACES")
	if dir == "" {
		dir = filepath.Join(h.Root, "..", "shared", "traces")
	}
	if h.Short {
		return []traffic{{"conversation", []string{"--workload", "conversation"}}}, nil
	}
	conversation, synthetic, coding := filepath.Join(dir, "conversation_trace.jsonl.gz"), filepath.Join(dir, "synthetic_trace.jsonl.gz"), filepath.Join(dir, "cc_all_compact.jsonl.gz")
	for _, f := range []string{conversation, synthetic, coding} {
		if _, err := os.Stat(f); err != nil {
			return nil, fmt.Errorf("the recorded traces are missing: set TRACES to the folder that has them: %w", err)
		}
	}
	return []traffic{
		{"conversation", []string{"--workload", "conversation", "--trace", conversation}},
		{"synthetic", []string{"--workload", "synthetic", "--trace", synthetic}},
		{"coding_agent", []string{"--workload", "coding-agent", "--trace", coding}},
		{"mixture", []string{"--workload", "mixture", "--trace", conversation}},
	}, nil
}

// simulate runs kvmesh simulate and returns what it says of each policy.
func simulate(ctx context.Context, h *check.Harness, policies []string, args ...string) (map[string]result, error) {
	all := append([]string{h.Bin, "simulate", "--json"}, args...)
	for _, p := range policies {
		all = append(all, "--policy", p)
	}
	begin := time.Now()
	out, err := check.Command{Dir: h.Root, Args: all}.Run(ctx)
	if err != nil {
		return nil, err
	}
	results := map[string]result{}
	d := json.NewDecoder(strings.NewReader(out))
	for {
		var r result
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read a line of kvmesh simulate: %w: %s", err, check.Tail(out, 300))
		}
		results[r.Policy] = r
	}
	for _, p := range policies {
		if results[p].Requests == 0 {
			return nil, fmt.Errorf("kvmesh simulate %s says nothing of %s", strings.Join(args, " "), p)
		}
	}
	h.Say("%s: %.0f s", strings.Join(all[2:], " "), time.Since(begin).Seconds())
	return results, nil
}

// ratios are those of one policy to another, over several seeds.
type ratios struct {
	hit, mean, p95, p99 spread
	of, to              result // of the last seed
}

// spread is what several seeds gave.
type spread struct {
	sum, worst float64
	n          int
}

func (s *spread) add(v float64, worse func(a, b float64) bool) {
	if s.n == 0 || worse(v, s.worst) {
		s.worst = v
	}
	s.sum += v
	s.n++
}

func (s *spread) mean() float64 { return s.sum / float64(s.n) }

func above(a, b float64) bool { return a > b }
func below(a, b float64) bool { return a < b }

// compare runs kvmesh and the oracle on the usual seeds.
func compare(ctx context.Context, h *check.Harness, args ...string) (ratios, error) {
	return compareSeeds(ctx, h, seeds(h), oracle, args...)
}

// compareSeeds runs kvmesh and a yardstick on so many seeds.
func compareSeeds(ctx context.Context, h *check.Harness, n int, yardstick string, args ...string) (ratios, error) {
	var r ratios
	for seed := range n {
		all, err := simulate(ctx, h, []string{yardstick, kvmesh}, append([]string{"--seed", strconv.Itoa(seed + 1)}, args...)...)
		if err != nil {
			return ratios{}, err
		}
		r.of, r.to = all[kvmesh], all[yardstick]
		r.hit.add(r.of.Hit/r.to.Hit, below)
		r.mean.add(r.of.Mean/r.to.Mean, above)
		r.p95.add(r.of.P95/r.to.P95, above)
		r.p99.add(r.of.P99/r.to.P99, above)
	}
	return r, nil
}

// note says what stands behind a ratio.
func (r *ratios) note(s *spread) string {
	return fmt.Sprintf("of %s to %s, mean of %d seeds, the worst %.3f; of the last seed: hits %.3f and %.3f, TTFT mean %.3f and %.3f s, p95 %.2f and %.2f s; %d requests, utilisation %.2f; %.2f probes and %.3f bounces a request",
		r.of.Policy, r.to.Policy, s.n, s.worst, r.of.Hit, r.to.Hit, r.of.Mean, r.to.Mean, r.of.P95, r.to.P95, r.of.Requests, r.of.Used, r.of.Probes, r.of.Bounces)
}
