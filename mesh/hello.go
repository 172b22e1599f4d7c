package mesh

import (
	"encoding/binary"
	"fmt"
	"io"
)

// maxHello bounds a hello: an about, a name, and room for what later versions add.
const maxHello = maxAbout + 256

// hello is the first thing that either side says on a connection. The name must be the certificate's.
type hello struct {
	about about
	name  string
	dial  uint64 // the dialer's number of this dial, from 1 and growing; 0 from an acceptor
	keys  offer  // which gossip keys it has, without them
}

// appendHello appends the wire form with its length before it: about and name (length-prefixed), dial (uvarint), the
// gossip keys' offer (length-prefixed).
func appendHello(b []byte, h hello) []byte {
	body := binary.AppendUvarint(appendBytes(appendBytes(nil, encodeAbout(h.about)), h.name), h.dial)
	return appendBytes(b, appendOffer(body, h.keys))
}

// parseHello reads a hello without its length. What follows the name may be missing; bytes after the last known field are
// ignored.
func parseHello(b []byte) (hello, error) {
	r := reader{b: b}
	var h hello
	inner := reader{b: r.bytes(maxHello)}
	if r.err == nil {
		h.about = inner.about()
		r.failed(inner.err)
	}
	h.name = string(r.bytes(64))
	if len(r.b) > 0 {
		h.dial = r.uvarint()
	}
	if len(r.b) > 0 {
		keys, err := parseOffer(r.bytes(uint64(maxOffer)))
		h.keys = offer{version: keys.version, sum: keys.sum}
		r.failed(err)
	}
	if r.err == nil && !namePattern.MatchString(h.name) {
		r.fail(fmt.Errorf("%q is no agent's name", h.name))
	}
	if r.err != nil {
		return hello{}, fmt.Errorf("parse hello: %w", r.err)
	}
	return h, nil
}

// readHello reads one hello with its length.
func readHello(rd io.Reader) (hello, error) {
	n, err := binary.ReadUvarint(byteReader{rd})
	if err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	if n > maxHello {
		return hello{}, fmt.Errorf("read hello: %d bytes are above the limit of %d", n, maxHello)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(rd, b); err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	return parseHello(b)
}

// byteReader reads single bytes without reading ahead.
type byteReader struct{ io.Reader }

// ReadByte implements io.ByteReader.
func (r byteReader) ReadByte() (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(r.Reader, b[:])
	return b[0], err
}
