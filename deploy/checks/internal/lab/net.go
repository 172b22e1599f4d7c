package lab

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

const (
	netPrefix = "10.77.0."
	// netSelf is where the clients are: the bridge.
	netSelf = netPrefix + "254"
	// netMSS lets TCP of the clients through where a path is narrow; agents' own packets are what is looked at.
	netMSS = "1100"
)

// Net is a network of hosts, each a network namespace with one cable to a bridge, which is where this process is. It lives
// in namespaces of this process (see Inside), and ends with it.
type Net struct{ hosts int }

// NewNet makes a network of so many hosts, which are counted from 1.
func NewNet(ctx context.Context, hosts int) (*Net, error) {
	// ip keeps names of namespaces below /run, where only the owner of the machine may write.
	if _, err := (check.Command{Args: []string{"mount", "-t", "tmpfs", "lab", "/run"}}).Run(ctx); err != nil {
		return nil, err
	}
	n := &Net{hosts}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("link set lo up")
	// Left to itself it takes the address of one of its cables, and another when that is pulled.
	line("link add bridge0 address 02:00:00:00:00:fe type bridge")
	line("link set bridge0 addrgenmode none up") // IPv6 would look for its neighbours on all cables
	line("addr add %s/24 dev bridge0", netSelf)
	line("route change %s0/24 dev bridge0 advmss %s", netPrefix, netMSS)
	for i := range hosts {
		line("netns add %s", n.Name(i+1))
		line("link add %s type veth peer name eth0 netns %s", cable(i+1), n.Name(i+1))
		line("link set %s master bridge0 addrgenmode none up", cable(i+1))
	}
	if err := batch(ctx, b.String()); err != nil {
		return nil, err
	}
	for i := range hosts {
		b.Reset()
		line("addr add %s/24 dev eth0", n.Addr(i+1))
		line("link set eth0 addrgenmode none up")
		line("link set lo up")
		line("route change %s0/24 dev eth0 advmss %s", netPrefix, netMSS)
		if err := batch(ctx, b.String(), "-n", n.Name(i+1)); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Name is how host i is called.
func (n *Net) Name(i int) string { return fmt.Sprint("h", i) }

// Addr is the address of host i.
func (n *Net) Addr(i int) string { return fmt.Sprint(netPrefix, i) }

// cable is the end of host i's cable at the bridge.
func cable(i int) string { return fmt.Sprint("cable", i) }

// Command is what runs a program on host i. It becomes the program, so that the process is the program.
func (n *Net) Command(i int, args ...string) []string {
	return append([]string{"ip", "netns", "exec", n.Name(i)}, args...)
}

// Plug takes the cable of host i out, or puts it back.
func (n *Net) Plug(ctx context.Context, i int, in bool) error {
	args := []string{"link", "set", cable(i), "nomaster"}
	if in {
		args = []string{"link", "set", cable(i), "master", "bridge0"}
	}
	_, err := IP(ctx, args...)
	return err
}

// Narrow drops packets of more than so many bytes on their way to and from host i, which does not know.
func (n *Net) Narrow(ctx context.Context, i int, bytes string) error {
	_, err := IP(ctx, "link", "set", cable(i), "mtu", bytes)
	return err
}

// Slow lets no more than a rate, in tc's words, through to host i; "" for what the machine can.
func (n *Net) Slow(ctx context.Context, i int, rate string) error {
	args := []string{"tc", "qdisc", "del", "dev", cable(i), "root"}
	if rate != "" {
		args = []string{"tc", "qdisc", "replace", "dev", cable(i), "root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms"}
	}
	_, err := check.Command{Args: args}.Run(ctx)
	return err
}

// Refuse has host from fail to send to the given UDP port of host to, as a firewall of its own does; with on false it may again.
func (n *Net) Refuse(ctx context.Context, on bool, from, to int, port string) error {
	_, err := IP(ctx, "-n", n.Name(from), "rule", verb(on), "to", n.Addr(to), "ipproto", "udp", "dport", port, "blackhole")
	return err
}

// Lose loses all UDP packets from one host to another, without a word to either; with on false they arrive again.
func (n *Net) Lose(ctx context.Context, on bool, from, to int) error {
	_, err := IP(ctx, "-n", n.Name(to), "rule", verb(on), "from", n.Addr(from), "ipproto", "udp", "iif", "eth0", "blackhole")
	return err
}

func verb(on bool) string {
	if on {
		return "add"
	}
	return "del"
}

// IP runs the command ip, and returns what it prints.
func IP(ctx context.Context, args ...string) (string, error) {
	return check.Command{Args: append([]string{"ip"}, args...)}.Run(ctx)
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
