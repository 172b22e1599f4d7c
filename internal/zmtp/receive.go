package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

var errFrame = errors.New("frame with impossible flags or size")

// Receive returns the frames of the next message. They are valid until the next call. Questions for a sign of life are
// answered and asked on the way. After an error the connection is closed.
func (c *Conn) Receive() ([][]byte, error) {
	c.buf, c.ends, c.begun = c.buf[:0], c.ends[:0], false
	if cap(c.buf) > keptBuffer {
		c.buf = nil
	}
	for {
		more, err := c.next()
		if err != nil {
			c.conn.Close()
			return nil, fmt.Errorf("receive: %w", err)
		}
		if !more {
			return c.message(), nil
		}
	}
}

// keptBuffer is the largest buffer that is kept from one message to the next.
const keptBuffer = 1 << 20

// next reads one frame, of the message under way or of a command, and says whether there is more to read: commands may
// come between the frames of a message.
func (c *Conn) next() (more bool, err error) {
	c.begun = len(c.ends) > 0
	flags, size, err := c.header()
	if err != nil {
		return false, err
	}
	if flags&flagCommand == 0 {
		return flags&flagMore != 0, c.frame(size)
	}
	name, body, err := c.readCommand(size)
	if err != nil {
		return false, err
	}
	return true, c.obey(name, body)
}

// header reads flags and size of a frame.
func (c *Conn) header() (flags byte, size uint64, err error) {
	if flags, err = c.r.ReadByte(); err != nil {
		if c.begun {
			err = unexpected(err)
		}
		return 0, 0, err
	}
	c.begun = true
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&(flagMore|flagCommand) == flagMore|flagCommand {
		return 0, 0, fmt.Errorf("%w: flags %#x", errFrame, flags)
	}
	if flags&flagLong == 0 {
		var short byte
		short, err = c.r.ReadByte()
		size = uint64(short)
	} else {
		var long []byte
		if long, err = c.r.Peek(8); err == nil {
			size = binary.BigEndian.Uint64(long)
			_, err = c.r.Discard(8)
		}
	}
	switch {
	case err != nil:
		return 0, 0, unexpected(err)
	case size > 1<<63-1:
		return 0, 0, fmt.Errorf("%w: size %#x", errFrame, size)
	}
	return flags, size, nil
}

// piece is how much of a frame is made room for at once: what a peer only announces costs no more.
const piece = 64 << 10

// frame reads the body of a frame into the buffer.
func (c *Conn) frame(size uint64) error {
	if len(c.ends) == c.o.MaxFrames {
		return fmt.Errorf("%w: more than %d frames", ErrTooLarge, c.o.MaxFrames)
	}
	if size > uint64(c.o.MaxFrame) || size > uint64(c.o.MaxMessage-len(c.buf)) {
		return fmt.Errorf("%w: frame of %d bytes after %d", ErrTooLarge, size, len(c.buf))
	}
	for left := int(size); left > 0; {
		n := min(left, piece)
		from := len(c.buf)
		c.buf = slices.Grow(c.buf, n)[:from+n]
		if _, err := io.ReadFull(c.r, c.buf[from:]); err != nil {
			return unexpected(err)
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

// maxCommand bounds a command. The longest that matters is READY with what a peer tells about itself.
const maxCommand = 4 << 10

// readCommand reads the body of a command; it is valid until the next one.
func (c *Conn) readCommand(size uint64) (name string, body []byte, err error) {
	if size > maxCommand {
		return "", nil, fmt.Errorf("%w: command of %d bytes", ErrTooLarge, size)
	}
	c.cmd = slices.Grow(c.cmd[:0], int(size))[:size]
	if _, err := io.ReadFull(c.r, c.cmd); err != nil {
		return "", nil, unexpected(err)
	}
	if len(c.cmd) == 0 || int(c.cmd[0]) > len(c.cmd)-1 {
		return "", nil, fmt.Errorf("%w: command without a name", errFrame)
	}
	n := 1 + int(c.cmd[0])
	return string(c.cmd[1:n]), c.cmd[n:], nil
}

// obey answers a PING, whose context follows two bytes of time to live. Other commands mean nothing to a client.
func (c *Conn) obey(name string, body []byte) error {
	switch {
	case name == "PING" && len(body) >= 2:
		return c.command("PONG", body[2:])
	case name == "ERROR":
		return fmt.Errorf("%w: it says %.99q", ErrPeer, body[min(1, len(body)):])
	}
	return nil
}

// unexpected turns the end of a connection inside a frame into what it is.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
