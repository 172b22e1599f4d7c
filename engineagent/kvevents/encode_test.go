package kvevents

import "github.com/tinylib/msgp/msgp"

// appender writes a value.
type appender = func([]byte) []byte

// batchOf writes a batch of n events that are alike.
func batchOf(n int, event appender) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1)
	b = msgp.AppendArrayHeader(b, uint32(n))
	for range n {
		b = event(b)
	}
	return msgp.AppendInt(b, 0)
}

// sglangStored is the event of one page, as a list of seven.
func sglangStored(tokens int) appender {
	return func(b []byte) []byte {
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 7), "BlockStored")
		b = msgp.AppendInt64(msgp.AppendArrayHeader(b, 1), -0x123456789abcdef)
		b = msgp.AppendInt64(b, 0x23456789abcdef01)
		b = appendIDs(b, tokens)
		b = msgp.AppendNil(msgp.AppendInt(b, tokens))
		return msgp.AppendString(b, "GPU")
	}
}

// vllmStored is the event of one block, as a map.
func vllmStored(tokens int) appender {
	return func(b []byte) []byte {
		b = msgp.AppendMapHeader(b, 11)
		b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
		b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), 1)
		b = msgp.AppendUint64(b, 0xfedcba9876543210)
		b = msgp.AppendUint64(msgp.AppendString(b, "parent_block_hash"), 0xedcba9876543210f)
		b = appendIDs(msgp.AppendString(b, "token_ids"), tokens)
		b = msgp.AppendInt(msgp.AppendString(b, "block_size"), tokens)
		b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
		b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
		b = msgp.AppendNil(msgp.AppendString(b, "lora_name"))
		b = msgp.AppendNil(msgp.AppendArrayHeader(msgp.AppendString(b, "extra_keys"), 1))
		b = msgp.AppendInt(msgp.AppendString(b, "group_idx"), 0)
		return msgp.AppendString(msgp.AppendString(b, "kv_cache_spec_kind"), "full_attention")
	}
}

func sglangRemoved() appender {
	return func(b []byte) []byte {
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 3), "BlockRemoved")
		b = msgp.AppendInt64(msgp.AppendArrayHeader(b, 1), -0x123456789abcdef)
		return msgp.AppendString(b, "GPU")
	}
}

func appendIDs(b []byte, n int) []byte {
	b = msgp.AppendArrayHeader(b, uint32(n))
	for i := range n {
		b = msgp.AppendInt(b, 100_000+i)
	}
	return b
}

// dict is a map whose keys and values alternate.
type dict []any

// encode writes a value of Go as msgpack. An appender writes itself.
func encode(v any) []byte { return appendValue(nil, v) }

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return msgp.AppendNil(b)
	case appender:
		return v(b)
	case int:
		return msgp.AppendInt(b, v)
	case uint64:
		return msgp.AppendUint64(b, v)
	case float64:
		return msgp.AppendFloat64(b, v)
	case bool:
		return msgp.AppendBool(b, v)
	case string:
		return msgp.AppendString(b, v)
	case []byte:
		return msgp.AppendBytes(b, v)
	case []any:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, item := range v {
			b = appendValue(b, item)
		}
		return b
	case dict:
		b = msgp.AppendMapHeader(b, uint32(len(v)/2))
		for _, item := range v {
			b = appendValue(b, item)
		}
		return b
	}
	panic("no form for this value")
}
