package kvevents

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// forms makes random batches: mostly such as engines send, with something odd here and there.
type forms struct{ *rand.Rand }

func pick[T any](r forms, of ...T) T { return of[r.IntN(len(of))] }

func (r forms) any(depth int) any {
	switch n := r.IntN(12); {
	case n < 2:
		return nil
	case n < 5:
		return r.int()
	case n == 5:
		return pick(r, "GPU", "CPU", "DISK", "mamba", "sliding_window", "REMOTE", "", "x")
	case n == 6:
		return make([]byte, r.IntN(40))
	case n == 7:
		return pick[any](r, true, 1.5, uint64(math.MaxUint64))
	case depth == 0:
		return 1
	case n < 11:
		return r.list(func() any { return r.any(depth - 1) })
	default:
		return dict{"cache_salt", r.any(depth - 1), r.any(0), r.any(depth - 1)}
	}
}

func (r forms) int() any {
	return pick[any](r, r.IntN(128), r.IntN(1<<16), r.IntN(1<<32), -r.IntN(1<<40), r.Uint64(), -1, 0)
}

func (r forms) list(item func() any) []any {
	l := []any{}
	for range r.IntN(4) {
		l = append(l, item())
	}
	return l
}

func (r forms) token() any {
	if r.IntN(8) == 0 {
		return listOf(r.IntN(1<<17), r.IntN(1<<17))
	}
	return r.IntN(1 << 17)
}

func (r forms) hash() any {
	return pick[any](r, r.Uint64(), int(r.Int64()), make([]byte, 32), -r.IntN(99))
}

func (r forms) part() any {
	return pick[any](r, "ad", "salt", listOf("img", r.IntN(64)-8), r.any(1))
}

// event is of every type, as a list or as a map.
func (r forms) event() any {
	tag := pick(r, "BlockStored", "BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockInactive")
	names := fieldNames[tag]
	if names == nil {
		names = fieldNames["BlockStored"]
	}
	hashes := r.list(r.hash)
	values := map[string]any{
		"type": tag, "block_hashes": hashes, "parent_block_hash": pick(r, nil, r.hash()), "token_ids": r.list(r.token),
		"block_size": r.IntN(70_000), "lora_id": nil, "medium": pick[any](r, nil, "GPU", "CPU", "FS"),
		"lora_name": pick[any](r, nil, "ad", dict{"cache_salt", "s"}), "group_idx": pick[any](r, nil, 0, 1),
		"kv_cache_spec_kind":           pick[any](r, nil, "full_attention", "mamba", "sliding_window", "x"),
		"kv_cache_spec_sliding_window": pick[any](r, nil, 128), "cache_salt": pick[any](r, nil, "s"), "new": r.any(2),
		"locality": pick[any](r, nil, "LOCAL", "LOCAL", "REMOTE"),
	}
	keys := make([]any, len(hashes))
	for i := range keys {
		keys[i] = pick[any](r, nil, r.list(r.part))
	}
	values["extra_keys"] = pick[any](r, nil, keys)
	if r.IntN(3) == 0 {
		values[names[r.IntN(len(names))]] = r.any(3)
	}
	if r.IntN(2) == 0 {
		return r.asList(names, values)
	}
	return r.asMap(append([]string{"cache_salt", "locality", "new"}, names...), values)
}

func (r forms) asList(names []string, values map[string]any) any {
	l := []any{}
	for _, name := range names[:r.IntN(len(names)+1)] {
		l = append(l, values[name])
	}
	for range r.IntN(2) {
		l = append(l, r.any(2))
	}
	return l
}

func (r forms) asMap(names []string, values map[string]any) any {
	m := dict{}
	for _, i := range r.Perm(len(names)) {
		if r.IntN(8) > 0 || names[i] == "type" {
			m = append(m, names[i], values[names[i]])
		}
	}
	if r.IntN(8) == 0 {
		m = append(m, pick(r, "medium", "block_size", "type"), r.any(1))
	}
	return m
}

func (r forms) batch() any {
	events := []any{}
	for range r.IntN(5) {
		events = append(events, r.event())
	}
	switch r.IntN(10) {
	case 0:
		return dict{"ts", r.any(0), "x", r.any(2), "events", events, "data_parallel_rank", r.any(0)}
	case 1:
		return r.any(4)
	case 2:
		return listOf(1.5, events, r.any(0), r.any(1))
	}
	return listOf(1.5, events, r.IntN(9))
}

func TestRandomBatchesReadAsByTheTwin(t *testing.T) {
	seed := rand.Uint64()
	r := forms{rand.New(rand.NewPCG(seed, 0))}
	var d Decoder
	var got Batch
	events, skipped := 0, 0
	for i := range 20_000 {
		payload := encode(r.batch())
		err := d.Decode(payload, &got)
		want, ok := twinDecode(payload)
		if ok != (err == nil) {
			t.Fatalf("seed %d, batch %d, %x: error %v, of the twin %v", seed, i, payload, err, !ok)
		}
		if !ok {
			continue
		}
		mine := got
		mine.Events, want.Events = plain(mine.Events), plain(want.Events)
		if !reflect.DeepEqual(mine, want) {
			t.Fatalf("seed %d, batch %d, %x:\n got  %s\n want %s", seed, i, payload, words(&got), words(&want))
		}
		events, skipped = events+len(got.Events), skipped+got.Skipped
	}
	if events < 5_000 || skipped < 1000 {
		t.Errorf("only %d events and %d skipped ones were made", events, skipped)
	}
}
