// Command interop runs the ZMTP client and the follower of KV events against real libzmq, in a process of its own: what
// the unit tests hold against scripts and against another implementation. Every figure is one line of JSON on standard
// output with the bound that it must keep; the exit code is 1 when one falls short.
//
//	python3 -m venv /tmp/venv && /tmp/venv/bin/pip install pyzmq
//	go run ./deploy/checks/interop --python /tmp/venv/bin/python
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// checks is one run.
type checks struct {
	python  string
	dir     string // for sockets
	figures *check.Figures
}

// limit ends a check that hangs.
const limit = 2 * time.Minute

func main() {
	python := flag.String("python", "python3", "a Python that has pyzmq")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := run(ctx, *python)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("fell short: %s", strings.Join(failed, ", "))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		stop()
		os.Exit(1)
	}
}

// run measures everything and returns the figures that fell short.
func run(ctx context.Context, python string) ([]string, error) {
	dir, err := os.MkdirTemp("", "interop")
	if err != nil {
		return nil, fmt.Errorf("make a folder for sockets: %w", err)
	}
	defer os.RemoveAll(dir)
	c := &checks{python, dir, check.NewFigures(os.Stdout)}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"zmtp_subscribe", c.subscribe},
		{"zmtp_replay", c.replay},
		{"zmtp_heartbeat", c.heartbeat},
		{"zmtp_silence", c.silence},
		{"follow_lost", c.followLost},
		{"follow_restart", c.followRestart},
		{"follow_flood", c.followFlood},
		{"follow_bound", c.followBound},
	} {
		ctx, cancel := context.WithTimeout(ctx, limit)
		if err := part.run(ctx); err != nil {
			c.figures.Broken(part.name, err)
		}
		cancel()
	}
	return c.figures.Failed(), nil
}
