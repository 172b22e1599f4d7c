package main

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// benchBound is a figure that one benchmark gives.
type benchBound struct {
	figure    string
	dir       string
	benchmark string // without the number of CPUs
	boundNS   float64
	worst     string // another benchmark, for the note: the same in its worst case
}

func benchBounds() []benchBound {
	return []benchBound{
		{"bench_decision_path_64_engines_ns", "./forward", "BenchmarkDecisionPath/engines=64", 1_000_000, ""},
		{"bench_overlap_64_engines_ns", "./cachestate", "BenchmarkOverlap/engines=64/keys=250", 10_000, "BenchmarkOverlapSpread/engines=64/keys=250"},
		{"bench_overlap_1024_engines_ns", "./cachestate", "BenchmarkOverlap/engines=1024/keys=250", 60_000, "BenchmarkOverlapSpread/engines=1024/keys=250"},
		// At 1,000 agents and a period of 5 s a delta comes every 5 ms: 50 µs of each is one percent of a core.
		{"bench_digest_apply_64_engines_ns", "./cachestate", "BenchmarkApply100Flips/engines=64", 50_000, ""},
		{"bench_digest_apply_1024_engines_ns", "./cachestate", "BenchmarkApply100Flips/engines=1024", 50_000, ""},
	}
}

// checkBench runs the benchmarks of the decision path one after the other.
func checkBench(ctx context.Context, h *harness) error {
	results := map[string]benchResult{}
	for _, dir := range []string{"./forward", "./cachestate"} {
		out, err := check.Command{Dir: h.Root, Args: []string{
			"go", "test", "-run", "^$", "-bench", benchPattern(dir), "-benchmem", "-benchtime", "0.5s", "-count=3", dir,
		}}.Run(ctx)
		if err != nil {
			return err
		}
		maps.Copy(results, readBench(out))
	}
	for _, b := range benchBounds() {
		r, ok := results[b.benchmark]
		if !ok {
			h.Figures.Broken(b.figure, fmt.Errorf("%s did not run", b.benchmark))
			continue
		}
		h.Figures.AtMost(b.figure, r.ns, b.boundNS, "%s: %d B/op, %d allocs/op, best of %d runs%s",
			b.benchmark, r.bytes, r.allocs, r.runs, worstNote(results, b.worst))
	}
	return nil
}

func worstNote(results map[string]benchResult, name string) string {
	r, ok := results[name]
	if !ok {
		return ""
	}
	return fmt.Sprintf("; in the worst case, every engine at another depth, %.0f ns", r.ns)
}

// benchPattern matches the benchmarks of one package by the first part of their names.
func benchPattern(dir string) string {
	var names []string
	for _, b := range benchBounds() {
		if b.dir == dir {
			names = append(names, firstPart(b.benchmark))
			if b.worst != "" {
				names = append(names, firstPart(b.worst))
			}
		}
	}
	slices.Sort(names)
	return "^(" + strings.Join(slices.Compact(names), "|") + ")$"
}

func firstPart(benchmark string) string {
	name, _, _ := strings.Cut(benchmark, "/")
	return name
}

// benchResult is one benchmark: the least time of its runs, since others on the machine only ever add to it.
type benchResult struct {
	ns            float64
	bytes, allocs int64
	runs          int
}

var (
	benchLine  = regexp.MustCompile(`^(Benchmark\S+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op(.*)$`)
	benchBytes = regexp.MustCompile(`\s(\d+) B/op`)
	benchAlloc = regexp.MustCompile(`\s(\d+) allocs/op`)
)

// readBench reads the output of go test -bench -benchmem.
func readBench(out string) map[string]benchResult {
	results := map[string]benchResult{}
	for line := range strings.Lines(out) {
		m := benchLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		ns, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			continue
		}
		r := results[m[1]]
		if r.runs == 0 || ns < r.ns {
			r.ns = ns
		}
		r.bytes, r.allocs = number(benchBytes, m[3]), number(benchAlloc, m[3])
		r.runs++
		results[m[1]] = r
	}
	return results
}

func number(pattern *regexp.Regexp, s string) int64 {
	m := pattern.FindStringSubmatch(s)
	if m == nil {
		return 0
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
