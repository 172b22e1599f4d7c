// Package check is what the programs of deploy/checks share: figures as lines of JSON on standard output, each with the
// bound that it must keep, progress on standard error, processes and ports of their own, and the choice of what to run.
// It is for those programs alone.
package check

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Check is a group of figures that are measured together.
type Check struct {
	Name  string
	Run   func(context.Context, *Harness) error
	Limit time.Duration // a check that takes longer has failed
	Short bool          // part of --short
	Asked bool          // run only when it is named
}

// Main runs the checks that the command line asks for, and ends the process: with 1 when a figure falls short.
func Main(program string, all []Check) {
	short := flag.Bool("short", false, "only what .ci/run needs, and less of it")
	only := flag.String("only", "", "names of the checks to run, separated by commas: "+strings.Join(names(all), ", "))
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(all, *only, *short)
	if err == nil {
		err = runAll(ctx, chosen, *short)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		stop()
		os.Exit(1)
	}
}

func names(all []Check) []string {
	var out []string
	for _, c := range all {
		out = append(out, c.Name)
	}
	return out
}

// choose returns the checks that were asked for. Names given with --only win over --short, which then only makes them
// smaller.
func choose(all []Check, only string, short bool) ([]Check, error) {
	if only == "" {
		return slices.DeleteFunc(all, func(c Check) bool { return short && !c.Short || c.Asked }), nil
	}
	wanted := strings.Split(only, ",")
	for _, name := range wanted {
		if !slices.Contains(names(all), name) {
			return nil, fmt.Errorf("no check is called %q; there are %s", name, strings.Join(names(all), ", "))
		}
	}
	return slices.DeleteFunc(all, func(c Check) bool { return !slices.Contains(wanted, c.Name) }), nil
}

// runAll runs the checks one after the other: they measure time on a machine that may have two cores.
func runAll(ctx context.Context, all []Check, short bool) error {
	h, err := newHarness(short)
	if err != nil {
		return err
	}
	for _, c := range all {
		h.runCheck(ctx, c)
	}
	return h.close()
}

// Harness is what all checks share.
type Harness struct {
	Root    string // of the repository
	Bin     string // kvmesh
	Dir     string // logs and files of this run; kept when something failed
	Short   bool
	Figures *Figures
	Ports   *Ports
}

func newHarness(short bool) (*Harness, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	h := &Harness{
		Root: root, Bin: filepath.Join(root, "bin", "kvmesh"), Short: short,
		Figures: NewFigures(os.Stdout), Ports: NewPorts(),
	}
	for _, file := range []string{h.Bin, filepath.Join(root, "go.mod")} {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("run this through the script in deploy/checks: %w", err)
		}
	}
	h.Dir, err = os.MkdirTemp("", "kvmesh-checks-")
	return h, err
}

func (h *Harness) runCheck(ctx context.Context, c Check) {
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	h.Say("%s: begins", c.Name)
	start := time.Now()
	if err := c.Run(ctx, h); err != nil {
		h.Figures.Broken(c.Name, err)
	}
	h.Say("%s: ended after %.1f s", c.Name, time.Since(start).Seconds())
}

// close sums up: an error when a figure fell short.
func (h *Harness) close() error {
	if failed := h.Figures.Failed(); len(failed) > 0 {
		return fmt.Errorf("%d of %d figures fall short: %s; logs of the processes are in %s",
			len(failed), h.Figures.total, strings.Join(failed, ", "), h.Dir)
	}
	h.Say("all %d figures keep their bounds", h.Figures.total)
	return os.RemoveAll(h.Dir)
}

// Say tells whoever watches what is going on.
func (h *Harness) Say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}
