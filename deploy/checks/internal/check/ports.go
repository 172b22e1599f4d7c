package check

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
)

const (
	// lowestPort is above the ports that the README and other programs have by habit.
	lowestPort = 10_000
	// enoughPorts is the least range that two runs on one machine are likely to share without meeting.
	enoughPorts = 2_000
)

// Ports hands out ports for processes that bind them a while later. Port 0 would not do: the kernel draws from few
// thousand and returns the same one again once it is closed, and it may give it to somebody's connection meanwhile. These
// are ports that the kernel gives to nobody, each handed out once. It is safe for concurrent use.
type Ports struct {
	first, end int // half-open

	mu   sync.Mutex
	next int
	left int // not handed out yet
}

// NewPorts begins at random, so that two runs at the same time have different ones.
func NewPorts() *Ports {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range") // elsewhere than on Linux there is none
	first, end := portRange(string(text))
	return &Ports{first: first, end: end, next: first + rand.IntN(end-first), left: end - first}
}

// portRange returns ports outside the kernel's own, which text holds: those below, else those above, and where neither
// are enough all, which at least come once.
func portRange(text string) (first, end int) {
	const all = 1 << 16
	low, high := 32_768, 60_999
	if n, _ := fmt.Sscan(text, &low, &high); n != 2 {
		low, high = 32_768, 60_999
	}
	switch {
	case low-lowestPort >= enoughPorts:
		return lowestPort, low
	case all-high-1 >= enoughPorts:
		return high + 1, all
	}
	return lowestPort, all
}

// Addr returns an address on loopback that was not returned before, and that nothing is bound to at this moment, neither
// with TCP nor with UDP.
func (p *Ports) Addr(ctx context.Context) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; p.left > 0 && ctx.Err() == nil; p.left-- {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.next))
		if p.next++; p.next == p.end {
			p.next = p.first
		}
		if isFree(ctx, addr) {
			p.left--
			return addr, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return "", errors.New("find a free port on loopback: none is left")
}

// isFree reports whether addr can be bound with TCP and UDP.
func isFree(ctx context.Context, addr string) bool {
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer l.Close()
	u, err := listen.ListenPacket(ctx, "udp", addr)
	if err != nil {
		return false
	}
	_ = u.Close()
	return true
}
