package zmtp

import (
	"context"
	"fmt"
	"net"
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
	if host == "*" {
		host = ""
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

// Dial connects to an endpoint. A dead peer is noticed within about 25 s also when neither side speaks.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout:         2 * time.Second,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return d.DialContext(ctx, network, address)
}
