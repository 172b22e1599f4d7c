package agreed

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// layer gives raft the streams between agents. A server's address is its agent's name.
type layer struct {
	name  string
	open  func(ctx context.Context, agent string, kind byte) (net.Conn, error)
	conns chan net.Conn
	done  chan struct{}

	mu     sync.Mutex
	closed bool
	live   map[net.Conn]struct{} // raft leaves connections open when it shuts down
}

var _ raft.StreamLayer = (*layer)(nil)

func newLayer(name string, open func(context.Context, string, byte) (net.Conn, error)) *layer {
	return &layer{name: name, open: open, conns: make(chan net.Conn), done: make(chan struct{}), live: map[net.Conn]struct{}{}}
}

// serve gives conn to raft and returns when raft is done with it.
func (l *layer) serve(conn net.Conn) {
	tracked := l.track(conn)
	if tracked == nil {
		return
	}
	defer tracked.Close()
	select {
	case l.conns <- tracked:
		<-tracked.over
	case <-l.done:
	}
}

// Accept implements net.Listener.
func (l *layer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Dial implements raft.StreamLayer.
func (l *layer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := l.open(ctx, string(address), streamRaft)
	if err != nil {
		return nil, err
	}
	if tracked := l.track(conn); tracked != nil {
		return tracked, nil
	}
	conn.Close()
	return nil, net.ErrClosed
}

// Close implements net.Listener: it ends all connections.
func (l *layer) Close() error {
	l.mu.Lock()
	live := l.live
	if !l.closed {
		l.closed = true
		close(l.done)
	}
	l.live = nil
	l.mu.Unlock()
	for c := range live {
		c.Close()
	}
	return nil
}

// Addr implements net.Listener.
func (l *layer) Addr() net.Addr { return agentAddr(l.name) }

// track returns conn as one that ends with the layer, or nil where that has ended.
func (l *layer) track(conn net.Conn) *trackedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	t := &trackedConn{Conn: conn, over: make(chan struct{}), writing: make(chan struct{}, 1)}
	t.release = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.live, t)
	}
	l.live[t] = struct{}{}
	return t
}

// trackedConn tells when it was closed, and is never closed during a write, which a stream of QUIC does not allow.
type trackedConn struct {
	net.Conn
	over    chan struct{}
	release func()
	closing atomic.Bool
	writing chan struct{} // holds one value while something is written
}

// Write implements net.Conn.
func (t *trackedConn) Write(p []byte) (int, error) {
	t.writing <- struct{}{}
	defer func() { <-t.writing }()
	if t.closing.Load() {
		return 0, net.ErrClosed
	}
	return t.Conn.Write(p)
}

// SetDeadline implements net.Conn.
func (t *trackedConn) SetDeadline(at time.Time) error {
	if t.closing.Load() {
		return net.ErrClosed
	}
	return t.Conn.SetDeadline(at)
}

// Close implements net.Conn. A passed deadline ends the write that it waits for.
func (t *trackedConn) Close() error {
	if !t.closing.CompareAndSwap(false, true) {
		return nil
	}
	_ = t.Conn.SetDeadline(time.Unix(1, 0))
	t.writing <- struct{}{}
	err := t.Conn.Close()
	t.release()
	close(t.over)
	<-t.writing
	return err
}

// agentAddr is an agent's name as an address.
type agentAddr string

// Network implements net.Addr.
func (agentAddr) Network() string { return "kvmesh" }

// String implements net.Addr.
func (a agentAddr) String() string { return string(a) }
