package simcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/mesh"
)

// backlog is how many connections wait to be accepted: net.core.somaxconn of old, enough for every test.
const backlog = 128

// network is the network of a cluster: UDP as mesh.MemNetwork carries it, and TCP.
type network struct {
	udp *mesh.MemNetwork

	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	port      uint16 // last that was given to a dialing process
}

func newNetwork(seed uint64) *network {
	return &network{udp: mesh.NewMemNetwork(seed), listeners: map[netip.AddrPort]*listener{}, port: 32768}
}

func (n *network) listener(at netip.AddrPort) *listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listeners[at]
}

func (n *network) nextPort() uint16 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.port = max(n.port+1, 32768)
	return n.port
}

// process is whoever holds sockets on a host. When it is killed they are gone at once.
type process struct {
	net  *network
	host netip.Addr

	mu      sync.Mutex
	dead    bool
	sockets map[socket]bool
}

// socket is what ends with its process.
type socket interface{ kill() }

func (n *network) process(host netip.Addr) *process {
	return &process{net: n, host: host, sockets: map[socket]bool{}}
}

// kill ends every socket of the process and lets it open no more.
func (p *process) kill() {
	p.mu.Lock()
	sockets := p.sockets
	p.dead, p.sockets = true, nil
	p.mu.Unlock()
	for s := range sockets {
		s.kill()
	}
}

func (p *process) killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// hold notes a socket; it returns false when the process is dead.
func (p *process) hold(s socket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead {
		p.sockets[s] = true
	}
	return !p.dead
}

func (p *process) drop(s socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sockets, s)
}

// listenPacket opens a UDP socket; it fits mesh.Config.ListenPacket.
func (p *process) listenPacket(netw, addr string) (net.PacketConn, error) {
	c, err := p.net.udp.ListenPacket(netw, addr)
	if err != nil {
		return nil, err
	}
	s := &packets{c, p}
	if !p.hold(s) {
		c.Close()
		return nil, failed("listen", c.LocalAddr(), net.ErrClosed)
	}
	return s, nil
}

// packets is a UDP socket of a process.
type packets struct {
	net.PacketConn
	process *process
}

func (s *packets) kill() { s.PacketConn.Close() }

// WriteTo implements net.PacketConn. A process that is killed loses all its sockets at one moment: without this look its
// others would still tell of the first that is gone.
func (s *packets) WriteTo(b []byte, to net.Addr) (int, error) {
	if s.process.killed() {
		return 0, failed("write", s.LocalAddr(), net.ErrClosed)
	}
	return s.PacketConn.WriteTo(b, to)
}

// Close implements net.PacketConn.
func (s *packets) Close() error {
	s.process.drop(s)
	return s.PacketConn.Close()
}

// SetReadBuffer does nothing; with it, quic-go does not warn of small buffers.
func (s *packets) SetReadBuffer(int) error { return nil }

// SetWriteBuffer does nothing.
func (s *packets) SetWriteBuffer(int) error { return nil }

// listen opens a TCP listener at an IP address and port; it fits node.Config.Listen.
func (p *process) listen(_, addr string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	l := &listener{process: p, at: at, queue: make(chan *conn, backlog), done: make(chan struct{})}
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.net.listeners[at] != nil {
		return nil, failed("listen", l.Addr(), os.NewSyscallError("bind", syscall.EADDRINUSE))
	}
	if !p.hold(l) {
		return nil, failed("listen", l.Addr(), net.ErrClosed)
	}
	p.net.listeners[at] = l
	return l, nil
}

// dial opens a TCP connection; it fits http.Transport.DialContext.
func (p *process) dial(_ context.Context, _, addr string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	refused := failed("dial", net.TCPAddrFromAddrPort(at), os.NewSyscallError("connect", syscall.ECONNREFUSED))
	l := p.net.listener(at)
	if l == nil {
		return nil, refused
	}
	up, down := newFlow(), newFlow()
	from := netip.AddrPortFrom(p.host, p.net.nextPort())
	here := &conn{process: p, in: down, out: up, local: from, remote: at}
	there := &conn{process: l.process, in: up, out: down, local: at, remote: from}
	if !p.hold(here) || !l.process.hold(there) || !l.offer(there) {
		here.Close()
		there.Close()
		return nil, refused
	}
	return here, nil
}

func failed(op string, at net.Addr, err error) error {
	return &net.OpError{Op: op, Net: at.Network(), Addr: at, Err: err}
}

// listener is a TCP listener of a process. It is open while the network knows it.
type listener struct {
	process *process
	at      netip.AddrPort
	queue   chan *conn
	done    chan struct{} // closed with the listener
}

// offer puts a connection into the backlog, if the listener is open and has room.
func (l *listener) offer(c *conn) bool {
	l.process.net.mu.Lock()
	defer l.process.net.mu.Unlock()
	if l.process.net.listeners[l.at] != l {
		return false
	}
	select {
	case l.queue <- c:
		return true
	default:
		return false
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, failed("accept", l.Addr(), net.ErrClosed)
	case c := <-l.queue:
		return c, nil
	}
}

// Close implements net.Listener. Connections that were not accepted are reset.
func (l *listener) Close() error {
	l.process.drop(l)
	l.kill()
	return nil
}

func (l *listener) kill() {
	if !l.shut() {
		return
	}
	for {
		select {
		case c := <-l.queue:
			c.kill()
		default:
			return
		}
	}
}

// shut takes the listener off the network; false when it was off already.
func (l *listener) shut() bool {
	l.process.net.mu.Lock()
	defer l.process.net.mu.Unlock()
	if l.process.net.listeners[l.at] != l {
		return false
	}
	delete(l.process.net.listeners, l.at)
	close(l.done)
	return true
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

// conn is one end of a TCP connection.
type conn struct {
	process       *process
	in, out       *flow
	local, remote netip.AddrPort
}

var _ net.Conn = (*conn)(nil)

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	return n, c.wrap("read", err)
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, c.wrap("write", err)
}

func (c *conn) wrap(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return failed(op, c.RemoteAddr(), err)
}

// Close implements net.Conn: what was written still arrives.
func (c *conn) Close() error {
	c.process.drop(c)
	c.out.endWrite()
	c.in.endRead()
	return nil
}

// kill resets the connection.
func (c *conn) kill() {
	c.in.reset()
	c.out.reset()
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.local) }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.in.set(&c.in.readBy, t)
	c.out.set(&c.out.writeBy, t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.set(&c.in.readBy, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.set(&c.out.writeBy, t)
	return nil
}
