package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

const (
	labMesh  = "lab"
	labToken = "token"
)

// hosts are hosts of a network, on each an engine and an agent.
type hosts struct {
	h     *check.Harness
	ctx   context.Context // of the processes
	net   *lab.Net
	certs string
	all   []*host
}

// host is one of them.
type host struct {
	hosts         *hosts
	number        int // from 1
	engine, agent *check.Process
}

func (x *host) name() string    { return x.hosts.net.Name(x.number) }
func (x *host) addr() string    { return x.hosts.net.Addr(x.number) }
func (x *host) engine0() string { return x.name() + "/engine0" }

// newHosts makes the network and starts so many hosts.
func newHosts(ctx context.Context, h *check.Harness, n int) (_ *hosts, err error) {
	l := &hosts{h: h, ctx: ctx, certs: filepath.Join(h.Dir, "certs")}
	if l.net, err = lab.NewNet(ctx, n); err != nil {
		return nil, err
	}
	for i := range n {
		l.all = append(l.all, &host{hosts: l, number: i + 1})
	}
	if err := l.certify(ctx); err != nil {
		return nil, err
	}
	for _, x := range l.all {
		if err := errors.Join(x.startEngine(), x.startAgent()); err != nil {
			return nil, err
		}
	}
	return l, check.Await(ctx, time.Minute, "all agents to know all engines", func() bool { return l.whole(ctx, l.all) })
}

func (l *hosts) certify(ctx context.Context) error {
	args := []string{l.h.Bin, "cert", "--dir", l.certs, "--mesh-id", labMesh}
	for _, x := range l.all {
		args = append(args, x.name())
	}
	if _, err := (check.Command{Dir: l.h.Dir, Args: args}).Run(ctx); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.h.Dir, "token"), []byte(labToken), 0o600)
}

func (x *host) start(name string, args ...string) (*check.Process, error) {
	h := x.hosts.h
	all := x.hosts.net.Command(x.number, append([]string{h.Bin}, args...)...)
	return h.StartCommand(x.hosts.ctx, check.Command{Dir: h.Root, Args: all, Log: filepath.Join(h.Dir, x.name()+"-"+name+".log")}, x.name())
}

func (x *host) startEngine() (err error) {
	x.engine, err = x.start("engine", "simengine", "--listen", "127.0.0.1:8000", "--answer-tokens", "64", "--speed", "4")
	return err
}

func (x *host) startAgent() (err error) {
	l := x.hosts
	args := []string{
		"agent", "--mesh-id", labMesh, "--name", x.name(), "--certs", l.certs, "--engine", "http://127.0.0.1:8000",
		"--http", x.addr() + ":7080", "--quic-bind", x.addr() + ":7081", "--gossip-bind", x.addr() + ":7082",
		"--debug", x.addr() + ":7083", "--debug-token-file", filepath.Join(l.h.Dir, "token"),
	}
	for _, seed := range l.all[:3] {
		args = append(args, "--join", seed.addr()+":7081")
	}
	x.agent, err = x.start("agent", args...)
	return err
}

// kill ends what runs on a host as a loss of power would, but for its address, which still answers.
func (x *host) kill() {
	x.agent.Kill()
	x.engine.Kill()
}

// crossed is what passed the cable of a host, in bytes of IP.
func (x *host) crossed(ctx context.Context) (w wire, err error) {
	text, err := lab.IP(ctx, "-n", x.name(), "-s", "-j", "link", "show", "eth0")
	if err != nil {
		return w, err
	}
	type direction struct{ Bytes, Packets float64 }
	var links []struct {
		Stats struct{ RX, TX direction } `json:"stats64"`
	}
	if err := json.Unmarshal([]byte(text), &links); err != nil || len(links) != 1 {
		return w, fmt.Errorf("read counters of %s: %w: %s", x.name(), err, check.Tail(text, 200))
	}
	const frame = 14 // of Ethernet
	s := &links[0].Stats
	return wire{in: s.RX.Bytes - frame*s.RX.Packets, out: s.TX.Bytes - frame*s.TX.Packets}, nil
}
