package kvevents

import (
	"math"
	"reflect"
	"strconv"
	"testing"

	"github.com/kvmesh/kvmesh/cachestate"
)

// twinDecode decodes as Decoder does, in the plainest way: a tree of values, and then a walk.
func twinDecode(payload []byte) (b Batch, ok bool) {
	root, _, levels, err := twinRead(payload)
	if err != nil || levels > maxDepth {
		return b, false
	}
	var at, events, rank *node
	switch v := root.v.(type) {
	case []node:
		if len(v) < 2 {
			return b, false
		}
		at, events = &v[0], &v[1]
		if len(v) > 2 {
			rank = &v[2]
		}
	case pairs:
		at, events, rank = v.get("ts"), v.get("events"), v.get("data_parallel_rank")
		for i := 0; i < len(v); i += 2 {
			if _, isList := v[i+1].v.([]node); v[i].v == "events" && !isList {
				return b, false
			}
		}
	}
	list, ok := of[[]node](events)
	if !ok {
		return b, false
	}
	if at != nil {
		switch v := at.v.(type) {
		case float64:
			b.Time = v
		case int64:
			b.Time = float64(v)
		case uint64:
			if v <= math.MaxInt64 {
				b.Time = float64(v)
			}
		}
	}
	if r, there, ok := twinNumber(rank); there && ok && r < 1<<16 {
		b.Rank, b.HasRank = r, true
	}
	for _, event := range list {
		twinEvent(event, &b)
	}
	return b, true
}

func of[T any](n *node) (v T, ok bool) {
	if n == nil {
		return v, false
	}
	v, ok = n.v.(T)
	return v, ok
}

// twinNumber reads a number from 0 to 2^31 - 1.
func twinNumber(n *node) (v int, there, ok bool) {
	if n == nil || n.v == nil {
		return 0, false, true
	}
	switch v := n.v.(type) {
	case int64:
		return int(v), true, v >= 0 && v <= math.MaxInt32
	case uint64:
		return int(v), true, v <= math.MaxInt32
	}
	return 0, true, false
}

// fieldNames are those of a list's fields.
var fieldNames = map[string][]string{
	"BlockStored": {
		"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
		"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
	},
	"BlockRemoved":     {"type", "block_hashes", "medium", "group_idx"},
	"AllBlocksCleared": {"type"},
}

// twinEvent makes a map of every event, and reads that.
func twinEvent(n node, b *Batch) {
	var fields pairs
	shows := true
	switch v := n.v.(type) {
	case []node:
		if len(v) == 0 {
			b.Skipped++
			return
		}
		tag, _ := v[0].v.(string)
		shows = len(v) >= 9
		for i, name := range fieldNames[tag] {
			if i >= len(v) {
				break
			}
			if metadata, ok := v[i].v.(pairs); ok && name == "lora_name" {
				shows = true
				if salt := metadata.get("cache_salt"); salt != nil {
					fields = append(fields, node{v: "cache_salt"}, *salt)
				}
				continue
			}
			fields = append(fields, node{v: name}, v[i])
		}
	case pairs:
		fields = v
	}
	out, good := twinFields(fields)
	where, _ := of[string](fields.get("locality"))
	_, known := fieldNames[twinText(fields.get("type"))]
	switch {
	case known && where == "REMOTE":
		b.Remote++
	case !known || !good:
		b.Skipped++
		if known && out.Kind == cachestate.BlocksRemoved {
			b.Unsure, b.Events = true, nil
		}
	case out.Kind == cachestate.BlocksCleared || len(out.Hashes) > 0:
		out.ShowsExtras = shows && out.Kind == cachestate.BlocksStored
		b.Events = append(b.Events, out)
	}
}

func twinText(n *node) string {
	s, _ := of[string](n)
	return s
}

func twinFields(f pairs) (out cachestate.BlockEvent, good bool) {
	tag := twinText(f.get("type"))
	if tag == "AllBlocksCleared" {
		out.Kind = cachestate.BlocksCleared
		return out, true
	}
	list, good := of[[]node](f.get("block_hashes"))
	for i := range list {
		h, ok := twinHash(&list[i])
		out.Hashes = append(out.Hashes, h)
		good = good && ok
	}
	if n := f.get("medium"); n != nil && n.v != nil {
		name, ok := of[string](n)
		good = good && ok
		tiers := map[string]cachestate.Tier{
			"GPU": cachestate.TierGPU, "CPU": cachestate.TierCPU, "CPU_PINNED": cachestate.TierCPU,
		}
		if out.Tier, ok = tiers[name]; !ok {
			out.Tier = cachestate.TierDisk
		}
	}
	group, _, ok := twinNumber(f.get("group_idx"))
	out.Group = group
	good = good && ok
	if tag == "BlockRemoved" {
		out.Kind = cachestate.BlocksRemoved
		return out, good
	}
	return out, twinStored(&out, f) && good
}

func twinStored(out *cachestate.BlockEvent, f pairs) bool {
	good := true
	if n := f.get("parent_block_hash"); n != nil && n.v != nil {
		out.HasParent = true
		out.Parent, good = twinHash(n)
	}
	tokens := f.get("token_ids")
	if tokens == nil {
		return false
	}
	list, ok := of[[]node](tokens)
	good = good && (ok || tokens.v == nil)
	for i := range list {
		id, ok := twinToken(&list[i])
		out.Tokens = append(out.Tokens, id)
		good = good && ok
	}
	size, _, ok := twinNumber(f.get("block_size"))
	out.BlockTokens = size
	good = good && ok
	window, _, ok := twinNumber(f.get("kv_cache_spec_sliding_window"))
	out.Window = window
	good = good && ok
	kinds := map[any]cachestate.GroupKind{
		"full_attention": cachestate.GroupFull, "mla_attention": cachestate.GroupFull,
		"sink_full_attention": cachestate.GroupFull, "sliding_window": cachestate.GroupSliding,
		"sliding_window_mla": cachestate.GroupSliding, "mamba": cachestate.GroupMamba,
	}
	out.GroupKind = cachestate.GroupOther
	if n := f.get("kv_cache_spec_kind"); n == nil || n.v == nil {
		if out.Group == 0 {
			out.GroupKind = cachestate.GroupFull
		}
	} else if k, ok := kinds[twinText(n)]; ok {
		out.GroupKind = k
	}
	return twinExtras(out, f) && good
}

func twinExtras(out *cachestate.BlockEvent, f pairs) bool {
	keys := f.get("extra_keys")
	if keys == nil || keys.v == nil {
		lora, salt := twinPart(f.get("lora_name")), twinPart(f.get("cache_salt"))
		isNil := func(n *node) bool { return n == nil || n.v == nil }
		if isNil(f.get("lora_name")) && isNil(f.get("cache_salt")) {
			return true
		}
		for i := range out.Hashes {
			if i > 0 || out.HasParent {
				salt = ""
			}
			out.Extras = append(out.Extras, cachestate.BlockExtra(lora, salt))
		}
		return true
	}
	list, ok := keys.v.([]node)
	for i := range list {
		var parts []string
		if entry, ok := list[i].v.([]node); ok {
			for j := range entry {
				parts = append(parts, twinPart(&entry[j]))
			}
		} else {
			parts = []string{twinPart(&list[i])}
		}
		out.Extras = append(out.Extras, cachestate.BlockExtra(parts...))
	}
	return ok && len(list) == len(out.Hashes)
}

func twinPart(n *node) string {
	if n == nil || n.v == nil {
		return ""
	}
	if s, ok := n.v.(string); ok {
		return s
	}
	if pair, ok := n.v.([]node); ok && len(pair) == 2 {
		id, isText := pair[0].v.(string)
		switch offset := pair[1].v.(type) {
		case int64:
			if isText {
				return id + "\x00" + strconv.FormatInt(offset, 10)
			}
		case uint64:
			if isText && offset <= math.MaxInt64 {
				return id + "\x00" + strconv.FormatUint(offset, 10)
			}
		}
	}
	return string(n.raw)
}

func twinHash(n *node) (h uint64, ok bool) {
	switch v := n.v.(type) {
	case int64:
		return uint64(v), true
	case uint64:
		return v, true
	case []byte:
		var last [8]byte
		tail := v[max(0, len(v)-8):]
		copy(last[8-len(tail):], tail)
		for _, c := range last {
			h = h*256 + uint64(c)
		}
		return h, true
	}
	return 0, false
}

func twinToken(n *node) (id uint32, ok bool) {
	switch v := n.v.(type) {
	case int64:
		return uint32(v), v >= math.MinInt32 && v <= math.MaxUint32
	case uint64:
		return uint32(v), v <= math.MaxUint32
	case []node:
		if len(v) != 2 {
			return 0, false
		}
		if _, nested := v[0].v.([]node); nested {
			return 0, false
		}
		if _, nested := v[1].v.([]node); nested {
			return 0, false
		}
		first, ok := twinToken(&v[0])
		_, also := twinToken(&v[1])
		return first, ok && also
	}
	return 0, false
}

// plain makes events comparable: it copies what points into arenas, and makes empty lists nil.
func plain(events []cachestate.BlockEvent) (out []cachestate.BlockEvent) {
	for _, e := range events {
		e.Hashes, e.Extras = append([]uint64(nil), e.Hashes...), append([]uint64(nil), e.Extras...)
		e.Tokens = append([]uint32(nil), e.Tokens...)
		out = append(out, e)
	}
	return out
}

// FuzzDecode: whatever comes from an engine, Decoder reads what the twin reads, and refuses what the twin cannot read.
func FuzzDecode(f *testing.F) {
	for _, v := range golden(f) {
		f.Add(v.payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var d Decoder
		var got Batch
		err := d.Decode(payload, &got)
		want, ok := twinDecode(payload)
		if ok != (err == nil) {
			t.Fatalf("error %v, of the twin %v", err, !ok)
		}
		if !ok {
			return
		}
		got.Events, want.Events = plain(got.Events), plain(want.Events)
		if math.IsNaN(got.Time) && math.IsNaN(want.Time) {
			got.Time, want.Time = 0, 0
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("\n got  %s\n want %s", words(&got), words(&want))
		}
		items := 0
		for _, e := range got.Events {
			items += len(e.Hashes) + len(e.Tokens)
		}
		if items > len(payload) {
			t.Fatalf("%d hashes and tokens out of %d bytes", items, len(payload))
		}
	})
}

func TestTwinReadsGoldenVectors(t *testing.T) {
	for _, v := range golden(t) {
		b, ok := twinDecode(v.payload)
		if got := words(&b); !ok || got != v.want {
			t.Errorf("%s:\n got  %s\n want %s", v.name, got, v.want)
		}
	}
}
