package zmtp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ourMinor is the version that we greet with: ZMTP 3.1. Peers of another minor version speak the lower of both.
const ourMinor = 1

// greet exchanges the 64 bytes that begin a connection.
func (c *Conn) greet() error {
	var out, in [64]byte
	out[0], out[9], out[10], out[11] = 0xff, 0x7f, 3, ourMinor
	copy(out[12:32], "NULL")
	return c.exchange(out[:], func() error {
		if _, err := io.ReadFull(c.r, in[:]); err != nil {
			return fmt.Errorf("read greeting: %w", err)
		}
		if in[0] != 0xff || in[9] != 0x7f || in[10] < 3 {
			return fmt.Errorf("%w: it greets with % x", ErrPeer, in[:12])
		}
		if mechanism := strings.TrimRight(string(in[12:32]), "\x00"); mechanism != "NULL" {
			return fmt.Errorf("%w: its security is %q", ErrPeer, mechanism)
		}
		c.minor = min(in[11], ourMinor)
		if in[10] > 3 {
			c.minor = ourMinor
		}
		return nil
	})
}

// ready exchanges the READY commands.
func (c *Conn) ready() error {
	body := appendProperty(nil, "Socket-Type", c.o.Socket)
	if c.o.Socket == DEALER {
		body = appendProperty(body, "Identity", "")
	}
	return c.exchange(appendCommand(nil, "READY", body), func() error {
		flags, size, err := c.header()
		if err != nil {
			return fmt.Errorf("read READY: %w", err)
		}
		if flags&flagCommand == 0 {
			return fmt.Errorf("%w: a message comes before READY", ErrPeer)
		}
		name, body, err := c.readCommand(size)
		if err != nil {
			return err
		}
		return c.checkReady(name, body)
	})
}

// checkReady takes the first command of a peer.
func (c *Conn) checkReady(name string, body []byte) error {
	switch name {
	case "READY":
	case "ERROR":
		return fmt.Errorf("%w: it says %.99q", ErrPeer, body[min(1, len(body)):])
	default:
		return fmt.Errorf("%w: %.32q comes before READY", ErrPeer, name)
	}
	socket, err := socketType(body)
	if err != nil {
		return err
	}
	if !slices.Contains(peers[c.o.Socket], socket) {
		return fmt.Errorf("%w: it is a %.32q socket, which a %s cannot talk to", ErrPeer, socket, c.o.Socket)
	}
	return nil
}

var errProperties = fmt.Errorf("%w: its READY is broken", ErrPeer)

// socketType finds the socket type in the properties of a READY, whose names have no case.
func socketType(properties []byte) (string, error) {
	socket := ""
	for len(properties) > 0 {
		n := int(properties[0])
		if len(properties) < 1+n+4 {
			return "", errProperties
		}
		name, rest := properties[1:1+n], properties[1+n:]
		size := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; uint64(size) > uint64(len(rest)) {
			return "", errProperties
		}
		if strings.EqualFold(string(name), "Socket-Type") {
			socket = string(rest[:size])
		}
		properties = rest[size:]
	}
	return socket, nil
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
	return cmp.Or(err, <-sent)
}

// subscribe tells a publisher what to send: a message in ZMTP 3.0, a command in 3.1.
func (c *Conn) subscribe() error {
	if c.o.Socket != SUB {
		return nil
	}
	var errs []error
	for _, topic := range c.o.Topics {
		if c.minor == 0 {
			errs = append(errs, c.Send(append([]byte{1}, topic...)))
		} else {
			errs = append(errs, c.command("SUBSCRIBE", []byte(topic)))
		}
	}
	return errors.Join(errs...)
}
