package main

import (
	"context"
	"net"
	"os"
	"time"
)

// readyLook is how often an agent looks whether it is ready, to tell.
const readyLook = 100 * time.Millisecond

// tellSupervisor tells systemd, where its unit has Type=notify, when the agent is ready and when it begins to stop: systemctl
// restart then returns when the agent takes requests again. It returns when ctx ends.
func tellSupervisor(ctx context.Context, ready func() bool) {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	tick := time.NewTicker(readyLook)
	defer tick.Stop()
	for told := false; ; {
		if !told && ready() {
			told = true
			notify(socket, "READY=1")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			notify(socket, "STOPPING=1")
			return
		}
	}
}

// notify sends one message as sd_notify(3) does; a name with @ is one of Linux's abstract sockets, as in package net. Nobody can be
// told that it failed but systemd, which then waits.
func notify(socket, state string) {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state))
}
