package mesh

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// memQueue is how many packets wait at a socket of a MemNetwork: about a kernel's default buffer of small packets.
const memQueue = 1024

// MemNetwork is a network of UDP sockets in memory, for tests and simulations of whole meshes: it delays, loses, repeats,
// reorders and cuts packets as it is told, and carries as many bytes as it is told. Under testing/synctest its delays pass
// in fake time. Its methods may be called at any time from any goroutine.
type MemNetwork struct {
	mu     sync.Mutex
	rand   *rand.Rand
	socks  map[netip.AddrPort]*memSock
	port   uint16  // last that was given to a socket bound to port 0
	all    MemLink // every link that has no settings of its own
	links  map[[2]netip.Addr]*memLink
	groups map[netip.Addr]int
	block  func(from, to netip.AddrPort) bool
}

// NewMemNetwork returns a network without delay, loss, bounds or cuts. The seed decides which packets chance hits.
func NewMemNetwork(seed uint64) *MemNetwork {
	return &MemNetwork{
		rand: rand.New(rand.NewPCG(seed, 0)), socks: map[netip.AddrPort]*memSock{}, port: 40000,
		links: map[[2]netip.Addr]*memLink{},
	}
}

// SetDelay sets how long each packet is under way: delay and up to jitter more, so that packets may overtake.
func (n *MemNetwork) SetDelay(delay, jitter time.Duration) {
	n.set(func(l *MemLink) { l.Delay, l.Jitter = delay, jitter })
}

// SetLoss sets the share of packets that are lost, 0 to 1.
func (n *MemNetwork) SetLoss(share float64) { n.set(func(l *MemLink) { l.Loss = share }) }

// SetRepeat sets the share of packets that arrive twice, 0 to 1.
func (n *MemNetwork) SetRepeat(share float64) { n.set(func(l *MemLink) { l.Repeat = share }) }

// SetRate sets how many bytes a second each link carries, with the headers of IP and UDP; 0 lifts the bound. Packets wait
// for their turn, for a moment, and are lost beyond.
func (n *MemNetwork) SetRate(bytesPerSecond int) { n.set(func(l *MemLink) { l.Rate = bytesPerSecond }) }

// SetMTU sets the bytes of the largest packet that passes, with the headers of IP and UDP; larger ones vanish, as on a path
// whose ICMP is filtered. 0 lifts the bound.
func (n *MemNetwork) SetMTU(bytes int) { n.set(func(l *MemLink) { l.MTU = bytes }) }

func (n *MemNetwork) set(change func(*MemLink)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.all)
}

// SetLink gives the packets from one address to another settings of their own, in place of those for all; nil takes them
// away.
func (n *MemNetwork) SetLink(from, to netip.Addr, l *MemLink) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkLocked(from, to).set = l
}

func (n *MemNetwork) linkLocked(from, to netip.Addr) *memLink {
	pair := [2]netip.Addr{from, to}
	l := n.links[pair]
	if l == nil {
		l = &memLink{}
		n.links[pair] = l
	}
	return l
}

// Partition lets packets pass only between addresses of one group. Addresses that are in none form one more. Partition()
// heals all.
func (n *MemNetwork) Partition(groups ...[]netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.groups = map[netip.Addr]int{}
	for i, g := range groups {
		for _, a := range g {
			n.groups[a] = i + 1
		}
	}
}

// Block drops packets for which drop is true, besides what else is lost. It must not call the network. Nil blocks none.
func (n *MemNetwork) Block(drop func(from, to netip.AddrPort) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.block = drop
}

// ListenPacket opens a socket, as net.ListenPacket does for UDP; it fits Config.ListenPacket. The host must be an IP
// address, which need not exist anywhere; port 0 takes a free one.
func (n *MemNetwork) ListenPacket(_, addr string) (net.PacketConn, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for at.Port() == 0 {
		n.port++
		if p := netip.AddrPortFrom(at.Addr(), n.port); n.socks[p] == nil {
			at = p
		}
	}
	if n.socks[at] != nil {
		return nil, fmt.Errorf("listen on %s: address already in use", addr)
	}
	s := &memSock{
		net: n, addr: at, packets: make(chan memPacket, memQueue), closed: make(chan struct{}),
		deadline: make(chan struct{}),
	}
	n.socks[at] = s
	return s, nil
}

// fate returns after how long the copies of a packet of size bytes arrive: none when it is lost.
func (n *MemNetwork) fate(from, to netip.AddrPort, size int) []time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.groups[from.Addr()] != n.groups[to.Addr()] || (n.block != nil && n.block(from, to)) {
		return nil
	}
	l := n.linkLocked(from.Addr(), to.Addr())
	as := &n.all
	if l.set != nil {
		as = l.set
	}
	return l.carry(as, size+int(overhead(to.Addr())), time.Now(), n.rand)
}

// deliver puts a packet into the socket at its address, if one is open and has room.
func (n *MemNetwork) deliver(to netip.AddrPort, p memPacket) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.socks[to]; s != nil {
		select {
		case s.packets <- p:
		default:
		}
	}
}

type memPacket struct {
	from netip.AddrPort
	data []byte
}

// memSock is a socket of a MemNetwork.
type memSock struct {
	net     *MemNetwork
	addr    netip.AddrPort
	packets chan memPacket

	mu       sync.Mutex
	once     sync.Once
	closed   chan struct{}
	deadline chan struct{} // closed when the read deadline is over; replaced by each SetReadDeadline
	timer    *time.Timer
}

var _ net.PacketConn = (*memSock)(nil)

// ReadFrom implements net.PacketConn; as with UDP, what does not fit p is cut off.
func (s *memSock) ReadFrom(p []byte) (int, net.Addr, error) {
	s.mu.Lock()
	deadline := s.deadline
	s.mu.Unlock()
	select {
	case <-s.closed:
		return 0, nil, net.ErrClosed
	case <-deadline:
		return 0, nil, os.ErrDeadlineExceeded
	case pkt := <-s.packets:
		return copy(p, pkt.data), net.UDPAddrFromAddrPort(pkt.from), nil
	}
}

// WriteTo implements net.PacketConn.
func (s *memSock) WriteTo(p []byte, addr net.Addr) (int, error) {
	select {
	case <-s.closed:
		return 0, net.ErrClosed
	default:
	}
	to := addrPort(addr)
	copies := s.net.fate(s.addr, to, len(p))
	if len(copies) == 0 {
		return len(p), nil
	}
	pkt := memPacket{from: s.addr, data: append([]byte(nil), p...)} // readers copy it: one serves for all copies
	for _, d := range copies {
		if d == 0 {
			s.net.deliver(to, pkt)
			continue
		}
		time.AfterFunc(d, func() { s.net.deliver(to, pkt) })
	}
	return len(p), nil
}

// Close implements net.PacketConn.
func (s *memSock) Close() error {
	s.once.Do(func() {
		s.net.mu.Lock()
		defer s.net.mu.Unlock()
		delete(s.net.socks, s.addr)
		close(s.closed)
	})
	return nil
}

// LocalAddr implements net.PacketConn.
func (s *memSock) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(s.addr) }

// SetReadDeadline implements net.PacketConn. A read that waits already keeps its deadline, unless it comes sooner.
func (s *memSock) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil && !s.timer.Stop() {
		s.deadline = make(chan struct{})
	}
	s.timer = nil
	if t.IsZero() {
		return nil
	}
	over := s.deadline
	s.timer = time.AfterFunc(time.Until(t), func() { close(over) })
	return nil
}

// SetDeadline implements net.PacketConn.
func (s *memSock) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetWriteDeadline implements net.PacketConn; writes never wait.
func (s *memSock) SetWriteDeadline(time.Time) error { return nil }

// SetReadBuffer does nothing; with it, quic-go does not warn of small buffers.
func (s *memSock) SetReadBuffer(int) error { return nil }

// SetWriteBuffer does nothing.
func (s *memSock) SetWriteBuffer(int) error { return nil }
