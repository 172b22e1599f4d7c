// Command serving checks a mesh that serves requests, from outside: it starts whole agents and simulated engines as
// processes of its own, sends them real requests, ends or stops some of them, and measures. Every figure is one line of
// JSON on standard output with the bound that it must keep; progress goes to standard error. The exit code is 1 when a
// figure falls short. Run it through deploy/checks/serve, which builds what it needs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// check is a group of figures that are measured together.
type check struct {
	name  string
	run   func(context.Context, *harness) error
	limit time.Duration // a check that takes longer has failed
	short bool          // part of --short
}

// checks are in the order in which they run: what is quick to fail comes first.
func checks() []check {
	return []check{
		{"keys", checkKeys, 5 * time.Minute, false},
		{"overlap", checkOverlap, 2 * time.Minute, true},
		{"sdk", checkSDK, 10 * time.Minute, true}, // building the Go client takes 100 s of CPU, once
		{"kill", checkKill, 4 * time.Minute, true},
		{"aborts", checkAborts, 5 * time.Minute, true},
		{"demo", checkDemo, 3 * time.Minute, true},
		{"bench", checkBench, 5 * time.Minute, false},
		{"clone", checkClone, 45 * time.Minute, false},
	}
}

// nestedVariable is set for the .ci/run of a clone: the check of a clone inside it would never end.
const nestedVariable = "KVMESH_CHECKS_NESTED"

func main() {
	short := flag.Bool("short", false, "only what .ci/run needs: below 5 minutes")
	only := flag.String("only", "", "names of the checks to run, separated by commas: "+strings.Join(names(checks()), ", "))
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(checks(), *only, *short)
	if err == nil {
		err = runAll(ctx, chosen, *short)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "serving:", err)
		stop()
		os.Exit(1)
	}
}

func names(all []check) []string {
	var out []string
	for _, c := range all {
		out = append(out, c.name)
	}
	return out
}

// choose returns the checks that were asked for. Names given with --only win over --short, which then only makes them
// smaller.
func choose(all []check, only string, short bool) ([]check, error) {
	if only == "" {
		return slices.DeleteFunc(all, func(c check) bool {
			return short && !c.short || c.name == "clone" && os.Getenv(nestedVariable) != ""
		}), nil
	}
	wanted := strings.Split(only, ",")
	for _, name := range wanted {
		if !slices.Contains(names(all), name) {
			return nil, fmt.Errorf("no check is called %q; there are %s", name, strings.Join(names(all), ", "))
		}
	}
	return slices.DeleteFunc(all, func(c check) bool { return !slices.Contains(wanted, c.name) }), nil
}

// runAll runs the checks one after the other: they measure time on a machine that may have two cores.
func runAll(ctx context.Context, all []check, short bool) error {
	h, err := newHarness(short)
	if err != nil {
		return err
	}
	for _, c := range all {
		h.runCheck(ctx, c)
	}
	return h.close()
}

func (h *harness) runCheck(ctx context.Context, c check) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	h.say("%s: begins", c.name)
	start := time.Now()
	if err := c.run(ctx, h); err != nil {
		h.figures.broken(c.name, err)
	}
	h.say("%s: ended after %.1f s", c.name, time.Since(start).Seconds())
}
