package zmtp

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

var (
	// ErrPeer ends a connection whose other side is no ZMTP 3 peer with NULL security and a socket that fits ours.
	ErrPeer = errors.New("not a ZMTP 3 peer for this socket")
	// ErrTooLarge ends a connection whose peer sends more than Options allow.
	ErrTooLarge = errors.New("message is too large")
	// ErrSilent ends a connection whose peer gives no sign of life.
	ErrSilent = errors.New("peer is silent")
)

// Conn is one connection after its handshake. One goroutine may receive while others send or close.
type Conn struct {
	conn  net.Conn
	o     Options
	r     *bufio.Reader // over read
	open  bool          // the handshake is over
	minor byte          // both sides speak ZMTP 3.minor

	// The message under way, for the receiving goroutine.
	begun  bool   // some of it was read
	buf    []byte // its frames, one after the other
	ends   []int  // of the frames in buf
	frames [][]byte
	cmd    []byte

	mu  sync.Mutex // guards writes and out
	out []byte
}

// Open greets the peer on a connection, whichever side dialled it, and subscribes. The Conn owns the connection from then
// on; after an error it is closed. Closing the connection ends an Open that waits.
func Open(conn net.Conn, o Options) (*Conn, error) {
	c := &Conn{conn: conn, o: o.withDefaults()}
	c.r = bufio.NewReaderSize(reader{c}, 64<<10)
	if err := c.shake(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open %s: %w", o.Socket, err)
	}
	return c, nil
}

func (c *Conn) shake() error {
	if err := c.conn.SetDeadline(time.Now().Add(c.o.Handshake)); err != nil {
		return err
	}
	if err := c.greet(); err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	c.open = true // reads and writes set deadlines of their own from here on
	return c.subscribe()
}

// Send sends one message. It is safe for concurrent use.
func (c *Conn) Send(frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = c.out[:0]
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		c.out = appendFrame(c.out, flags, f)
	}
	return c.writeLocked()
}

// command sends a command with the parts of its body one after the other.
func (c *Conn) command(name string, parts ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendCommand(c.out[:0], name, parts...)
	return c.writeLocked()
}

func (c *Conn) writeLocked() error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.o.Handshake)); err != nil {
		return err
	}
	_, err := c.conn.Write(c.out)
	if err != nil {
		c.conn.Close() // a frame may have gone out in part
		return fmt.Errorf("write to peer: %w", err)
	}
	return nil
}

// Close ends the connection, and with it a Receive that waits. It is safe for concurrent use.
func (c *Conn) Close() error { return c.conn.Close() }

// reader reads from a Conn's connection for as long as the peer shows that it lives. It stands below the buffer, so that
// waiting in the middle of a frame is like waiting before it.
type reader struct{ c *Conn }

// Read implements io.Reader.
func (r reader) Read(p []byte) (int, error) {
	c := r.c
	if !c.open {
		return c.conn.Read(p)
	}
	for asked := false; ; asked = true {
		var deadline time.Time
		if wait := c.patience(); wait > 0 {
			deadline = time.Now().Add(wait)
		}
		if err := c.conn.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		n, err := c.conn.Read(p)
		switch {
		case n > 0 || !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case asked || c.minor == 0:
			return 0, ErrSilent
		}
		if err := c.command("PING", noTTL); err != nil {
			return 0, err
		}
	}
}

// noTTL asks the peer not to end the connection when we are silent: we only speak when it is.
var noTTL = []byte{0, 0}

// patience is how long the peer may be silent; 0 is for ever.
func (c *Conn) patience() time.Duration {
	switch {
	case c.minor > 0:
		return c.o.Silence
	case c.begun:
		return c.o.Handshake
	}
	return 0
}
