package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// checkClone takes the repository as committed and does with it what a newcomer and the CI machine do.
func checkClone(ctx context.Context, h *harness) error {
	dir := filepath.Join(h.dir, "clone")
	if _, err := run(ctx, h.root, nil, "git", "clone", "--quiet", "--no-hardlinks", h.root, dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	h.cloneStep(ctx, dir, "clone_make_demo", 300*time.Second, "make", "demo")
	h.cloneStep(ctx, dir, "clone_make_test", 20*time.Minute, "make", "test")
	h.cloneStep(ctx, dir, "clone_ci_run", 1500*time.Second, "./.ci/run")
	return nil
}

// cloneStep runs one command in the clone: its seconds are the figure, and a failure of the command a second one.
func (h *harness) cloneStep(ctx context.Context, dir, name string, bound time.Duration, command string, args ...string) {
	ctx, cancel := context.WithTimeout(ctx, bound+time.Minute)
	defer cancel()
	h.say("%s: %s %s", name, command, strings.Join(args, " "))
	start := time.Now()
	out, err := run(ctx, dir, []string{nestedVariable + "=1"}, command, args...)
	seconds := time.Since(start).Seconds()
	if err != nil {
		h.figures.broken(name, err)
		return
	}
	h.figures.atMost(name+"_seconds", seconds, bound.Seconds(), "exit code 0, %d packages passed", passedPackages(out))
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
