package kvevents

import (
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvmesh/kvmesh/cachestate"
)

// wireEvent is one event with its fields as they came, each a whole value. One that is empty was not there.
type wireEvent struct {
	kind  cachestate.BlockEventKind
	known bool

	hashes, parent, tokens, blockSize []byte
	medium, lora, extras, group       []byte
	spec, window, salt                []byte
	remote, showsExtras               bool
}

// Levels of a batch: it is at 0, its list of events at 1.
const (
	eventDepth = 2
	fieldDepth = 3
)

// maxNumber bounds sizes and numbers of groups.
const maxNumber = math.MaxInt32

// read takes one event apart and returns what follows it. An error says that it is not well-formed.
func (e *wireEvent) read(p []byte) (rest []byte, err error) {
	if n, inner, ok := list(p); ok {
		return e.readArray(n, inner)
	}
	if msgp.NextType(p) == msgp.MapType {
		return e.readMap(p)
	}
	return skip(p, eventDepth)
}

// readArray reads the form of vLLM before 0.24.0 and of SGLang before its own change: the tag, then the fields in the
// order of their declaration. Later releases appended fields.
func (e *wireEvent) readArray(n int, p []byte) (rest []byte, err error) {
	if n > maxItems {
		return nil, errBounds
	}
	for i := range n {
		var v []byte
		if v, p, err = take(p, fieldDepth); err != nil {
			return nil, err
		}
		switch {
		case i == 0:
			e.setKind(v)
		case e.kind == cachestate.BlocksRemoved:
			e.setRemovedAt(i, v)
		default:
			e.setStoredAt(i, v)
		}
	}
	// From 9 fields on, vLLM names salts and adapters.
	e.showsExtras = e.showsExtras || n >= 9
	return p, nil
}

func (e *wireEvent) setKind(tag []byte) {
	name, _ := text(tag)
	e.known = true
	switch string(name) {
	case "BlockStored":
		e.kind = cachestate.BlocksStored
	case "BlockRemoved":
		e.kind = cachestate.BlocksRemoved
	case "AllBlocksCleared":
		e.kind = cachestate.BlocksCleared
	default:
		e.known = false
	}
}

func (e *wireEvent) setRemovedAt(i int, v []byte) {
	switch i {
	case 1:
		e.hashes = v
	case 2:
		e.medium = v
	case 3:
		e.group = v
	}
}

func (e *wireEvent) setStoredAt(i int, v []byte) {
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
		if msgp.NextType(v) == msgp.MapType {
			e.setMetadata(v)
		} else {
			e.lora = v
		}
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

// setMetadata takes the map that SGLang's lists have for prompts with a salt, and for those only.
func (e *wireEvent) setMetadata(p []byte) {
	e.showsExtras = true
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return
	}
	for range n {
		var key, v []byte // whole, as p is
		key, p, _ = take(p, fieldDepth+1)
		v, p, _ = take(p, fieldDepth+1)
		if name, _ := text(key); string(name) == "cache_salt" {
			e.salt = v
		}
	}
}

// readMap reads the form of vLLM from 0.24.0 on. Fields may come in any order and some may be unknown.
func (e *wireEvent) readMap(p []byte) (rest []byte, err error) {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return nil, err
	}
	for range n {
		var key, v []byte
		if key, p, err = take(p, fieldDepth); err != nil {
			return nil, err
		}
		if v, p, err = take(p, fieldDepth); err != nil {
			return nil, err
		}
		if name, ok := text(key); ok {
			e.set(name, v)
		}
	}
	e.showsExtras = true
	return p, nil
}

// set is one straight switch.
func (e *wireEvent) set(name, v []byte) {
	switch string(name) {
	case "type":
		e.setKind(v)
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
		e.salt = v
	case "locality":
		where, _ := text(v)
		e.remote = string(where) == "REMOTE"
	}
}

// items is how many hashes and tokens there are.
func (e *wireEvent) items() int {
	hashes, _, _ := list(e.hashes)
	tokens, _, _ := list(e.tokens)
	return hashes + tokens
}

// tierOf reads where blocks lie. The names are the engines' own and more may come: what is neither the GPU nor the
// host's memory is slower than both.
func tierOf(medium []byte) (t cachestate.Tier, ok bool) {
	if missing(medium) {
		return cachestate.TierGPU, true
	}
	name, ok := text(medium)
	switch string(name) {
	case "GPU":
		return cachestate.TierGPU, ok
	case "CPU", "CPU_PINNED":
		return cachestate.TierCPU, ok
	}
	return cachestate.TierDisk, ok
}

// groupKindOf reads what a cache group holds. Releases that do not say have one group, or more of which nothing is
// known.
func groupKindOf(spec []byte, group int) cachestate.GroupKind {
	if missing(spec) && group == 0 {
		return cachestate.GroupFull
	}
	name, _ := text(spec)
	switch string(name) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return cachestate.GroupFull
	case "sliding_window", "sliding_window_mla":
		return cachestate.GroupSliding
	case "mamba":
		return cachestate.GroupMamba
	}
	return cachestate.GroupOther
}
