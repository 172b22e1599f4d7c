package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// goldenTests must be there and pass: one that is renamed or lost is missed here.
func goldenTests() []string {
	return []string{"kvevents.TestGoldenVectors", "kvevents.TestDecodeAllocatesNothing", "zmtp.TestReceive"}
}

// checkGolden runs the tests of what decodes KV events, not from the cache of go test.
func checkGolden(ctx context.Context, h *check.Harness) error {
	out, err := check.Command{Dir: h.Root, Args: []string{
		"go", "test", "-json", "-count=1", "./engineagent/kvevents", "./internal/zmtp",
	}}.Run(ctx)
	r, readErr := check.ReadTests(out)
	switch {
	case readErr != nil:
		return readErr
	case r.Passed+r.Failed == 0:
		return err
	}
	h.Figures.Zero("golden_tests_failed", float64(r.Failed), "%d tests and subtests passed", r.Passed)
	missing := r.Missing(goldenTests())
	h.Figures.Zero("golden_tests_missing", float64(len(missing)), "of %v: %v", goldenTests(), missing)
	return nil
}

// fuzzTarget is one target and its share of the ten minutes.
type fuzzTarget struct {
	dir, name string
	time      time.Duration
	short     bool
}

func fuzzTargets() []fuzzTarget {
	return []fuzzTarget{
		{"./engineagent/kvevents", "FuzzDecode", 4 * time.Minute, true},
		{"./engineagent/kvevents", "FuzzDrainer", time.Minute, false},
		{"./internal/zmtp", "FuzzReceive", 4 * time.Minute, true},
		{"./internal/zmtp", "FuzzOpen", time.Minute, false},
	}
}

// checkFuzz fuzzes what reads bytes of engines: ten minutes in all.
func checkFuzz(ctx context.Context, h *check.Harness) error {
	for _, t := range fuzzTargets() {
		if h.Short {
			t.time = 10 * time.Second
		}
		if h.Short && !t.short {
			continue
		}
		out, err := check.Command{Dir: h.Root, Args: []string{
			"go", "test", "-run", "^$", "-fuzz", "^" + t.name + "$", "-fuzztime", t.time.String(), t.dir,
		}}.Run(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		found, note := 0.0, lastLine(out, "fuzz: elapsed")
		if err != nil && !outOfTime(out) {
			found, note = 1, err.Error()
		}
		h.Figures.Zero("fuzz_"+strings.ToLower(strings.TrimPrefix(t.name, "Fuzz"))+"_findings", found, "%v of %s %s: %s", t.time, t.dir, t.name, note)
	}
	return nil
}

// outOfTime reports whether go test failed only because a worker did not stop in time when fuzzing was over, as it does now
// and then (golang/go#75804). A finding has its input written to a file, or ends the worker.
func outOfTime(out string) bool {
	return strings.Contains(out, "context deadline exceeded") && !strings.Contains(out, "Failing input") &&
		!strings.Contains(out, "panic:") && !strings.Contains(out, "unexpectedly")
}

// lastLine returns the last line that begins with a prefix.
func lastLine(out, prefix string) string {
	last := ""
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, prefix) {
			last = strings.TrimSpace(line)
		}
	}
	return last
}

// cache is the folder for what checks install, apart from the machine's.
func cache(h *check.Harness, name string) string {
	return filepath.Join(h.Root, "bin", "cache", name)
}

// checkInterop runs the ZMTP client and the follower of KV events against libzmq, which pyzmq brings.
func checkInterop(ctx context.Context, h *check.Harness) error {
	dir := cache(h, "interop")
	python := filepath.Join(dir, "bin", "python")
	if _, err := os.Stat(python); err != nil {
		for _, args := range [][]string{
			{"python3", "-m", "venv", dir}, {python, "-m", "pip", "install", "-q", "pyzmq"},
		} {
			if _, err := (check.Command{Dir: h.Root, Args: args}).Run(ctx); err != nil {
				return errors.Join(fmt.Errorf("install pyzmq: %w", err), os.RemoveAll(dir)) // half of it is worse than none
			}
		}
	}
	out, err := check.Command{Dir: h.Root, Args: []string{"go", "run", "./deploy/checks/interop", "--python", python}}.Run(ctx)
	if h.Figures.Copy(out) == 0 {
		return fmt.Errorf("no figures: %w", err)
	}
	return nil // what fell short is among them
}
