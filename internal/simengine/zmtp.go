package simengine

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// ZMTP 3.0 (RFC 23) with the NULL mechanism, as much of it as a PUB and a ROUTER socket need. go-zeromq/zmq4 is not used:
// its sockets take no listener, leave goroutines behind when closed, stop all subscribers for one that does not read,
// and panic or allocate without bound on what a peer sends. It is the other side in the tests.

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	// maxFrame bounds what a peer may send: subscriptions and sequence numbers are far smaller.
	maxFrame = 64 << 10
	// maxFrames bounds the frames of one message.
	maxFrames = 16
	// handshakeTime is how long a peer may take to greet.
	handshakeTime = 10 * time.Second
)

var errZMTP = errors.New("not ZMTP 3 with NULL security")

// zmtpConn is one connection after its handshake. One goroutine may read while another writes.
type zmtpConn struct {
	conn net.Conn
	r    *bufio.Reader
}

// openZMTP greets the peer as a socket of the given type; the connection is useless after an error.
func openZMTP(conn net.Conn, socket string) (*zmtpConn, error) {
	_ = conn.SetDeadline(time.Now().Add(handshakeTime)) // where this fails, so does the greeting
	c := &zmtpConn{conn: conn, r: bufio.NewReader(conn)}
	if err := c.greet(); err != nil {
		return nil, fmt.Errorf("greet peer: %w", err)
	}
	ready := append([]byte{5}, "READY"...)
	ready = appendProperty(ready, "Socket-Type", socket)
	ready = appendProperty(ready, "Identity", "")
	err := c.exchange(appendFrame(nil, flagCommand, ready), func() error {
		flags, body, err := c.frame()
		if err == nil && (flags&flagCommand == 0 || !strings.HasPrefix(string(body), "\x05READY")) {
			err = errZMTP
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("exchange ready: %w", err)
	}
	return c, conn.SetDeadline(time.Time{})
}

// greet exchanges the 64 bytes that begin a connection. We say version 3.0, so a newer peer speaks that.
func (c *zmtpConn) greet() error {
	var out, in [64]byte
	out[0], out[9], out[10] = 0xff, 0x7f, 3
	copy(out[12:32], "NULL")
	return c.exchange(out[:], func() error {
		if _, err := io.ReadFull(c.r, in[:]); err != nil {
			return err
		}
		if in[0] != 0xff || in[9] != 0x7f || in[10] < 3 || string(in[12:17]) != "NULL\x00" {
			return errZMTP
		}
		return nil
	})
}

// exchange writes out while it reads: both sides may write first, and a connection in memory may have no buffer.
func (c *zmtpConn) exchange(out []byte, read func() error) error {
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

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// appendFrame appends one frame.
func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// appendMessage appends all frames of a message.
func appendMessage(b []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, f)
	}
	return b
}

// frame reads one frame.
func (c *zmtpConn) frame() (flags byte, body []byte, err error) {
	if flags, err = c.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	size := uint64(0)
	if flags&flagLong != 0 {
		var long [8]byte
		_, err = io.ReadFull(c.r, long[:])
		size = binary.BigEndian.Uint64(long[:])
	} else {
		var short byte
		short, err = c.r.ReadByte()
		size = uint64(short)
	}
	if err != nil {
		return 0, nil, err
	}
	if size > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes is above the limit of %d", size, maxFrame)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c.r, body)
	return flags, body, err
}

// message reads the next message; commands between messages are passed to command when it is not nil.
func (c *zmtpConn) message(command func(body []byte)) ([][]byte, error) {
	var frames [][]byte
	for {
		flags, body, err := c.frame()
		switch {
		case err != nil:
			return nil, err
		case flags&flagCommand != 0:
			if command != nil {
				command(body)
			}
			continue
		case len(frames) == maxFrames:
			return nil, fmt.Errorf("message has more than %d frames", maxFrames)
		}
		frames = append(frames, body)
		if flags&flagMore == 0 {
			return frames, nil
		}
	}
}

// pong is the answer to a PING command, nil for other commands: time to live (2 bytes) comes before the context.
func pong(command []byte) []byte {
	if len(command) < 7 || string(command[:5]) != "\x04PING" {
		return nil
	}
	return appendFrame(nil, flagCommand, append([]byte("\x04PONG"), command[7:]...))
}

// tcpAddress turns "tcp://HOST:PORT" into an address for net; "*" is every interface.
func tcpAddress(endpoint string) (string, error) {
	addr, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("endpoint (%q) must begin with tcp://", endpoint)
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return "", fmt.Errorf("endpoint (%q) must be tcp://HOST:PORT: %w", endpoint, err)
	}
	return strings.TrimPrefix(addr, "*"), nil
}
