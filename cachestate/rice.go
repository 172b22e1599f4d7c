package cachestate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// A list of ascending bit numbers is written as
//
//	list = count uvarint ‖ parameter byte ‖ size uvarint ‖ size bytes of codes
//
// Codes are the gaps (number − previous − 1) in Rice's code (Rice and Plaunt 1971): the gap's low `parameter` bits
// after its high part in unary, most significant bit first, zero bits up to the last byte. Gaps between random bits
// are geometric, for which this code is within 4 % of the best; varints take a third more.

// maxRice is the largest parameter: no gap is longer than a digest.
const maxRice = 24

var errCodes = errors.New("codes do not fit the list")

// riceParameter returns the parameter for n numbers below size: about log2 of 0.69 times the mean gap.
func riceParameter(n int, size uint32) uint8 {
	gap := uint64(size) / uint64(n+1)
	return uint8(min(bits.Len64(gap*69/100|1)-1, maxRice))
}

// riceBits returns how many bits the codes of list take.
func riceBits(list []uint32, parameter uint8) int {
	total, next := 0, uint32(0)
	for _, at := range list {
		total += int((at-next)>>parameter) + 1 + int(parameter)
		next = at + 1
	}
	return total
}

// listBytes returns the size of the wire form of list.
func listBytes(list []uint32, size uint32) int {
	codes := (riceBits(list, riceParameter(len(list), size)) + 7) / 8
	return uvarintBytes(uint64(len(list))) + 1 + uvarintBytes(uint64(codes)) + codes
}

func uvarintBytes(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func appendList(b []byte, list []uint32, size uint32) []byte {
	k := riceParameter(len(list), size)
	b = binary.AppendUvarint(b, uint64(len(list)))
	b = append(b, k)
	b = binary.AppendUvarint(b, uint64((riceBits(list, k)+7)/8))
	w := bitWriter{b: b}
	next := uint32(0)
	for _, at := range list {
		gap := at - next
		w.unary(gap >> k)
		w.low(gap, k)
		next = at + 1
	}
	return w.flush()
}

// parseList reads one list of numbers below size. A code takes at least one bit more than the parameter, which bounds
// the count by the bytes that are there before anything is allocated.
func parseList(r *engine.Reader, size uint32) ([]uint32, error) {
	n := r.Int(uint64(size))
	k := r.Byte()
	codes := r.Bytes(MaxBits)
	if err := r.Err(); err != nil {
		return nil, err
	}
	if k > maxRice || uint64(n)*uint64(k+1) > uint64(len(codes))*8 {
		return nil, errCodes
	}
	return decodeList(codes, n, k, size)
}

func decodeList(codes []byte, n int, k uint8, size uint32) ([]uint32, error) {
	if n == 0 {
		if len(codes) > 0 {
			return nil, errCodes
		}
		return nil, nil
	}
	list := make([]uint32, 0, n)
	r, next := bitReader{b: codes}, uint64(0)
	for range n {
		high, ok := r.unary()
		low, ok2 := r.low(k)
		at := next + uint64(high)<<k + uint64(low)
		if !ok || !ok2 {
			return nil, errCodes
		}
		if at >= uint64(size) {
			return nil, fmt.Errorf("bit %d is beyond the digest of %d", at, size)
		}
		list = append(list, uint32(at))
		next = at + 1
	}
	if (r.pos+7)/8 != len(codes) {
		return nil, errCodes
	}
	return list, nil
}

// bitWriter appends bits to b, most significant first. It holds back less than a byte.
type bitWriter struct {
	b    []byte
	acc  uint64
	held uint8 // Invariant: held < 8 between calls; the low bits of acc
}

func (w *bitWriter) put(v uint64, n uint8) {
	w.acc, w.held = w.acc<<n|v, w.held+n
	for w.held >= 8 {
		w.held -= 8
		w.b = append(w.b, byte(w.acc>>w.held))
	}
}

// unary writes n ones and a zero.
func (w *bitWriter) unary(n uint32) {
	for ; n >= 32; n -= 32 {
		w.put(1<<32-1, 32)
	}
	w.put((1<<n-1)<<1, uint8(n)+1)
}

func (w *bitWriter) low(v uint32, n uint8) { w.put(uint64(v)&(1<<n-1), n) }

func (w *bitWriter) flush() []byte {
	if w.held > 0 {
		w.put(0, 8-w.held)
	}
	return w.b
}

// bitReader reads what a bitWriter wrote.
type bitReader struct {
	b   []byte
	pos int // in bits
}

// window returns the bits from pos on in the high end of a word, at least 57 of them true ones, zero past the end.
func (r *bitReader) window() uint64 {
	i := r.pos / 8
	if i+8 <= len(r.b) {
		return binary.BigEndian.Uint64(r.b[i:]) << (r.pos % 8)
	}
	var tail [8]byte
	copy(tail[:], r.b[min(i, len(r.b)):])
	return binary.BigEndian.Uint64(tail[:]) << (r.pos % 8)
}

func (r *bitReader) unary() (n uint32, ok bool) {
	for {
		ones := min(bits.LeadingZeros64(^r.window()), 32)
		n += uint32(ones)
		r.pos += ones
		if r.pos >= len(r.b)*8 {
			return 0, false
		}
		if ones < 32 {
			r.pos++
			return n, true
		}
	}
}

func (r *bitReader) low(n uint8) (v uint32, ok bool) {
	v = uint32(r.window() >> 32 >> (32 - n))
	r.pos += int(n)
	return v, r.pos <= len(r.b)*8
}
