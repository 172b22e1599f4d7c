package kvevents

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvmesh/kvmesh/cachestate"
)

// Batch is one message of KV events. Decode reuses its memory: what it holds is valid until the next Decode.
type Batch struct {
	Time    float64 // of the engine, in seconds since 1970; 0 when it is not a number
	Rank    int     // data-parallel rank, when HasRank
	HasRank bool
	Events  []cachestate.BlockEvent
	Skipped int  // events of unknown types, and events that are not as they should be
	Remote  int  // events about blocks that lie elsewhere
	Unsure  bool // a removal was skipped: what was held before Events is not known any more
}

// Decoder reads the messages of vLLM, SGLang and TensorRT-LLM, of every release: events as lists of any length, or as
// maps. It is for one goroutine.
type Decoder struct {
	// The slices of the events point into these. They may move as they grow; events keep what they were given.

	hashes, extras []uint64
	tokens         []uint32

	event wireEvent
	parts []string
}

var (
	errForm   = errors.New("it is not a list of time, events and rank")
	errEvents = errors.New("its events are not a list")
)

// Decode reads one payload. Events of unknown types, and events that are not as they should be, are left out and
// counted; a removal among these leaves those before it out too. An error says that the payload as a whole is broken or beyond the bounds; the batch then holds no events.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	*b = Batch{Events: reuse(b.Events)}
	d.hashes, d.extras, d.tokens = reuse(d.hashes), reuse(d.extras), reuse(d.tokens)
	if err := d.batch(payload, b); err != nil {
		*b = Batch{Events: b.Events[:0]}
		return fmt.Errorf("decode KV events: %w", err)
	}
	return nil
}

// reuse empties a slice. What one huge batch took is not kept for ever.
func reuse[T any](s []T) []T {
	const most = 1 << 18
	if cap(s) > most {
		return nil
	}
	return s[:0]
}

// batch reads the batch itself: time, events and, since vLLM 0.9.1, the rank. A map was never released.
func (d *Decoder) batch(p []byte, b *Batch) error {
	if len(p) > MaxPayload {
		return errBounds
	}
	if msgp.NextType(p) == msgp.MapType {
		return d.batchMap(p, b)
	}
	n, p, ok := list(p)
	if !ok || n < 2 {
		return errForm
	}
	at, p, err := take(p, 1)
	if err != nil {
		return err
	}
	b.Time = number(at)
	if p, err = d.events(p, b); err != nil {
		return err
	}
	for i := 2; i < n; i++ {
		var v []byte
		if v, p, err = take(p, 1); err != nil {
			return err
		}
		if i == 2 {
			b.rank(v)
		}
	}
	return nil
}

func (d *Decoder) batchMap(p []byte, b *Batch) error {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return err
	}
	found := false
	for range n {
		var key, v []byte
		if key, p, err = take(p, 1); err != nil {
			return err
		}
		if name, _ := text(key); string(name) == "events" {
			found = true
			b.Events, b.Skipped, b.Remote, b.Unsure = b.Events[:0], 0, 0, false
			if p, err = d.events(p, b); err != nil {
				return err
			}
			continue
		}
		if v, p, err = take(p, 1); err != nil {
			return err
		}
		switch name, _ := text(key); string(name) {
		case "ts":
			b.Time = number(v)
		case "data_parallel_rank":
			b.rank(v)
		}
	}
	if !found {
		return errForm
	}
	return nil
}

func (b *Batch) rank(v []byte) {
	const most = 1<<16 - 1
	b.Rank, b.HasRank = count(v, most)
	b.HasRank = b.HasRank && !missing(v)
	if !b.HasRank {
		b.Rank = 0
	}
}

func number(v []byte) float64 {
	switch msgp.NextType(v) {
	case msgp.Float64Type, msgp.Float32Type:
		f, _, _ := msgp.ReadFloat64Bytes(v)
		return f
	case msgp.IntType, msgp.UintType:
		i, _, _ := msgp.ReadInt64Bytes(v)
		return float64(i)
	default:
		return 0
	}
}

// events reads the list of events and returns what follows it.
func (d *Decoder) events(p []byte, b *Batch) ([]byte, error) {
	n, p, ok := list(p)
	switch {
	case !ok:
		return nil, errEvents
	case n > maxEvents:
		return nil, errBounds
	case n > len(p): // an event takes a byte at least
		return nil, errShort
	}
	for range n {
		var err error
		if p, err = d.one(p, b); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// one reads one event and adds it to the batch if it is understood.
func (d *Decoder) one(p []byte, b *Batch) (rest []byte, err error) {
	e := &d.event
	*e = wireEvent{}
	rest, err = e.read(p)
	switch {
	case err != nil:
		return nil, err
	case e.items() > maxItems:
		return nil, errBounds
	case !e.known:
		b.Skipped++
		return rest, nil
	case e.remote:
		b.Remote++
		return rest, nil
	}
	hashes, extras, tokens := len(d.hashes), len(d.extras), len(d.tokens)
	b.Events = append(b.Events, cachestate.BlockEvent{Kind: e.kind})
	out := &b.Events[len(b.Events)-1]
	ok := d.fill(out, e)
	if ok && (out.Kind == cachestate.BlocksCleared || len(out.Hashes) > 0) {
		return rest, nil
	}
	b.Events = b.Events[:len(b.Events)-1]
	d.hashes, d.extras, d.tokens = d.hashes[:hashes], d.extras[:extras], d.tokens[:tokens]
	if !ok {
		b.skip(e.kind)
	} // else it names no block: groups that leave blocks out have such events
	return rest, nil
}

// skip leaves out an event that is not as it should be. A removal may be of any block of the events before it.
func (b *Batch) skip(kind cachestate.BlockEventKind) {
	b.Skipped++
	if kind == cachestate.BlocksRemoved {
		b.Unsure, b.Events = true, b.Events[:0]
	}
}

// fill makes the neutral form. It returns false for an event that is not as it should be.
func (d *Decoder) fill(out *cachestate.BlockEvent, e *wireEvent) (ok bool) {
	if out.Kind == cachestate.BlocksCleared {
		return true
	}
	if out.Hashes, ok = d.readHashes(e.hashes); !ok {
		return false
	}
	if out.Tier, ok = tierOf(e.medium); !ok {
		return false
	}
	if out.Group, ok = count(e.group, maxNumber); !ok {
		return false
	}
	return out.Kind == cachestate.BlocksRemoved || d.fillStored(out, e)
}

func (d *Decoder) fillStored(out *cachestate.BlockEvent, e *wireEvent) (ok bool) {
	if out.HasParent = !missing(e.parent); out.HasParent {
		if out.Parent, _, ok = readHash(e.parent); !ok {
			return false
		}
	}
	if out.Tokens, ok = d.readTokens(e.tokens); !ok {
		return false
	}
	if out.BlockTokens, ok = count(e.blockSize, maxNumber); !ok {
		return false
	}
	if out.Window, ok = count(e.window, maxNumber); !ok {
		return false
	}
	out.GroupKind = groupKindOf(e.spec, out.Group)
	out.ShowsExtras = e.showsExtras
	out.Extras, ok = d.readExtras(e, out)
	return ok
}
