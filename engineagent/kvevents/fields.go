package kvevents

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/kvmesh/kvmesh/cachestate"
)

// wireEvent is one event with its fields as they came. A field that is nil was not there.
type wireEvent struct {
	kind cachestate.BlockEventKind

	hashes, parent, tokens, blockSize []byte
	medium, lora, extras, group       []byte
	spec, window                      []byte
	salt                              []byte // text
	remote, showsExtras               bool
}

func kindOf(tag []byte) (cachestate.BlockEventKind, bool) {
	switch string(tag) {
	case "BlockStored":
		return cachestate.BlocksStored, true
	case "BlockRemoved":
		return cachestate.BlocksRemoved, true
	case "AllBlocksCleared":
		return cachestate.BlocksCleared, true
	}
	return 0, false
}

// readArray reads the form of vLLM before 0.24.0 and of SGLang before its own change: the tag, then the fields in the
// order of their declaration. Later releases appended fields.
func (e *wireEvent) readArray(p []byte) bool {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n == 0 {
		return false
	}
	tag, p, err := msgp.ReadStringZC(p)
	if err != nil {
		return false
	}
	var ok bool
	if e.kind, ok = kindOf(tag); !ok {
		return false
	}
	for i := 1; i < int(n); i++ {
		rest, err := msgp.Skip(p)
		if err != nil {
			return false
		}
		e.setAt(i, p[:len(p)-len(rest)])
		p = rest
	}
	// From 9 fields on, vLLM names salts and adapters. SGLang's shorter ones do only for prompts that have a salt.
	e.showsExtras = e.showsExtras || n >= 9
	return true
}

// setAt takes the field at an index of an array.
func (e *wireEvent) setAt(i int, v []byte) {
	if e.kind == cachestate.BlocksRemoved {
		switch i {
		case 1:
			e.hashes = v
		case 2:
			e.medium = v
		case 3:
			e.group = v
		}
		return
	}
	if i == 7 && msgp.NextType(v) == msgp.MapType { // SGLang, for prompts with a salt
		e.readSalt(v)
		return
	}
	switch i {
	case 1:
		e.hashes = v
	case 2:
		e.parent = v
	case 3:
		e.tokens = v
	case 4:
		e.blockSize = v
	case 6: // 5 is a number for the adapter, which means something within the process only
		e.medium = v
	case 7:
		e.lora = v
	case 8:
		e.extras = v
	case 9:
		e.group = v
	case 10:
		e.spec = v
	case 11:
		e.window = v
	}
}

func (e *wireEvent) readSalt(p []byte) {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	for range n {
		if err != nil {
			return
		}
		var key []byte
		if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
			return
		}
		if string(key) == "cache_salt" {
			e.salt, e.showsExtras = text(p), true
		}
		p, err = msgp.Skip(p)
	}
}

// readMap reads the form of vLLM from 0.24.0 on. Fields may come in any order and some may be unknown.
func (e *wireEvent) readMap(p []byte) bool {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	known := false
	for range n {
		var key []byte
		if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
			return false
		}
		rest, err := msgp.Skip(p)
		if err != nil {
			return false
		}
		v := p[:len(p)-len(rest)]
		if string(key) == "type" {
			if e.kind, known = kindOf(text(v)); !known {
				return false
			}
		} else {
			e.set(key, v)
		}
		p = rest
	}
	e.showsExtras = true
	return known && err == nil
}

func (e *wireEvent) set(key, v []byte) {
	switch string(key) {
	case "block_hashes":
		e.hashes = v
	case "parent_block_hash":
		e.parent = v
	case "token_ids":
		e.tokens = v
	case "block_size":
		e.blockSize = v
	case "medium":
		e.medium = v
	case "lora_name":
		e.lora = v
	case "extra_keys":
		e.extras = v
	case "group_idx":
		e.group = v
	case "kv_cache_spec_kind":
		e.spec = v
	case "kv_cache_spec_sliding_window":
		e.window = v
	case "cache_salt":
		e.salt = text(v)
	case "locality":
		e.remote = string(text(v)) == "REMOTE"
	}
}

// text returns a string's bytes, nil when v is none.
func text(v []byte) []byte {
	if msgp.NextType(v) != msgp.StrType {
		return nil
	}
	s, _, err := msgp.ReadStringZC(v)
	if err != nil {
		return nil
	}
	return s
}

// smallInt returns an integer between 0 and most, 0 when v is none.
func smallInt(v []byte, most int64) int64 {
	if t := msgp.NextType(v); t != msgp.IntType && t != msgp.UintType {
		return 0
	}
	i, _, err := msgp.ReadInt64Bytes(v)
	if err != nil {
		return 0
	}
	return min(max(i, 0), most)
}

// tierOf reads where a block lies. The names are the engines' own and more may come: what is neither the GPU nor the
// host's memory is slower than both.
func tierOf(medium []byte) cachestate.Tier {
	switch string(medium) {
	case "", "GPU":
		return cachestate.TierGPU
	case "CPU", "CPU_PINNED":
		return cachestate.TierCPU
	}
	return cachestate.TierDisk
}

// groupKindOf reads what a cache group holds. Releases that do not say have one group, or more of which nothing is known.
func groupKindOf(spec []byte, group int) cachestate.GroupKind {
	switch string(text(spec)) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return cachestate.GroupFull
	case "sliding_window", "sliding_window_mla":
		return cachestate.GroupSliding
	case "mamba":
		return cachestate.GroupMamba
	case "":
		if group == 0 {
			return cachestate.GroupFull
		}
	}
	return cachestate.GroupOther
}
