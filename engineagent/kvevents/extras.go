package kvevents

import (
	"slices"
	"strconv"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvmesh/kvmesh/cachestate"
)

// readExtras returns what besides tokens went into each block; none when nothing did into any.
func (d *Decoder) readExtras(e *wireEvent, out *cachestate.BlockEvent) (extras []uint64, ok bool) {
	if !missing(e.extras) {
		return d.readExtraKeys(e.extras, len(out.Hashes))
	}
	if missing(e.lora) && missing(e.salt) {
		return nil, true
	}
	lora := partOf(e.lora)
	rest := cachestate.BlockExtra(lora)
	first := rest
	if !out.HasParent {
		first = cachestate.BlockExtra(lora, partOf(e.salt))
	}
	from := len(d.extras)
	for i := range out.Hashes {
		if i == 0 {
			d.extras = append(d.extras, first)
		} else {
			d.extras = append(d.extras, rest)
		}
	}
	return d.extras[from:len(d.extras):len(d.extras)], true
}

// readExtraKeys reads an entry for each of n hashes. With another number of them none could be given to its hash.
func (d *Decoder) readExtraKeys(p []byte, n int) (extras []uint64, ok bool) {
	entries, p, ok := list(p)
	if !ok || entries != n {
		return nil, false
	}
	from := len(d.extras)
	d.extras = slices.Grow(d.extras, n)
	for range n {
		if msgp.IsNil(p) {
			d.extras, p = append(d.extras, 0), p[1:]
			continue
		}
		v, rest, err := take(p, fieldDepth+1)
		if err != nil {
			return nil, false
		}
		d.extras, p = append(d.extras, d.extraOf(v)), rest
	}
	return d.extras[from:len(d.extras):len(d.extras)], true
}

// extraOf reads one entry: a list of adapter, media, salt and digests of embeddings, which are told apart by nothing.
func (d *Decoder) extraOf(v []byte) uint64 {
	n, p, ok := list(v)
	if !ok {
		return cachestate.BlockExtra(partOf(v))
	}
	d.parts = d.parts[:0]
	for range n {
		part, rest, err := take(p, fieldDepth+2)
		if err != nil {
			break // not reached: v is well-formed
		}
		d.parts, p = append(d.parts, partOf(part)), rest
	}
	return cachestate.BlockExtra(d.parts...)
}

// partOf returns what stands for one part of an entry: a text stands for itself, a medium for its identifier and the
// place where it begins, anything else for its bytes, and nil for nothing.
func partOf(v []byte) string {
	if missing(v) {
		return ""
	}
	if s, ok := text(v); ok {
		return string(s)
	}
	if id, offset, ok := mediaKey(v); ok {
		return id + "\x00" + strconv.FormatInt(offset, 10)
	}
	return string(v)
}

// mediaKey reads a pair of identifier and offset.
func mediaKey(v []byte) (id string, offset int64, ok bool) {
	n, p, ok := list(v)
	if !ok || n != 2 {
		return "", 0, false
	}
	name, p, err := take(p, fieldDepth+3)
	if err != nil {
		return "", 0, false
	}
	s, ok := text(name)
	if !ok {
		return "", 0, false
	}
	offset, _, err = msgp.ReadInt64Bytes(p)
	return string(s), offset, err == nil
}
