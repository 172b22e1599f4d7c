package simengine

import (
	"encoding/binary"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// encoder writes KV event batches as the engines' msgpack (ENGINES 1 and 3.1).
type encoder struct {
	sglang      bool
	asMap       bool
	arrayLen    int
	hashBytes   bool
	rank        int
	blockTokens int
	groups      []Group
}

func newEncoder(cfg *Config) encoder {
	k := &cfg.KVEvents
	return encoder{
		sglang: cfg.Kind == KindSGLang, asMap: k.Encoding == EncodingMap, arrayLen: k.ArrayLen, hashBytes: k.HashBytes,
		rank: k.Rank, blockTokens: cfg.BlockTokens, groups: cfg.Groups,
	}
}

// batch is an array of three also where events are maps: time, events, rank.
func (c *encoder) batch(at time.Time, events []kvEvent) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, float64(at.UnixNano())/1e9)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for i := range events {
		b = c.event(b, &events[i])
	}
	return msgp.AppendUint64(b, uint64(c.rank))
}

func (c *encoder) event(b []byte, e *kvEvent) []byte {
	switch {
	case c.asMap:
		return c.mapEvent(b, e)
	case e.kind == eventStored:
		return c.storedArray(b, e)
	case e.kind == eventRemoved:
		return c.removedArray(b, e)
	}
	return msgp.AppendString(msgp.AppendArrayHeader(b, 1), "AllBlocksCleared")
}

// storedArray has the tag and as many fields as the release knows, in declaration order.
func (c *encoder) storedArray(b []byte, e *kvEvent) []byte {
	n := c.arrayLen
	if c.sglang {
		n = 7
		if e.salt != "" {
			n = 8
		}
	}
	b = msgp.AppendString(msgp.AppendArrayHeader(b, uint32(n)), "BlockStored")
	b = c.hashes(b, e.hashes)
	b = c.parent(b, e)
	b = appendTokens(b, e.tokens)
	b = msgp.AppendUint64(b, c.blockSize(e))
	b = msgp.AppendNil(b) // lora_id
	if c.sglang {
		return sglangTail(msgp.AppendString(b, c.medium(e)), e)
	}
	fields := []func([]byte) []byte{
		func(b []byte) []byte { return msgp.AppendString(b, c.medium(e)) },
		func(b []byte) []byte { return appendOptional(b, e.adapter) },
		func(b []byte) []byte { return appendExtraKeys(b, e) },
		func(b []byte) []byte { return msgp.AppendUint64(b, uint64(e.group)) },
		func(b []byte) []byte { return msgp.AppendString(b, c.groups[e.group].Kind) },
		func(b []byte) []byte { return c.appendWindow(b, e.group) },
	}
	if e.host { // a placeholder has nothing of these
		fields[2], fields[4], fields[5] = msgp.AppendNil, msgp.AppendNil, msgp.AppendNil
	}
	for _, f := range fields[:n-6] {
		b = f(b)
	}
	return b
}

// medium is the name of an event's tier.
func (c *encoder) medium(e *kvEvent) string {
	switch {
	case !e.host:
		return "GPU"
	case c.sglang:
		return "CPU_PINNED"
	}
	return "CPU"
}

// blockSize: vLLM's offload connector knows no size.
func (c *encoder) blockSize(e *kvEvent) uint64 {
	if e.host && !c.sglang {
		return 0
	}
	return uint64(c.blockTokens)
}

// sglangTail is the map that salted requests carry in place of an eighth field.
func sglangTail(b []byte, e *kvEvent) []byte {
	if e.salt == "" {
		return b
	}
	return msgp.AppendString(msgp.AppendString(msgp.AppendMapHeader(b, 1), "cache_salt"), e.salt)
}

// removedArray grew with the releases too: medium came with 7 fields of BlockStored, the group with 10.
func (c *encoder) removedArray(b []byte, e *kvEvent) []byte {
	n := uint32(2)
	if c.sglang || c.arrayLen >= 7 {
		n++
	}
	if !c.sglang && c.arrayLen >= 10 {
		n++
	}
	b = c.hashes(msgp.AppendString(msgp.AppendArrayHeader(b, n), "BlockRemoved"), e.hashes)
	if n > 2 {
		b = msgp.AppendString(b, c.medium(e))
	}
	if n > 3 {
		b = msgp.AppendUint64(b, uint64(e.group))
	}
	return b
}

// mapEvent writes the tag first and leaves out fields at their default.
func (c *encoder) mapEvent(b []byte, e *kvEvent) []byte {
	switch e.kind {
	case eventStored:
		return c.storedMap(b, e)
	case eventRemoved:
		n := uint32(4)
		if c.sglang {
			n = 3
		}
		b = appendKey(msgp.AppendMapHeader(b, n), "type", "BlockRemoved")
		b = c.hashes(msgp.AppendString(b, "block_hashes"), e.hashes)
		b = appendKey(b, "medium", c.medium(e))
		if !c.sglang {
			b = msgp.AppendUint64(msgp.AppendString(b, "group_idx"), uint64(e.group))
		}
		return b
	default:
		return appendKey(msgp.AppendMapHeader(b, 1), "type", "AllBlocksCleared")
	}
}

func (c *encoder) storedMap(b []byte, e *kvEvent) []byte {
	b = appendKey(msgp.AppendMapHeader(b, c.storedFields(e)), "type", "BlockStored")
	b = c.hashes(msgp.AppendString(b, "block_hashes"), e.hashes)
	b = c.parent(msgp.AppendString(b, "parent_block_hash"), e)
	b = appendTokens(msgp.AppendString(b, "token_ids"), e.tokens)
	b = msgp.AppendUint64(msgp.AppendString(b, "block_size"), c.blockSize(e))
	b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
	b = appendKey(b, "medium", c.medium(e))
	if c.sglang {
		if e.salt != "" {
			b = appendKey(b, "cache_salt", e.salt)
		}
		return b
	}
	b = appendOptional(msgp.AppendString(b, "lora_name"), e.adapter)
	if !e.host {
		b = appendExtraKeys(msgp.AppendString(b, "extra_keys"), e)
	}
	b = msgp.AppendUint64(msgp.AppendString(b, "group_idx"), uint64(e.group))
	if !e.host {
		b = appendKey(b, "kv_cache_spec_kind", c.groups[e.group].Kind)
	}
	if c.hasWindow(e) {
		b = c.appendWindow(msgp.AppendString(b, "kv_cache_spec_sliding_window"), e.group)
	}
	return b
}

// storedFields is how many of the fields of storedMap an event has, its tag included.
func (c *encoder) storedFields(e *kvEvent) uint32 {
	switch {
	case c.sglang && e.salt != "":
		return 8
	case c.sglang:
		return 7
	case e.host:
		return 9
	case c.hasWindow(e):
		return 12
	}
	return 11
}

func (c *encoder) hasWindow(e *kvEvent) bool {
	return !c.sglang && !e.host && c.groups[e.group].Kind == GroupSliding
}

func appendKey(b []byte, key, value string) []byte {
	return msgp.AppendString(msgp.AppendString(b, key), value)
}

func appendOptional(b []byte, s string) []byte {
	if s == "" {
		return msgp.AppendNil(b)
	}
	return msgp.AppendString(b, s)
}

func (c *encoder) appendWindow(b []byte, group int) []byte {
	if w := c.groups[group].Window; w > 0 {
		return msgp.AppendUint64(b, uint64(w))
	}
	return msgp.AppendNil(b)
}

// appendExtraKeys has an entry per hash: nil, or what besides tokens went into it. The adapter is in all blocks, the salt
// in the first one.
func appendExtraKeys(b []byte, e *kvEvent) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(e.hashes)))
	for i := range e.hashes {
		var keys []string
		if e.adapter != "" {
			keys = append(keys, e.adapter)
		}
		if e.salt != "" && e.root && i == 0 {
			keys = append(keys, e.salt)
		}
		if keys == nil {
			b = msgp.AppendNil(b)
			continue
		}
		b = msgp.AppendArrayHeader(b, uint32(len(keys)))
		for _, k := range keys {
			b = msgp.AppendString(b, k)
		}
	}
	return b
}

func appendTokens(b []byte, tokens []Token) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, t := range tokens {
		b = msgp.AppendUint64(b, uint64(t))
	}
	return b
}

func (c *encoder) hashes(b []byte, hashes []uint64) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = c.hash(b, h)
	}
	return b
}

func (c *encoder) parent(b []byte, e *kvEvent) []byte {
	if !e.hasParent {
		return msgp.AppendNil(b)
	}
	return c.hash(b, e.parent)
}

// hash is signed in SGLang and unsigned in vLLM; as bytes it is a digest whose last 8 bytes are the integer.
func (c *encoder) hash(b []byte, h uint64) []byte {
	switch {
	case c.sglang && int64(h) < 0:
		return msgp.AppendInt64(b, int64(h))
	case !c.sglang && c.hashBytes:
		var digest [32]byte
		for i := range 4 {
			binary.BigEndian.PutUint64(digest[8*i:], h*uint64(2*(3-i)+1))
		}
		return msgp.AppendBytes(b, digest[:])
	}
	return msgp.AppendUint64(b, h)
}
