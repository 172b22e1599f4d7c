package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

const (
	labMesh = "lab"
	labNet  = "10.77.0."
	// labSelf is where the clients are: the bridge.
	labSelf = labNet + "254"
	// labMSS lets TCP of the clients through where a path is narrow; agents' own packets are what is looked at.
	labMSS   = "1100"
	labToken = "token"
)

// lab is a network of hosts, each a network namespace with one cable to a bridge, and on each an engine and an agent. It
// lives in namespaces of this process, and ends with it.
type lab struct {
	h     *check.Harness
	ctx   context.Context // of the processes
	certs string
	hosts []*host
}

// host is one of them.
type host struct {
	lab           *lab
	number        int // from 1; the last part of its address
	engine, agent *check.Process
}

func (x *host) name() string    { return fmt.Sprintf("h%d", x.number) }
func (x *host) addr() string    { return fmt.Sprint(labNet, x.number) }
func (x *host) cable() string   { return fmt.Sprintf("cable%d", x.number) } // its end at the bridge
func (x *host) engine0() string { return x.name() + "/engine0" }

// ip runs the command ip.
func ip(ctx context.Context, args ...string) (string, error) {
	return check.Command{Args: append([]string{"ip"}, args...)}.Run(ctx)
}

// newLab makes the network and starts so many hosts.
func newLab(ctx context.Context, h *check.Harness, n int) (*lab, error) {
	l := &lab{h: h, ctx: ctx, certs: filepath.Join(h.Dir, "certs")}
	for i := range n {
		l.hosts = append(l.hosts, &host{lab: l, number: i + 1})
	}
	if err := l.wire(ctx); err != nil {
		return nil, err
	}
	if err := l.certify(ctx); err != nil {
		return nil, err
	}
	for _, x := range l.hosts {
		if err := errors.Join(x.startEngine(), x.startAgent()); err != nil {
			return nil, err
		}
	}
	return l, check.Await(ctx, time.Minute, "all agents to know all engines", func() bool { return l.whole(ctx, l.hosts) })
}

// wire makes the bridge, and a namespace and a cable for each host.
func (l *lab) wire(ctx context.Context) error {
	// ip keeps names of namespaces below /run, where only the owner of the machine may write.
	if _, err := (check.Command{Args: []string{"mount", "-t", "tmpfs", "lab", "/run"}}).Run(ctx); err != nil {
		return err
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("link set lo up")
	line("link add bridge0 type bridge")
	line("link set bridge0 addrgenmode none up") // IPv6 would look for its neighbours on all cables
	line("addr add %s/24 dev bridge0", labSelf)
	line("route change %s0/24 dev bridge0 advmss %s", labNet, labMSS)
	for _, x := range l.hosts {
		line("netns add %s", x.name())
		line("link add %s type veth peer name eth0 netns %s", x.cable(), x.name())
		line("link set %s master bridge0 addrgenmode none up", x.cable())
	}
	if err := batch(ctx, b.String()); err != nil {
		return err
	}
	for _, x := range l.hosts {
		b.Reset()
		line("addr add %s/24 dev eth0", x.addr())
		line("link set eth0 addrgenmode none up")
		line("link set lo up")
		line("route change %s0/24 dev eth0 advmss %s", labNet, labMSS)
		if err := batch(ctx, b.String(), "-n", x.name()); err != nil {
			return err
		}
	}
	return nil
}

// batch runs lines of ip's commands.
func batch(ctx context.Context, lines string, args ...string) error {
	cmd := exec.CommandContext(ctx, "ip", append(args, "-batch", "-")...)
	cmd.Stdin = strings.NewReader(lines)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip -batch: %w: %s", err, check.Tail(string(out), 300))
	}
	return nil
}

func (l *lab) certify(ctx context.Context) error {
	args := []string{l.h.Bin, "cert", "--dir", l.certs, "--mesh-id", labMesh}
	for _, x := range l.hosts {
		args = append(args, x.name())
	}
	if _, err := (check.Command{Dir: l.h.Dir, Args: args}).Run(ctx); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.h.Dir, "token"), []byte(labToken), 0o600)
}

func (x *host) start(name string, args ...string) (*check.Process, error) {
	h := x.lab.h
	// ip becomes the program, so that the process is the program.
	all := append([]string{"ip", "netns", "exec", x.name(), h.Bin}, args...)
	return h.StartCommand(x.lab.ctx, check.Command{Dir: h.Root, Args: all, Log: filepath.Join(h.Dir, x.name()+"-"+name+".log")}, x.name())
}

func (x *host) startEngine() (err error) {
	x.engine, err = x.start("engine", "simengine", "--listen", "127.0.0.1:8000", "--answer-tokens", "64", "--speed", "4")
	return err
}

func (x *host) startAgent() (err error) {
	l := x.lab
	args := []string{
		"agent", "--mesh-id", labMesh, "--name", x.name(), "--certs", l.certs, "--engine", "http://127.0.0.1:8000",
		"--http", x.addr() + ":7080", "--quic-bind", x.addr() + ":7081", "--gossip-bind", x.addr() + ":7082",
		"--debug", x.addr() + ":7083", "--debug-token-file", filepath.Join(l.h.Dir, "token"),
	}
	for _, seed := range l.hosts[:3] {
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

// unplug takes the cable out, and plug puts it back.
func (x *host) unplug(ctx context.Context) error {
	_, err := ip(ctx, "link", "set", x.cable(), "nomaster")
	return err
}

// narrow drops packets of more than so many bytes on their way to and from a host, which does not know.
func (x *host) narrow(ctx context.Context, bytes string) error {
	_, err := ip(ctx, "link", "set", x.cable(), "mtu", bytes)
	return err
}

// block drops what a host sends to another one's UDP port; with on false it lets it pass again.
func (x *host) block(ctx context.Context, on bool, to *host, port string) error {
	verb := "del"
	if on {
		verb = "add"
	}
	_, err := ip(ctx, "-n", x.name(), "rule", verb, "to", to.addr(), "ipproto", "udp", "dport", port, "blackhole")
	return err
}

// crossed is what passed the cable of a host, in bytes of IP.
func (x *host) crossed(ctx context.Context) (w wire, err error) {
	text, err := ip(ctx, "-n", x.name(), "-s", "-j", "link", "show", "eth0")
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
