package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// The socket types that a Conn can be.
const (
	SUB    = "SUB"
	DEALER = "DEALER"
)

// peers are the types that each of ours may talk to.
var peers = map[string][]string{
	SUB:    {"PUB", "XPUB"},
	DEALER: {"ROUTER", "DEALER", "REP"},
}

// Options describe our side of a connection. Zero fields take the default that is named.
type Options struct {
	Socket string // SUB or DEALER
	// Topics are the prefixes that a SUB wants; an empty one is everything.
	Topics []string
	// MaxMessage bounds the bytes of a message, all frames together: 64 MiB.
	MaxMessage int
	// MaxFrames bounds the frames of a message: 16.
	MaxFrames int
	// Handshake is how long the peer may take to greet: 5 s.
	Handshake time.Duration
	// Silence is how long a peer may say nothing before it is asked for a sign of life, and then again before the
	// connection ends: 10 s. Peers of ZMTP 3.0 know no such question; for them TCP's keepalive must do.
	Silence time.Duration
}

func (o Options) withDefaults() Options {
	if o.MaxMessage == 0 {
		o.MaxMessage = 64 << 20
	}
	if o.MaxFrames == 0 {
		o.MaxFrames = 16
	}
	if o.Handshake == 0 {
		o.Handshake = 5 * time.Second
	}
	if o.Silence == 0 {
		o.Silence = 10 * time.Second
	}
	return o
}

// Frame flags.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

var (
	errGreeting = errors.New("peer does not speak ZMTP 3 with NULL security")
	errReady    = errors.New("peer did not get ready")
	errFrame    = errors.New("frame with unknown flags")
	// ErrTooLarge ends a connection whose peer sends more than Options allow.
	ErrTooLarge = errors.New("message is too large")
	// ErrSilent ends a connection whose peer gives no sign of life.
	ErrSilent = errors.New("peer is silent")
)

// Conn is one connection after its handshake. One goroutine may receive while others send.
type Conn struct {
	conn  net.Conn
	r     *bufio.Reader
	o     Options
	minor byte // of the peer's ZMTP 3 version
	head  [9]byte

	buf    []byte // of the message under way
	ends   []int  // of its frames in buf
	frames [][]byte

	mu  sync.Mutex // guards writes
	out []byte
}

// Open greets the peer on a connection, whichever side dialled it, and subscribes. The Conn owns the connection from then
// on; after an error it is closed.
func Open(conn net.Conn, o Options) (*Conn, error) {
	c := &Conn{conn: conn, r: bufio.NewReaderSize(conn, 64<<10), o: o.withDefaults()}
	err := conn.SetDeadline(time.Now().Add(c.o.Handshake))
	if err == nil {
		err = c.greet()
	}
	if err == nil {
		err = c.ready()
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err == nil {
		err = c.subscribe()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open %s: %w", o.Socket, err)
	}
	return c, nil
}

// greet exchanges the 64 bytes that begin a connection.
func (c *Conn) greet() error {
	var out, in [64]byte
	out[0], out[9], out[10], out[11] = 0xff, 0x7f, 3, 1
	copy(out[12:32], "NULL")
	return c.exchange(out[:], func() error {
		if _, err := io.ReadFull(c.r, in[:]); err != nil {
			return err
		}
		if in[0] != 0xff || in[9]&1 == 0 || in[10] < 3 || string(in[12:17]) != "NULL\x00" {
			return errGreeting
		}
		c.minor = in[11]
		return nil
	})
}

// ready exchanges the READY commands.
func (c *Conn) ready() error {
	body := append([]byte{5}, "READY"...)
	body = appendProperty(body, "Socket-Type", c.o.Socket)
	if c.o.Socket == DEALER {
		body = appendProperty(body, "Identity", "")
	}
	return c.exchange(appendFrame(nil, flagCommand, body), func() error {
		flags, size, err := c.header()
		if err != nil {
			return err
		}
		if flags&flagCommand == 0 || size > 1<<10 {
			return errReady
		}
		in := make([]byte, size)
		if _, err := io.ReadFull(c.r, in); err != nil {
			return err
		}
		return c.checkReady(in)
	})
}

func (c *Conn) checkReady(in []byte) error {
	properties, ok := strings.CutPrefix(string(in), "\x05READY")
	if !ok {
		return errReady
	}
	for len(properties) > 0 {
		n := int(properties[0])
		if len(properties) < 1+n+4 {
			return errReady
		}
		name, rest := properties[1:1+n], properties[1+n:]
		size := binary.BigEndian.Uint32([]byte(rest[:4]))
		if uint64(len(rest)-4) < uint64(size) {
			return errReady
		}
		value := rest[4 : 4+size]
		properties = rest[4+size:]
		if strings.EqualFold(name, "Socket-Type") && !slices.Contains(peers[c.o.Socket], value) {
			return fmt.Errorf("peer is a %.16q socket, which a %s cannot talk to", value, c.o.Socket)
		}
	}
	return nil
}

// exchange writes out while it reads: both sides may write first, and a connection in memory may have no buffer.
func (c *Conn) exchange(out []byte, read func() error) error {
	sent := make(chan error, 1)
	go func() {
		_, err := c.conn.Write(out)
		sent <- err
	}()
	err := read()
	if err != nil {
		c.conn.Close() // ends the write too
	}
	return errors.Join(err, <-sent)
}

// subscribe tells a publisher what to send: a message in ZMTP 3.0, which later versions understand too.
func (c *Conn) subscribe() error {
	if c.o.Socket != SUB {
		return nil
	}
	for _, topic := range c.o.Topics {
		if err := c.Send(append([]byte{1}, topic...)); err != nil {
			return err
		}
	}
	return nil
}

// Send sends one message.
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

func (c *Conn) command(body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = appendFrame(c.out[:0], flagCommand, body)
	return c.writeLocked()
}

func (c *Conn) writeLocked() error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.o.Handshake)); err != nil {
		return err
	}
	_, err := c.conn.Write(c.out)
	return err
}

// Close ends the connection, and with it a Receive that waits.
func (c *Conn) Close() error { return c.conn.Close() }

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}
