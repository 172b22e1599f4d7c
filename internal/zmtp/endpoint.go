package zmtp

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Endpoint splits a ZeroMQ endpoint into what package net takes: tcp://HOST:PORT, where HOST may be * for every interface
// or an IPv6 address in brackets, and ipc://PATH.
func Endpoint(endpoint string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return "unix", path, nil
	}
	addr, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", "", fmt.Errorf("ZeroMQ endpoint (%q) must be tcp://HOST:PORT or ipc://PATH", endpoint)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("ZeroMQ endpoint (%q) must be tcp://HOST:PORT: %w", endpoint, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("ZeroMQ endpoint (%q) must end in a port from 0 to 65535", endpoint)
	}
	if host == "*" {
		host = ""
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

// dialTime is how long a connection may take. A lost first packet is sent again after 1 s; a peer that is back should not
// have to wait for the third.
const dialTime = 2 * time.Second

// keepAlive finds a dead peer within 5 s, for those that cannot be asked for a sign of life.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}

// Dial connects to an endpoint.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime, KeepAliveConfig: keepAlive}
	return d.DialContext(ctx, network, address)
}

// Listen binds an endpoint. A socket file that a dead process left behind is replaced.
func Listen(ctx context.Context, network, address string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, network, address)
	if err == nil || network != "unix" || !abandoned(ctx, address) {
		return ln, err
	}
	if err := os.Remove(address); err != nil {
		return nil, fmt.Errorf("replace socket: %w", err)
	}
	return lc.Listen(ctx, network, address)
}

// abandoned reports whether path is a socket at which nobody listens.
func abandoned(ctx context.Context, path string) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return false
	}
	conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "unix", path)
	if err != nil {
		return true
	}
	conn.Close()
	return false
}
