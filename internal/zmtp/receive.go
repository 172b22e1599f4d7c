package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Receive returns the frames of the next message. They are valid until the next call. Questions for a sign of life are
// answered and asked on the way. After an error the connection is of no use.
func (c *Conn) Receive() ([][]byte, error) {
	c.buf, c.ends = c.buf[:0], c.ends[:0]
	if cap(c.buf) > keptBuffer {
		c.buf = nil
	}
	asked := false
	for {
		flags, size, err := c.awaitHeader(&asked)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := c.obey(size); err != nil {
				return nil, err
			}
			continue
		}
		if err := c.frame(size); err != nil {
			return nil, err
		}
		if flags&flagMore == 0 {
			return c.message(), nil
		}
	}
}

// keptBuffer is the largest buffer that is kept from one message to the next.
const keptBuffer = 1 << 20

// awaitHeader waits for a frame, and asks for a sign of life when none comes.
func (c *Conn) awaitHeader(asked *bool) (flags byte, size uint64, err error) {
	for {
		if c.minor > 0 {
			if err := c.conn.SetReadDeadline(time.Now().Add(c.o.Silence)); err != nil {
				return 0, 0, err
			}
		}
		_, err := c.r.Peek(1)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, 0, err
		}
		if *asked {
			return 0, 0, ErrSilent
		}
		*asked = true
		if err := c.command([]byte("\x04PING\x00\x00")); err != nil {
			return 0, 0, err
		}
	}
	*asked = false
	return c.header()
}

// header reads flags and size of a frame.
func (c *Conn) header() (flags byte, size uint64, err error) {
	if flags, err = c.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, 0, errFrame
	}
	n := 1
	if flags&flagLong != 0 {
		n = 8
	}
	clear(c.head[:8])
	if _, err := io.ReadFull(c.r, c.head[8-n:8]); err != nil {
		return 0, 0, err
	}
	return flags, binary.BigEndian.Uint64(c.head[:8]), nil
}

// frame reads the body of a frame into the buffer, in pieces: what is allocated was sent, nearly.
func (c *Conn) frame(size uint64) error {
	if len(c.ends) == c.o.MaxFrames {
		return fmt.Errorf("%w: more than %d frames", ErrTooLarge, c.o.MaxFrames)
	}
	if size > uint64(c.o.MaxMessage-len(c.buf)) {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, c.o.MaxMessage)
	}
	for left := int(size); left > 0; {
		n := min(left, 64<<10)
		from := len(c.buf)
		c.buf = append(c.buf, make([]byte, n)...) // the compiler extends in place
		if _, err := io.ReadFull(c.r, c.buf[from:]); err != nil {
			return err
		}
		left -= n
	}
	c.ends = append(c.ends, len(c.buf))
	return nil
}

func (c *Conn) message() [][]byte {
	c.frames = c.frames[:0]
	from := 0
	for _, end := range c.ends {
		c.frames = append(c.frames, c.buf[from:end:end])
		from = end
	}
	return c.frames
}

// maxCommand bounds a command; the longest that matters is a PING with its context of 16 bytes.
const maxCommand = 1 << 10

// obey reads a command and answers a PING. Others mean nothing to a client.
func (c *Conn) obey(size uint64) error {
	if size > maxCommand {
		return fmt.Errorf("%w: command of %d bytes", ErrTooLarge, size)
	}
	var buf [maxCommand]byte
	body := buf[:size]
	if _, err := io.ReadFull(c.r, body); err != nil {
		return err
	}
	if len(body) >= 7 && string(body[:5]) == "\x04PING" { // two bytes of time to live, then the context
		return c.command(append([]byte("\x04PONG"), body[7:]...))
	}
	return nil
}
