package main

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"
)

const (
	// portsLook is how often an agent that waits for its ports tries to open them.
	portsLook = 500 * time.Millisecond
	// portsMargin is how much longer it waits than it would itself take to drain: what comes after, and slow machines.
	portsMargin = 10 * time.Second
)

// awaitPorts calls open until its error is another than that a port is taken, at most for so long. Whoever has the port may be
// an older agent that drains: one that gave up at once would be started again and again by its supervisor, or not at all.
func awaitPorts[T any](ctx context.Context, log *slog.Logger, limit time.Duration, open func() (T, error)) (T, error) {
	begun := time.Now()
	for told := false; ; told = true {
		opened, err := open()
		if !errors.Is(err, syscall.EADDRINUSE) || time.Since(begun) >= limit {
			return opened, err
		}
		if !told {
			log.Warn("a port is taken: waiting for its process to end, which may be an older agent that drains", "at_most", limit, "err", err)
		}
		select {
		case <-time.After(portsLook):
		case <-ctx.Done():
			return opened, err
		}
	}
}
