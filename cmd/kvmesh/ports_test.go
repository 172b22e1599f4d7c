package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestAgentWaitsForItsPorts(t *testing.T) {
	taken := fmt.Errorf("listen for requests: %w", syscall.EADDRINUSE)
	other := errors.New("bad certificate")
	tests := []struct {
		name  string
		fails int   // of the calls of open
		err   error // of those
		waits time.Duration
		want  error
	}{
		{"free", 0, nil, 0, nil},
		{"taken for 3 s", 6, taken, 3 * time.Second, nil},
		{"taken for good", 1000, taken, 10 * time.Second, syscall.EADDRINUSE},
		{"another fault", 1000, other, 0, other},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				begun, calls := time.Now(), 0
				got, err := awaitPorts(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), 10*time.Second, func() (int, error) {
					if calls++; calls <= tt.fails {
						return 0, tt.err
					}
					return 1, nil
				})
				if !errors.Is(err, tt.want) || (got == 1) != (tt.want == nil) || time.Since(begun) != tt.waits {
					t.Errorf("got %d, %v after %v", got, err, time.Since(begun))
				}
				if lines := strings.Count(log.String(), "\n"); lines != min(int(tt.waits), 1) {
					t.Errorf("%d lines: %s", lines, &log)
				}
			})
		})
	}
}

func TestAgentThatWaitsForItsPortsCanBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := awaitPorts(ctx, slog.New(slog.DiscardHandler), time.Minute, func() (int, error) { return 0, syscall.EADDRINUSE })
		if err == nil || ctx.Err() == nil {
			t.Errorf("returned %v before it was stopped", err)
		}
	})
}
