package kvevents

import (
	"errors"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// node is any value, with its bytes: nil, bool, int64, uint64, float64, string, []byte, []node, or pairs.
type node struct {
	raw []byte
	v   any
}

type pairs []node // keys and values alternate

// twinRead reads one value with msgp's own readers, and says how many levels it has and whether it is within bounds.
func twinRead(p []byte) (n node, rest []byte, levels int, err error) {
	switch msgp.NextType(p) {
	case msgp.NilType:
		rest, err = msgp.ReadNilBytes(p)
	case msgp.BoolType:
		n.v, rest, err = msgp.ReadBoolBytes(p)
	case msgp.IntType:
		n.v, rest, err = msgp.ReadInt64Bytes(p)
	case msgp.UintType:
		n.v, rest, err = msgp.ReadUint64Bytes(p)
	case msgp.Float64Type, msgp.Float32Type:
		n.v, rest, err = msgp.ReadFloat64Bytes(p)
	case msgp.StrType:
		n.v, rest, err = msgp.ReadStringBytes(p)
		if s, ok := n.v.(string); ok && len(s) > maxText {
			levels = math.MaxInt32
		}
	case msgp.BinType:
		n.v, rest, err = msgp.ReadBytesBytes(p, nil)
		if s, ok := n.v.([]byte); ok && len(s) > maxText {
			levels = math.MaxInt32
		}
	case msgp.ArrayType:
		var count uint32
		if count, rest, err = msgp.ReadArrayHeaderBytes(p); err == nil {
			var items []node
			items, rest, levels, err = twinItems(rest, int(count))
			n.v = items
		}
	case msgp.MapType:
		var count uint32
		if count, rest, err = msgp.ReadMapHeaderBytes(p); err == nil {
			var items []node
			items, rest, levels, err = twinItems(rest, 2*int(count))
			n.v = pairs(items)
		}
	case msgp.InvalidType:
		err = errors.New("invalid")
	default: // extensions
		rest, err = msgp.Skip(p)
		n.v = struct{}{}
		if len(p)-len(rest) > maxText {
			levels = math.MaxInt32
		}
	}
	if err == nil {
		n.raw = p[:len(p)-len(rest)]
	}
	return n, rest, levels, err
}

func twinItems(p []byte, count int) (items []node, rest []byte, levels int, err error) {
	for range count {
		var n node
		var deep int
		if n, p, deep, err = twinRead(p); err != nil {
			return nil, nil, 0, err
		}
		items, levels = append(items, n), max(levels, deep)
	}
	if count > 0 {
		levels++
	}
	return items, p, levels, nil
}

// get returns the last value of a key, nil when there is none.
func (p pairs) get(key string) *node {
	for i := len(p) - 2; i >= 0; i -= 2 {
		if p[i].v == key {
			return &p[i+1]
		}
	}
	return nil
}
