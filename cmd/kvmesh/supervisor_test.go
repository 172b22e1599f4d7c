package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"testing"
	"time"
)

func TestSupervisorIsToldWhenTheAgentIsReady(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var looks atomic.Int64
	go tellSupervisor(ctx, func() bool { return looks.Add(1) > 1 })
	hear := func(want string) {
		t.Helper()
		buf := make([]byte, 100)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != want {
			t.Fatalf("got %q, %v, want %q", buf[:n], err, want)
		}
	}
	hear("READY=1")
	if n := looks.Load(); n != 2 {
		t.Errorf("ready after %d looks", n)
	}
	cancel()
	hear("STOPPING=1")
}

// TestUnitLetsAgentsDrain compares the two times in the unit for systemd: who kills before the drain is over cuts streams.
func TestUnitLetsAgentsDrain(t *testing.T) {
	text, err := os.ReadFile("../../deploy/systemd/kvmesh.service")
	if err != nil {
		t.Fatal(err)
	}
	value := func(pattern string) time.Duration {
		t.Helper()
		m := regexp.MustCompile(`(?m)^` + pattern + `=(\d+m)`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in minutes", pattern)
		}
		d, err := time.ParseDuration(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if drain, kill := value("Environment=KVMESH_DRAIN_TIMEOUT"), value("TimeoutStopSec"); kill < drain+10*time.Second {
		t.Errorf("killed after %v, where a drain may take %v", kill, drain)
	}
}
