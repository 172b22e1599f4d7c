package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of the wire forms. They bound what a peer can make us allocate, not what an operator may configure.
const (
	maxString  = 256
	maxModels  = 1024
	maxAliases = 64
)

// MaxZone bounds the name of a zone, in bytes.
const MaxZone = 64

// CheckZone returns an error for what cannot be the name of a zone on the wire.
func CheckZone(name string) error {
	r := Reader{b: AppendString(nil, name)}
	r.Name(MaxZone)
	return r.err
}

// maxRequests bounds the requests of an engine that can be true: a thousand times what engines run.
const maxRequests = 1 << 20

// ErrTruncated is returned when an encoding ends before its last field.
var ErrTruncated = errors.New("truncated")

// ErrImplausible is returned for a load that was read but cannot be true.
var ErrImplausible = errors.New("implausible")

// AppendLoad appends the wire form of l: a uvarint length, then uvarints, times in microseconds, shares and rates in
// thousandths, the bend in femtoseconds per token squared. It takes 16 to 51 bytes. A later version may append fields.
func AppendLoad(b []byte, l Load) []byte {
	return AppendElement(b, func(b []byte) []byte {
		b = binary.AppendUvarint(b, l.Seq)
		b = append(b, byte(l.Flags))
		b = binary.AppendUvarint(b, scale(l.QueuedSeconds, 1e6))
		b = binary.AppendUvarint(b, uint64(max(l.InFlight, 0)))
		b = binary.AppendUvarint(b, uint64(max(l.Waiting, 0)))
		b = binary.AppendUvarint(b, scale(l.KVUsage, 1e3))
		b = binary.AppendUvarint(b, scale(l.PrefillRate, 1))
		b = binary.AppendUvarint(b, scale(l.BytesPerToken, 1e3))
		b = binary.AppendUvarint(b, scale(l.AcceptRate, 1e3))
		b = binary.AppendUvarint(b, scale(l.BusyShare, 1e3))
		b = binary.AppendUvarint(b, scale(l.PrefillFixed, 1e6))
		b = binary.AppendUvarint(b, scale(l.PrefillBend, 1e15))
		return binary.AppendUvarint(b, scale(l.RequestCost, 1e6))
	})
}

// ParseLoad reads one Load and returns the bytes after it. What is learned may be missing at its end and then is zero, as
// before anything was learned; fields behind those that are known are skipped. Of a load out of range it returns the zero
// Load, the bytes after it and an ErrImplausible: a peer that sends one is broken or lies about that engine, which says
// nothing of what stands beside the load. The zero Load replaces none, since every other has a higher Seq.
func ParseLoad(b []byte) (Load, []byte, error) {
	outer := Reader{b: b}
	r := outer.Element()
	l := Load{
		Seq:           r.Uvarint(),
		Flags:         Flags(r.Byte()),
		QueuedSeconds: float64(r.Uvarint()) / 1e6,
		InFlight:      int(min(r.Uvarint(), maxRequests+1)),
		Waiting:       int(min(r.Uvarint(), maxRequests+1)),
		KVUsage:       float64(r.Uvarint()) / 1e3,
	}
	r.Tail()
	l.PrefillRate = float64(r.Uvarint())
	l.BytesPerToken = float64(r.Uvarint()) / 1e3
	l.AcceptRate = float64(r.Uvarint()) / 1e3
	l.BusyShare = float64(r.Uvarint()) / 1e3
	l.PrefillFixed = float64(r.Uvarint()) / 1e6
	l.PrefillBend = float64(r.Uvarint()) / 1e15
	l.RequestCost = float64(r.Uvarint()) / 1e6
	if r.err != nil {
		return Load{}, nil, fmt.Errorf("parse load: %w", r.err)
	}
	if !l.plausible() {
		return Load{}, outer.b, fmt.Errorf("parse load: %w: %+v", ErrImplausible, l)
	}
	return l, outer.b, nil
}

// plausible reports whether a load can be true. The bounds of what is learned are those within which owners learn, or wider.
func (l *Load) plausible() bool {
	return l.InFlight <= maxRequests && l.Waiting <= maxRequests &&
		l.QueuedSeconds <= 86400 && l.KVUsage <= 1 && l.BusyShare <= 1 && l.AcceptRate <= 1e6 && l.BytesPerToken <= 1e4 && l.PrefillRate <= 1e9 &&
		l.PrefillFixed <= 60 && l.PrefillBend <= 1e-3 && l.RequestCost <= 60
}

func scale(v, by float64) uint64 {
	if !(v > 0) { // also NaN
		return 0
	}
	return uint64(math.Round(min(v*by, 1<<62)))
}

// AppendEngine appends the wire form of e without its owner's name, which the carrier of the message states: a uvarint
// length, then the fields, each model with a length of its own. A later version may append fields to either.
func AppendEngine(b []byte, e *Engine) []byte {
	return AppendElement(b, func(b []byte) []byte {
		b = AppendString(b, e.ID.Name())
		b = AppendString(b, string(e.Kind))
		b = binary.AppendUvarint(b, uint64(e.Generation))
		b = binary.AppendUvarint(b, uint64(e.BlockTokens))
		b = binary.AppendUvarint(b, uint64(e.CapacityTokens))
		b = binary.AppendUvarint(b, uint64(e.MaxRunning))
		b = append(b, byte(e.Residency), byte(e.Evidence), scaleStep(e.Scale), flag(e.Unstable))
		b = binary.AppendUvarint(b, uint64(len(e.Models)))
		for i := range e.Models {
			b = appendModel(b, &e.Models[i])
		}
		return AppendString(b, e.Zone)
	})
}

func appendModel(b []byte, m *Model) []byte {
	return AppendElement(b, func(b []byte) []byte {
		b = AppendString(b, m.Name)
		b = binary.AppendUvarint(b, uint64(m.MaxContext))
		b = binary.AppendUvarint(b, uint64(m.Layout)<<1|uint64(flag(m.HasLayout)))
		b = binary.AppendUvarint(b, uint64(len(m.Aliases)))
		for _, a := range m.Aliases {
			b = AppendString(b, a)
		}
		return b
	})
}

// ParseEngine reads one Engine of the given owner and returns the bytes after it. The zone may be missing; fields behind
// those that are known are skipped.
func ParseEngine(b []byte, owner string) (Engine, []byte, error) {
	outer := Reader{b: b}
	r := outer.Element()
	e := Engine{
		ID:             MakeID(owner, r.Name(maxString)),
		Kind:           Kind(r.Name(maxString)),
		Generation:     Generation(r.Uvarint()),
		BlockTokens:    r.Int(1 << 20),
		CapacityTokens: int64(r.Int(1 << 50)),
		MaxRunning:     r.Int(1 << 20),
		Residency:      orWeakest(Residency(r.Byte()), numResidencies, ResidencyMirror),
		Evidence:       orWeakest(Evidence(r.Byte()), numEvidences, EvidenceNone),
		Scale:          float64(r.below(scaleSteps+1)) / scaleSteps,
		Unstable:       r.Byte() != 0,
	}
	for range r.Int(maxModels) {
		m := r.model()
		if r.err != nil {
			break
		}
		e.Models = append(e.Models, m)
	}
	r.Tail()
	e.Zone = r.Name(MaxZone)
	if r.err != nil {
		return Engine{}, nil, fmt.Errorf("parse engine: %w", r.err)
	}
	return e, outer.b, nil
}

func (r *Reader) model() Model {
	in := r.Element()
	m := Model{Name: in.Name(maxString), MaxContext: in.Int(1 << 30)}
	layout := in.Int(1 << 17)
	m.Layout, m.HasLayout = uint16(layout>>1), layout&1 == 1
	for range in.Int(maxAliases) {
		m.Aliases = append(m.Aliases, in.Name(maxString))
	}
	r.fail(in.err)
	return m
}

// scaleSteps is how finely a scale is told: changes of less are no news.
const scaleSteps = 16

// scaleStep returns the step that tells a scale. 0 stands for a scale of which nothing is known, so one that is known is at
// least a step.
func scaleStep(v float64) byte {
	if !(v > 0) { // also NaN
		return 0
	}
	return byte(min(max(scale(v, scaleSteps), 1), scaleSteps))
}

func flag(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// orWeakest returns v, or weakest for a value that only a later version knows: less is believed of the engine then.
func orWeakest[T ~uint8](v, end, weakest T) T {
	if v >= end {
		return weakest
	}
	return v
}

// below reads a byte that must be below n.
func (r *Reader) below(n byte) byte {
	v := r.Byte()
	if v >= n {
		r.fail(fmt.Errorf("%d is not below %d", v, n))
		return 0
	}
	return v
}

// AppendString appends a length-prefixed string.
func AppendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// AppendElement appends what fields appends, with its length in front: Reader.Element reads it.
func AppendElement(b []byte, fields func([]byte) []byte) []byte {
	from := len(b)
	b = fields(append(b, 0))
	n := len(b) - from - 1
	var length [binary.MaxVarintLen64]byte
	b[from] = byte(n)
	if more := binary.PutUvarint(length[:], uint64(n)); more > 1 {
		b = slices.Replace(b, from, from+1, length[:more]...)
	}
	return b
}

// Reader reads the fields of a wire form in order. The first fault sticks; fields read after it are zero. Every length
// is checked against the bytes that are there before anything is allocated.
type Reader struct {
	b    []byte
	err  error
	tail bool // fields that are not there any more are zero
}

// NewReader returns a Reader over b, which it does not modify.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// Err returns the first fault.
func (r *Reader) Err() error { return r.err }

// Rest returns the bytes not read yet.
func (r *Reader) Rest() []byte { return r.b }

// Element returns a Reader over the length-prefixed bytes that come next: one thing of several, to which a later version
// may append fields. What is left unread in it is skipped. It has the fault of r, if there is one.
func (r *Reader) Element() *Reader {
	b := r.Bytes(math.MaxInt64)
	return &Reader{b: b, err: r.err}
}

// Tail says that the fields read from here on may be missing, when whoever wrote them did not know them: they are zero then.
func (r *Reader) Tail() { r.tail = true }

// missing reports whether there is nothing to read, because of a fault or where that is none.
func (r *Reader) missing() bool { return r.err != nil || r.tail && len(r.b) == 0 }

// Uvarint reads an unsigned varint.
func (r *Reader) Uvarint() uint64 {
	if r.missing() {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(ErrTruncated)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Int reads an unsigned varint that must not exceed limit.
func (r *Reader) Int(limit uint64) int {
	v := r.Uvarint()
	if v > limit {
		r.fail(fmt.Errorf("%d is above the limit of %d", v, limit))
		return 0
	}
	return int(v)
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// Uint64 reads eight little-endian bytes.
func (r *Reader) Uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Name reads a string that becomes part of names and labels: valid UTF-8 without control characters, at most limit bytes.
func (r *Reader) Name(limit uint64) string {
	s := r.String(limit)
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		r.fail(fmt.Errorf("%q is no name", s))
		return ""
	}
	return s
}

// Bytes reads length-prefixed bytes, at most limit of them, without copying.
func (r *Reader) Bytes(limit uint64) []byte { return r.take(r.Int(limit)) }

// String reads a length-prefixed string of at most limit bytes.
func (r *Reader) String(limit uint64) string { return string(r.Bytes(limit)) }

func (r *Reader) take(n int) []byte {
	if r.missing() {
		return nil
	}
	if n > len(r.b) {
		r.fail(ErrTruncated)
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *Reader) fail(err error) {
	if r.err == nil && err != nil {
		r.err = err
		r.b = nil
	}
}
