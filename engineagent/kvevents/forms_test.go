package kvevents

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// listOf is a list of values.
func listOf(values ...any) []any { return values }

func TestFormsOfEvents(t *testing.T) {
	digest := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 4)
	stored := func(fields ...any) []any { return append(listOf("BlockStored"), fields...) }
	mapped := func(pairs ...any) dict {
		return append(dict{
			"type", "BlockStored", "block_hashes", listOf(7), "parent_block_hash", nil, "token_ids",
			listOf(1, 2), "block_size", 2,
		}, pairs...)
	}
	const one = "stored 7, tokens 1 2 by 2, gpu, group 0 full"
	const shown = one + ", shows extras"
	for _, tt := range []struct {
		name  string
		event any
		want  string
	}{
		{"5 fields", stored(listOf(7), nil, listOf(1, 2), 2), one},
		{"6 fields", stored(listOf(7), nil, listOf(1, 2), 2, nil), one},
		{"7 fields", stored(listOf(7), nil, listOf(1, 2), 2, nil, "GPU"), one},
		{"8 fields", stored(listOf(7), nil, listOf(1, 2), 2, nil, "GPU", nil), one},
		{"8 fields, adapter", stored(listOf(7), nil, listOf(1, 2), 2, 3, "GPU", "ad"), one + ", extras {ad}"},
		{"8 fields, metadata without a salt", stored(listOf(7), nil, listOf(1, 2), 2, nil, "GPU", dict{"x", 1}), shown},
		{"9 fields", stored(listOf(7), nil, listOf(1, 2), 2, nil, "GPU", nil, listOf(nil)), shown + " {}"},
		{
			"9 fields, no extra keys but an adapter", stored(listOf(7), nil, listOf(1, 2), 2, 1, "GPU", "ad", nil),
			shown + " {ad}",
		},
		{
			"10 fields", stored(listOf(7), nil, listOf(1, 2), 2, nil, "GPU", nil, nil, 1),
			"stored 7, tokens 1 2 by 2, gpu, group 1 other, shows extras",
		},
		{
			"12 fields", stored(listOf(7), nil, listOf(1, 2), 2, nil, "GPU", nil, nil, 2, "sliding_window_mla", 128),
			"stored 7, tokens 1 2 by 2, gpu, group 2 sliding 128, shows extras",
		},
		{"15 fields", stored(listOf(7), nil, listOf(1, 2), 2, nil, "GPU", nil, nil, 0, "mla_attention", nil, dict{1, 2},
			"what", listOf(listOf())), shown},
		{"removed, 2 fields", listOf("BlockRemoved", listOf(1, 2)), "removed 1 2, gpu, group 0"},
		{"removed, 3 fields", listOf("BlockRemoved", listOf(1), "CPU_PINNED"), "removed 1, cpu, group 0"},
		{"removed, 4 fields", listOf("BlockRemoved", listOf(1), nil, 3), "removed 1, gpu, group 3"},
		{"removed, 6 fields", listOf("BlockRemoved", listOf(1), "STORAGE", 3, "LOCAL", nil), "removed 1, disk, group 3"},
		{"cleared, with a field to come", listOf("AllBlocksCleared", 1), "cleared"},

		{"map", mapped(), shown},
		{"map with unknown fields", mapped("session_id", "s", "ownership", nil, "new", dict{1, listOf(nil)}, 5, 6), shown},
		{
			"map with its tag last",
			dict{"block_hashes", listOf(1), "medium", "DISK", "type", "BlockRemoved"},
			"removed 1, disk, group 0",
		},
		{"map16", func(b []byte) []byte {
			b = append(b, 0xde, 0, 2)
			for _, text := range []string{"type", "BlockRemoved", "block_hashes"} {
				b = msgp.AppendString(b, text)
			}
			return append(b, 0x91, 9)
		}, "removed 9, gpu, group 0"},
		{"map, local", mapped("locality", "LOCAL"), shown},
		{"map, remote", mapped("locality", "REMOTE"), "1 remote"},
		{"map, removed elsewhere", dict{"type", "BlockRemoved", "block_hashes", listOf(1), "locality", "REMOTE"}, "1 remote"},
		{"map, adapter and salt", mapped("lora_name", "ad", "cache_salt", "salt"), shown + " {ad;salt}"},
		{
			"the last of two fields counts", mapped("block_size", 1, "block_size", 4),
			strings.Replace(shown, "by 2", "by 4", 1),
		},

		{
			"hashes of every width", listOf("BlockRemoved", listOf(0, -1, -200, 1<<40, -1<<40, uint64(math.MaxUint64))),
			"removed 0 18446744073709551615 18446744073709551416 1099511627776 18446742974197923840 18446744073709551615, " +
				"gpu, group 0",
		},
		{
			"hashes as digests", listOf("BlockRemoved", listOf(digest, digest[:16], digest[:8], digest[6:8], []byte{})),
			"removed 72623859790382856 72623859790382856 72623859790382856 1800 0, gpu, group 0",
		},
		{
			"digest as parent", stored(listOf(7), digest, listOf(1, 2), 2),
			"stored 7 after 72623859790382856, tokens 1 2 by 2, gpu, group 0 full",
		},
		{
			"tokens of every width", stored(listOf(7), nil,
				listOf(127, 128, 300, 70_000, uint64(math.MaxUint32), -1, math.MinInt32), 7),
			"stored 7, tokens 127 128 300 70000 4294967295 4294967295 2147483648 by 7, gpu, group 0 full",
		},
		{
			"pairs of tokens", stored(listOf(7), nil, listOf(listOf(1, 2), listOf(2, 1)), 2),
			"stored 7, tokens 1 2 by 2, gpu, group 0 full",
		},
		{"hash only", stored(listOf(7, 8), nil, listOf(), 0, nil, "CPU"), "stored 7 8, tokens by 0, cpu, group 0 full"},
		{"hash only, no list", stored(listOf(7), nil, nil, 0, nil, "FS"), "stored 7, tokens by 0, disk, group 0 full"},
		{"no block", stored(listOf(), nil, listOf(1, 2), 2), ""},
		{"no block removed", listOf("BlockRemoved", listOf()), ""},

		{"media", mapped("medium", "EXTERNAL"), strings.Replace(shown, "gpu", "disk", 1)},
		{"media to come", mapped("medium", "TAPE"), strings.Replace(shown, "gpu", "disk", 1)},
		{
			"kind, sink", mapped("group_idx", 1, "kv_cache_spec_kind", "sink_full_attention"),
			strings.Replace(shown, "group 0 full", "group 1 full", 1),
		},
		{
			"kind, sliding", mapped("kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 64),
			strings.Replace(shown, "group 0 full", "group 0 sliding 64", 1),
		},
		{"kind, mamba", mapped("kv_cache_spec_kind", "mamba"), strings.Replace(shown, "full", "mamba", 1)},
		{
			"kind, chunked", mapped("kv_cache_spec_kind", "chunked_local_attention"),
			strings.Replace(shown, "full", "other", 1),
		},
		{"kind, cross", mapped("kv_cache_spec_kind", "cross_attention"), strings.Replace(shown, "full", "other", 1)},
		{"kind, unknown", mapped("kv_cache_spec_kind", "unknown"), strings.Replace(shown, "full", "other", 1)},
		{"kind, nil", mapped("kv_cache_spec_kind", nil), shown},

		{"extra keys: texts", mapped("extra_keys", listOf(listOf("ad", "salt"))), shown + " {ad;salt}"},
		{"extra keys: medium", mapped("extra_keys", listOf(listOf(listOf("img", 12)))), shown + ` {img\012}`},
		{"extra keys: medium without offset", mapped("extra_keys", listOf(listOf("img"))), shown + " {img}"},
		{"extra keys: digest", mapped("extra_keys", listOf(listOf([]byte("xy")))), shown + " {\xc4\x02xy}"},
		{"extra keys: nested", mapped("extra_keys", listOf(listOf("a", listOf(1, nil)))), shown + " {a;\x92\x01\xc0}"},
		{"extra keys: no list", mapped("extra_keys", listOf("a")), shown + " {a}"},
		{"extra keys: none", mapped("extra_keys", listOf(listOf())), shown + " {}"},
		{"salt below a parent", dict{
			"type", "BlockStored", "block_hashes", listOf(7), "parent_block_hash", 6, "token_ids",
			listOf(1), "block_size", 1, "cache_salt", "s",
		}, "stored 7 after 6, tokens 1 by 1, gpu, group 0 full, shows extras {}"},
		{"salt in the first block alone", dict{
			"type", "BlockStored", "block_hashes", listOf(7, 8), "token_ids", listOf(1, 2),
			"block_size", 1, "cache_salt", "s",
		}, "stored 7 8, tokens 1 2 by 1, gpu, group 0 full, shows extras {s} {}"},
		{
			"adapter in all blocks", stored(listOf(7, 8), 6, listOf(1, 2), 1, nil, nil, "ad"),
			"stored 7 8 after 6, tokens 1 2 by 1, gpu, group 0 full, extras {ad} {ad}",
		},
	} {
		want := "at 1 rank 0 | " + tt.want + " | cleared"
		switch tt.want {
		case "1 remote":
			want = "at 1 rank 0 | cleared | 1 remote"
		case "":
			want = "at 1 rank 0 | cleared"
		}
		want = extras.ReplaceAllStringFunc(want, extraWords)
		if got := decoded(t, encode(listOf(1.0, listOf(tt.event, listOf("AllBlocksCleared")), 0))); got != want {
			t.Errorf("%s:\n got  %s\n want %s", tt.name, got, want)
		}
	}
}

func TestOddEventsAreSkippedAlone(t *testing.T) {
	good := func(i int, v any) []any {
		e := listOf("BlockStored", listOf(7), nil, listOf(1, 2), 2, nil, "GPU", nil, listOf(nil), 0, "full_attention", nil)
		e[i] = v
		return e
	}
	for _, event := range []any{
		nil, 5, "BlockStored", []byte("BlockStored"), listOf(),
		dict{},
		listOf("BlockInactive", listOf(1)),
		dict{"type", "BlockInactive"},
		listOf(nil, listOf(1)),
		dict{"type", 1},
		dict{"block_hashes", listOf(1)},
		dict{1, 2},
		listOf("BlockStored"), listOf("BlockStored", listOf(7)), listOf("BlockStored", listOf(7), nil),
		dict{"type", "BlockStored", "block_hashes", listOf(7), "block_size", 1},
		good(1, nil), good(1, 7), good(1, listOf(nil)), good(1, listOf("seven")), good(1, listOf(1.5)), good(1, dict{1, 2}),
		good(2, "six"), good(2, listOf(6)), good(3, 1), good(3, listOf("one", 2)), good(3, listOf(nil, 2)), good(3, dict{}),
		good(3, listOf(1<<32, 1)), good(3, listOf(math.MinInt32-1, 1)), good(3, listOf(uint64(math.MaxUint64), 1)),
		good(3, listOf(listOf(1, 2, 3), 1)), good(3, listOf(listOf(1, "x"), 1)), good(3, listOf(listOf(), 1)),
		good(3, listOf(listOf(1, listOf(2)))), good(4, -1), good(4, "2"), good(4, 1<<40), good(6, 1), good(6, listOf("GPU")),
		good(8, listOf()), good(8, listOf(nil, nil)), good(8, 3), good(8, "salt"), good(9, -1), good(9, "0"), good(11, "64"),
		good(11, -64),
	} {
		got := decoded(t, encode(listOf(1.0, listOf(event, listOf("BlockRemoved", listOf(1))), 0)))
		if want := "at 1 rank 0 | removed 1, gpu, group 0 | 1 skipped"; got != want {
			t.Errorf("%v:\n got  %s\n want %s", event, got, want)
		}
	}
}

// TestRemovalThatIsNotUnderstood: what it removed may be any block that was stored before it, in this batch too.
func TestRemovalThatIsNotUnderstood(t *testing.T) {
	stored := func(hash int) any { return listOf("BlockStored", listOf(hash), nil, listOf(1, 2), 2, nil) }
	for _, removed := range []any{
		listOf("BlockRemoved"), listOf("BlockRemoved", nil), listOf("BlockRemoved", listOf("seven")),
		listOf("BlockRemoved", listOf(1), 3), listOf("BlockRemoved", listOf(1), nil, "0"),
		dict{"type", "BlockRemoved", "hashes", listOf(1)},
	} {
		got := decoded(t, encode(listOf(1.0, listOf(stored(7), removed, stored(8)), 0)))
		want := "at 1 rank 0 | stored 8, tokens 1 2 by 2, gpu, group 0 full | 1 skipped | unsure"
		if got != want {
			t.Errorf("%v:\n got  %s\n want %s", removed, got, want)
		}
	}
	for name, event := range map[string]any{
		"of nothing": listOf("BlockRemoved", listOf()), "elsewhere": dict{"type", "BlockRemoved", "locality", "REMOTE"},
	} {
		var d Decoder
		var b Batch
		if err := d.Decode(encode(listOf(1.0, listOf(stored(7), event), 0)), &b); err != nil || b.Unsure || len(b.Events) != 1 {
			t.Errorf("%s: %s, %v", name, words(&b), err)
		}
	}
}

func TestFormsOfBatches(t *testing.T) {
	events := listOf(listOf("AllBlocksCleared"))
	for _, tt := range []struct {
		name  string
		batch any
		want  string
	}{
		{"two", listOf(1.5, events), "at 1.5 no rank | cleared"},
		{"three", listOf(1.5, events, 7), "at 1.5 rank 7 | cleared"},
		{"more", listOf(1.5, events, 7, nil, dict{"a", listOf(1)}), "at 1.5 rank 7 | cleared"},
		{"no rank", listOf(1.5, events, nil), "at 1.5 no rank | cleared"},
		{"odd ranks", listOf(1.5, events, -1), "at 1.5 no rank | cleared"},
		{"large rank", listOf(1.5, events, 1<<16), "at 1.5 no rank | cleared"},
		{"rank as text", listOf(1.5, events, "1"), "at 1.5 no rank | cleared"},
		{"whole time", listOf(3, events, 0), "at 3 rank 0 | cleared"},
		{"no time", listOf(nil, events, 0), "at 0 rank 0 | cleared"},
		{"odd time", listOf("now", events, 0), "at 0 rank 0 | cleared"},
		{"no events", listOf(1.5, listOf(), 0), "at 1.5 rank 0"},
		{"map", dict{"ts", 1.5, "events", events, "data_parallel_rank", 2}, "at 1.5 rank 2 | cleared"},
		{
			"map in any order",
			dict{"x", events, "data_parallel_rank", nil, 7, 8, "events", events, "ts", 1.5},
			"at 1.5 no rank | cleared",
		},
		{
			"map with events twice",
			dict{"events", listOf(1, listOf("AllBlocksCleared")), "events", events},
			"at 0 no rank | cleared",
		},
	} {
		if got := decoded(t, encode(tt.batch)); got != tt.want {
			t.Errorf("%s:\n got  %s\n want %s", tt.name, got, tt.want)
		}
	}
}

func TestBrokenBatchesAreErrors(t *testing.T) {
	events := func(event any) []byte { return encode(listOf(1.0, listOf(event), 0)) }
	nested := func(levels int) any {
		v := any(1)
		for range levels {
			v = listOf(v)
		}
		return v
	}
	claim := func(lead ...byte) appender { return func(b []byte) []byte { return append(b, lead...) } }
	list0 := func(n int) appender {
		return func(b []byte) []byte { return append(msgp.AppendArrayHeader(b, uint32(n)), make([]byte, n)...) }
	}
	many := func(tokens int) any { return listOf("BlockStored", listOf(7), nil, list0(tokens), 1) }
	for _, tt := range []struct {
		name    string
		payload []byte
		want    error // nil is none
	}{
		{"nothing", nil, errForm},
		{"a number", encode(1), errForm},
		{"one element", encode(listOf(1.0)), errForm},
		{"a map without events", encode(dict{"ts", 1.0}), errForm},
		{"events that are no list", encode(listOf(1.0, "x", 0)), errEvents},
		{"events that are none", encode(dict{"events", nil}), errEvents},
		{"0xc1", events(claim(0xc1)), errLead},
		{"0xc1 deep inside", events(listOf("what", listOf(dict{"a", claim(0xc1)}))), errLead},
		{"more events than bytes", encode(listOf(1.0, claim(0xdd, 0, 0, 0, 99), 0)), errShort},
		{"more items than bytes", events(claim(0xdd, 0, 0, 0, 99)), errShort},
		{"more pairs than bytes", events(listOf("x", claim(0xdf, 0, 0, 0, 99))), errShort},
		{"more text than bytes", events(listOf("x", claim(0xd9, 99))), errShort},
		{"most levels", events(nested(maxDepth - 2)), nil},
		{"most items", events(listOf("x", listOf(list0(maxItems)))), nil},
		{"more items", events(listOf("x", listOf(list0(maxItems+1)))), errBounds},
		{"broken after the rank", encode(listOf(1.0, listOf(), 0, claim(0xc1))), errLead},
		{"more levels", events(nested(maxDepth - 1)), errBounds},
		{"more levels in a field", events(listOf("BlockRemoved", listOf(1), nested(maxDepth-2))), errBounds},
		{"longest text", events(strings.Repeat("x", maxText)), nil},
		{"longer text", events(strings.Repeat("x", maxText+1)), errBounds},
		{"longer bytes", events(bytes.Repeat([]byte{1}, maxText+1)), errBounds},
		{"most tokens", events(many(maxItems - 1)), nil},
		{"more hashes and tokens", events(many(maxItems)), errBounds},
		{"more tokens", events(many(maxItems + 1)), errBounds},
		{"most events", batchOf(maxEvents, msgp.AppendNil), nil},
		{"more events", batchOf(maxEvents+1, msgp.AppendNil), errBounds},
		{"more bytes", make([]byte, MaxPayload+1), errBounds},
	} {
		var d Decoder
		var b Batch
		if err := d.Decode(tt.payload, &b); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

// TestValuesOfEveryFormAreSkippedWhole has a value of each form where nothing is known: what follows must be found.
func TestValuesOfEveryFormAreSkippedWhole(t *testing.T) {
	lead := func(lead byte, more ...byte) []byte { return append([]byte{lead}, more...) }
	pad := func(b []byte, n int) []byte { return append(b, make([]byte, n)...) }
	values := [][]byte{
		lead(0x7f), lead(0xe0), lead(0xff), lead(0xc0), lead(0xc2), lead(0xc3), pad(lead(0xca), 4), pad(lead(0xcb), 8),
		pad(lead(0xcc), 1), pad(lead(0xcd), 2), pad(lead(0xce), 4), pad(lead(0xcf), 8),
		pad(lead(0xd0), 1), pad(lead(0xd1), 2), pad(lead(0xd2), 4), pad(lead(0xd3), 8),
		pad(lead(0xd4), 2), pad(lead(0xd5), 3), pad(lead(0xd6), 5), pad(lead(0xd7), 9), pad(lead(0xd8), 17),
		lead(0xa0), pad(lead(0xbf), 31), pad(lead(0xd9, 3), 3), pad(lead(0xda, 1, 2), 258), pad(lead(0xdb, 0, 0, 1, 2), 258),
		pad(lead(0xc4, 3), 3), pad(lead(0xc5, 1, 2), 258), pad(lead(0xc6, 0, 0, 1, 2), 258),
		pad(lead(0xc7, 3), 4), pad(lead(0xc8, 1, 2), 259), pad(lead(0xc9, 0, 0, 1, 2), 259),
		lead(0x90), pad(lead(0x9f), 15), pad(lead(0xdc, 1, 2), 258), pad(lead(0xdd, 0, 0, 1, 2), 258),
		lead(0x80), pad(lead(0x8f), 30), pad(lead(0xde, 1, 2), 516), pad(lead(0xdf, 0, 0, 1, 2), 516),
	}
	for _, v := range values {
		raw := func(b []byte) []byte { return append(b, v...) }
		event := dict{"type", "BlockRemoved", "new", raw, "block_hashes", listOf(1)}
		got := decoded(t, encode(listOf(1.0, listOf(raw, event, listOf("AllBlocksCleared")), 0)))
		if want := "at 1 rank 0 | removed 1, gpu, group 0 | cleared | 1 skipped"; got != want {
			t.Errorf("0x%x:\n got  %s\n want %s", v[0], got, want)
		}
	}
}
