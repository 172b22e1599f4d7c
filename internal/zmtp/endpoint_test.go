package zmtp

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEndpoint(t *testing.T) {
	tests := []struct{ give, network, address, wrong string }{
		{give: "tcp://10.0.0.1:5557", network: "tcp", address: "10.0.0.1:5557"},
		{give: "tcp://engine-7:5557", network: "tcp", address: "engine-7:5557"},
		{give: "tcp://*:5557", network: "tcp", address: ":5557"},
		{give: "tcp://*:0", network: "tcp", address: ":0"},
		{give: "tcp://[::1]:5557", network: "tcp", address: "[::1]:5557"},
		{give: "tcp://[fe80::1%eth0]:5557", network: "tcp", address: "[fe80::1%eth0]:5557"},
		{give: "ipc:///run/engine/kv.sock", network: "unix", address: "/run/engine/kv.sock"},
		{give: "ipc://@abstract", network: "unix", address: "@abstract"},
		{give: "", wrong: "must be tcp://HOST:PORT or ipc://PATH"},
		{give: "ipc://", wrong: "must be tcp://HOST:PORT or ipc://PATH"},
		{give: "udp://10.0.0.1:5557", wrong: "must be tcp://HOST:PORT or ipc://PATH"},
		{give: "10.0.0.1:5557", wrong: "must be tcp://HOST:PORT or ipc://PATH"},
		{give: "tcp://10.0.0.1", wrong: "must be tcp://HOST:PORT"},
		{give: "tcp://::1:5557", wrong: "must be tcp://HOST:PORT"},
		{give: "tcp://10.0.0.1:", wrong: "port from 0 to 65535"},
		{give: "tcp://10.0.0.1:http", wrong: "port from 0 to 65535"},
		{give: "tcp://10.0.0.1:65536", wrong: "port from 0 to 65535"},
	}
	for _, tt := range tests {
		network, address, err := Endpoint(tt.give)
		if network != tt.network || address != tt.address || (err == nil) != (tt.wrong == "") {
			t.Errorf("Endpoint(%q) = %q, %q, %v, want %q, %q", tt.give, network, address, err, tt.network, tt.address)
		}
		if err != nil && !strings.Contains(err.Error(), tt.wrong) {
			t.Errorf("Endpoint(%q) = %v, want it to say %q", tt.give, err, tt.wrong)
		}
	}
}

func TestListenReplacesOnlyAnAbandonedSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kv.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix", path); err == nil {
		t.Error("a socket in use was replaced")
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	ln, err := Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatalf("listen at an abandoned socket: %v", err)
	}
	ln.Close()
	if err := os.WriteFile(path, []byte("a user's file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix", path); err == nil {
		t.Error("a file that is no socket was replaced")
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if conn, err := Dial(ctx, "tcp", "127.0.0.1:1"); err == nil {
		conn.Close()
		t.Error("Dial went on")
	}
}
