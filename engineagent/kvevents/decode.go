package kvevents

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvmesh/kvmesh/cachestate"
)

// Bounds of one message. A step of an engine stores what one prefill computes: thousands of tokens.
const (
	MaxPayload = 64 << 20
	maxEvents  = 1 << 20
)

// Batch is one message of KV events. Decode reuses its memory: what it holds is valid until the next Decode.
type Batch struct {
	Time    float64 // of the engine, in seconds since 1970
	Rank    int     // data-parallel rank, when HasRank
	HasRank bool
	Events  []cachestate.BlockEvent
	Skipped int // events that were not understood
	Remote  int // events about blocks that lie elsewhere
}

// Decoder reads the messages of vLLM, SGLang and TensorRT-LLM, of every release: events as arrays of any length, or as
// maps. It is for one goroutine.
type Decoder struct {
	hashes []uint64
	extras []uint64
	tokens []uint32
	event  wireEvent
}

var (
	errForm   = errors.New("not an array of time, events and rank")
	errBounds = fmt.Errorf("more than %d events, or %d bytes", maxEvents, MaxPayload)
)

// Decode reads one payload. Events of unknown types, and events that are not as they should be, are left out and counted;
// an error says that the payload as a whole is broken.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	*b = Batch{Events: b.Events[:0]}
	d.hashes, d.extras, d.tokens = d.hashes[:0], d.extras[:0], d.tokens[:0]
	if len(payload) > MaxPayload {
		return fmt.Errorf("decode KV events: %w", errBounds)
	}
	events, err := d.outer(payload, b)
	if err != nil {
		return fmt.Errorf("decode KV events: %w", err)
	}
	if err := d.events(events, b); err != nil {
		return fmt.Errorf("decode KV events: %w", err)
	}
	return nil
}

// outer reads the batch itself and returns the array of its events.
func (d *Decoder) outer(p []byte, b *Batch) (events []byte, err error) {
	if msgp.NextType(p) == msgp.MapType {
		return d.outerMap(p, b)
	}
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n < 2 {
		return nil, errors.Join(errForm, err)
	}
	if b.Time, p, err = number(p); err != nil {
		return nil, err
	}
	events = p
	if n == 2 {
		return events, nil
	}
	if p, err = msgp.Skip(p); err != nil {
		return nil, err
	}
	b.rank(p)
	return events, nil
}

// outerMap reads a batch in a form that was never released.
func (d *Decoder) outerMap(p []byte, b *Batch) (events []byte, err error) {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return nil, err
	}
	for range n {
		var key []byte
		if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
			return nil, err
		}
		switch string(key) {
		case "ts":
			b.Time, _, _ = number(p) // nothing depends on it
		case "events":
			events = p
		case "data_parallel_rank":
			b.rank(p)
		}
		if p, err = msgp.Skip(p); err != nil {
			return nil, err
		}
	}
	if events == nil {
		return nil, errForm
	}
	return events, nil
}

func (b *Batch) rank(p []byte) {
	if t := msgp.NextType(p); t != msgp.IntType && t != msgp.UintType {
		return
	}
	if v, _, err := msgp.ReadInt64Bytes(p); err == nil && v >= 0 && v < 1<<16 {
		b.Rank, b.HasRank = int(v), true
	}
}

func number(p []byte) (float64, []byte, error) {
	switch msgp.NextType(p) {
	case msgp.Float64Type, msgp.Float32Type:
		return msgp.ReadFloat64Bytes(p)
	case msgp.IntType, msgp.UintType:
		v, p, err := msgp.ReadInt64Bytes(p)
		return float64(v), p, err
	}
	p, err := msgp.Skip(p)
	return 0, p, err
}

func (d *Decoder) events(p []byte, b *Batch) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return err
	}
	if n > maxEvents || int64(n) > int64(len(p)) {
		return errBounds
	}
	for range n {
		rest, err := msgp.Skip(p)
		if err != nil {
			return err
		}
		d.one(p[:len(p)-len(rest)], b)
		p = rest
	}
	return nil
}

// one decodes one event, which is whole, and adds it to the batch if it is understood.
func (d *Decoder) one(p []byte, b *Batch) {
	e := &d.event
	*e = wireEvent{}
	ok := false
	switch msgp.NextType(p) {
	case msgp.ArrayType:
		ok = e.readArray(p)
	case msgp.MapType:
		ok = e.readMap(p)
	}
	if !ok {
		b.Skipped++
		return
	}
	if e.remote {
		b.Remote++
		return
	}
	hashes, extras, tokens := len(d.hashes), len(d.extras), len(d.tokens)
	out, ok := d.event.decode(d)
	if !ok {
		d.hashes, d.extras, d.tokens = d.hashes[:hashes], d.extras[:extras], d.tokens[:tokens]
		b.Skipped++
		return
	}
	b.Events = append(b.Events, out)
}

// decode makes the neutral form. The slices of the decoder may move as they grow; events keep what they were given.
func (e *wireEvent) decode(d *Decoder) (out cachestate.BlockEvent, ok bool) {
	out.Kind = e.kind
	if e.kind == cachestate.BlocksCleared {
		return out, true
	}
	if out.Hashes, ok = d.readHashes(e.hashes); !ok || len(out.Hashes) == 0 {
		return out, false
	}
	out.Tier = tierOf(text(e.medium))
	out.Group = int(smallInt(e.group, 1<<10))
	if e.kind == cachestate.BlocksRemoved {
		return out, true
	}
	if e.parent != nil && !msgp.IsNil(e.parent) {
		if out.Parent, _, ok = readHash(e.parent); !ok {
			return out, false
		}
		out.HasParent = true
	}
	if out.Tokens, ok = d.readTokens(e.tokens); !ok {
		return out, false
	}
	out.BlockTokens = int(smallInt(e.blockSize, math.MaxInt32))
	out.Window = int(smallInt(e.window, math.MaxInt32))
	out.GroupKind = groupKindOf(e.spec, out.Group)
	out.ShowsExtras = e.showsExtras
	out.Extras, ok = d.readExtras(e, &out)
	return out, ok
}

// readHashes reads integers, signed or not, and byte strings, whose last eight bytes count.
func (d *Decoder) readHashes(p []byte) ([]uint64, bool) {
	n, p, ok := list(p)
	if !ok {
		return nil, false
	}
	from := len(d.hashes)
	for range n {
		var h uint64
		if h, p, ok = readHash(p); !ok {
			return nil, false
		}
		d.hashes = append(d.hashes, h)
	}
	return d.hashes[from:len(d.hashes):len(d.hashes)], true
}

// list reads the header of an array whose elements take a byte each at least.
func list(p []byte) (n int, rest []byte, ok bool) {
	if p == nil {
		return 0, nil, false
	}
	count, rest, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || int64(count) > int64(len(rest)) {
		return 0, nil, false
	}
	return int(count), rest, true
}

func readHash(p []byte) (h uint64, rest []byte, ok bool) {
	switch msgp.NextType(p) {
	case msgp.BinType, msgp.StrType:
		b, rest, ok := bytesOf(p)
		for _, c := range b[max(0, len(b)-8):] {
			h = h<<8 | uint64(c)
		}
		return h, rest, ok
	case msgp.IntType:
		v, rest, err := msgp.ReadInt64Bytes(p)
		return uint64(v), rest, err == nil
	case msgp.UintType:
		v, rest, err := msgp.ReadUint64Bytes(p)
		return v, rest, err == nil
	}
	return 0, nil, false
}

func bytesOf(p []byte) (b, rest []byte, ok bool) {
	var err error
	if msgp.NextType(p) == msgp.StrType {
		b, rest, err = msgp.ReadStringZC(p)
	} else {
		b, rest, err = msgp.ReadBytesZC(p)
	}
	return b, rest, err == nil
}

// readTokens reads token ids. A pair of ids, SGLang's with speculative decoding, becomes one number.
func (d *Decoder) readTokens(p []byte) ([]uint32, bool) {
	n, p, ok := list(p)
	if !ok {
		return nil, false
	}
	from := len(d.tokens)
	for range n {
		var id uint32
		if id, p, ok = readToken(p); !ok {
			return nil, false
		}
		d.tokens = append(d.tokens, id)
	}
	return d.tokens[from:len(d.tokens):len(d.tokens)], true
}

func readToken(p []byte) (id uint32, rest []byte, ok bool) {
	if len(p) > 0 && p[0] < 0x80 { // most ids of small vocabularies, and quick
		return uint32(p[0]), p[1:], true
	}
	if msgp.NextType(p) != msgp.ArrayType {
		v, rest, err := msgp.ReadInt64Bytes(p)
		return uint32(v), rest, err == nil && v >= math.MinInt32 && v <= math.MaxUint32
	}
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n != 2 {
		return 0, nil, false
	}
	first, p, err := msgp.ReadUint32Bytes(p)
	if err != nil {
		return 0, nil, false
	}
	second, p, err := msgp.ReadUint32Bytes(p)
	return first*0x9e3779b1 ^ second, p, err == nil
}

// readExtras returns what besides tokens went into each block, nil when nothing did into any.
func (d *Decoder) readExtras(e *wireEvent, out *cachestate.BlockEvent) ([]uint64, bool) {
	n := len(out.Hashes)
	switch {
	case e.extras != nil && !msgp.IsNil(e.extras):
		return d.readExtraKeys(e.extras, n)
	case len(e.lora) > 0 && !msgp.IsNil(e.lora):
		extra := cachestate.BlockExtra(string(text(e.lora)))
		from := len(d.extras)
		for range n {
			d.extras = append(d.extras, extra)
		}
		return d.extras[from:len(d.extras):len(d.extras)], true
	case len(e.salt) > 0 && !out.HasParent:
		from := len(d.extras)
		d.extras = append(d.extras, cachestate.BlockExtra(string(e.salt)))
		return d.extras[from:len(d.extras):len(d.extras)], true
	}
	return nil, true
}

// readExtraKeys reads an entry for each hash: nil, or a list of adapter, media and salt.
func (d *Decoder) readExtraKeys(p []byte, n int) ([]uint64, bool) {
	count, p, ok := list(p)
	if !ok {
		return nil, false
	}
	from := len(d.extras)
	for i := range count {
		extra := uint64(0)
		rest, err := msgp.Skip(p)
		if err != nil {
			return nil, false
		}
		if !msgp.IsNil(p) {
			if extra, ok = extraOf(p[:len(p)-len(rest)]); !ok {
				return nil, false
			}
		}
		if p = rest; i < n {
			d.extras = append(d.extras, extra)
		}
	}
	return d.extras[from:len(d.extras):len(d.extras)], true
}

// extraOf reads one entry. Strings stand for themselves, a medium for its identifier and offset.
func extraOf(p []byte) (uint64, bool) {
	n, p, ok := list(p)
	if !ok {
		return 0, false
	}
	parts := make([]string, 0, min(n, 16))
	for range n {
		rest, err := msgp.Skip(p)
		if err != nil {
			return 0, false
		}
		parts = append(parts, partOf(p[:len(p)-len(rest)]))
		p = rest
	}
	return cachestate.BlockExtra(parts...), true
}

func partOf(p []byte) string {
	if s, _, ok := bytesOf(p); ok {
		return string(s)
	}
	if n, inner, ok := list(p); ok && n == 2 {
		if id, rest, ok := bytesOf(inner); ok {
			if offset, _, err := msgp.ReadInt64Bytes(rest); err == nil {
				return string(id) + "\x00" + strconv.FormatInt(offset, 10)
			}
		}
	}
	return string(p)
}
