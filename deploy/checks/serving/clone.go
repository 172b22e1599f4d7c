package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// checkClone takes the repository as committed and does with it what a newcomer and the CI machine do.
func checkClone(ctx context.Context, h *harness) error {
	dir := filepath.Join(h.Dir, "clone")
	if _, err := (check.Command{Dir: h.Root, Args: []string{"git", "clone", "--quiet", "--no-hardlinks", h.Root, dir}}).Run(ctx); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, step := range []cloneStep{
		{"clone_make_demo", 5 * time.Minute, []string{"make", "demo"}},
		{"clone_make_test", 20 * time.Minute, []string{"make", "test"}},
		{"clone_ci_run", 25 * time.Minute, []string{"./.ci/run"}},
	} {
		h.runInClone(ctx, dir, step)
	}
	return nil
}

// cloneStep is one command in the clone. That it ends well, and within the bound, is the figure.
type cloneStep struct {
	name  string
	bound time.Duration
	args  []string
}

func (h *harness) runInClone(ctx context.Context, dir string, step cloneStep) {
	ctx, cancel := context.WithTimeout(ctx, step.bound+time.Minute)
	defer cancel()
	h.Say("%s: %s", step.name, strings.Join(step.args, " "))
	start := time.Now()
	c := check.Command{Dir: dir, Args: step.args, Env: []string{nestedVariable + "=1"}, Log: filepath.Join(h.Dir, step.name+".log")}
	out, err := c.Run(ctx)
	if err != nil {
		h.Figures.Broken(step.name, fmt.Errorf("%w%s", err, list(failures(out))))
		return
	}
	h.Figures.AtMost(step.name+"_seconds", time.Since(start).Seconds(), step.bound.Seconds(),
		"exit code 0, %d packages passed", passedPackages(out))
}

// failures returns the lines of go test that name a failed test or package.
func failures(out string) []string {
	var lines []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "--- FAIL") || strings.HasPrefix(line, "FAIL\t") {
			lines = append(lines, line)
		}
	}
	return lines
}

// passedPackages counts the lines of go test that say ok.
func passedPackages(out string) int {
	n := 0
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "ok \t") {
			n++
		}
	}
	return n
}
