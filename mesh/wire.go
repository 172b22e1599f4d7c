package mesh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

var errTruncated = errors.New("truncated")

func appendBytes[T ~string | ~[]byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendAddr appends an address as length-prefixed bytes: 4 or 16 of address, 2 of port, little endian. A zone means
// nothing on another machine and is left out.
func appendAddr(b []byte, a netip.AddrPort) []byte {
	raw, _ := netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()).MarshalBinary() // never fails
	return appendBytes(b, raw)
}

// reader reads the fields of a wire form in order. The first fault sticks, and fields after it are zero. Lengths are
// checked against a limit and against the bytes that are there before anything is allocated.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

// failed is fail for what a part of the form was found to be; nil changes nothing.
func (r *reader) failed(err error) {
	if err != nil {
		r.fail(err)
	}
}

func (r *reader) take(n uint64) []byte {
	if r.err == nil && n > uint64(len(r.b)) {
		r.fail(errTruncated)
	}
	if r.err != nil {
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errTruncated)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes reads length-prefixed bytes without copying.
func (r *reader) bytes(limit uint64) []byte {
	n := r.uvarint()
	if n > limit {
		r.fail(fmt.Errorf("%d bytes are above the limit of %d", n, limit))
	}
	return r.take(n)
}

func (r *reader) addr() netip.AddrPort {
	var a netip.AddrPort
	b := r.bytes(18)
	if r.err != nil {
		return a
	}
	if err := a.UnmarshalBinary(b); err != nil {
		r.fail(fmt.Errorf("read address: %w", err))
	}
	return a
}
