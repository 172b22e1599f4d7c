package simengine

import (
	"net/http"
	"sync"
)

// eventBuffer holds TensorRT-LLM's KV events until POST /kv_cache_events drains them: one reader only, no replay, and an
// overflow shows as a gap in event ids.
type eventBuffer struct {
	window int
	blocks int
	limit  int // 0: events are off

	mu     sync.Mutex
	nextID int
	queue  []map[string]any
}

func newEventBuffer(cfg *Config) *eventBuffer {
	b := &eventBuffer{window: cfg.MaxContext, blocks: int(cfg.wholeBlocks()) / cfg.BlockTokens}
	if cfg.Kind == KindTRTLLM {
		b.limit = cfg.EventBuffer
	}
	return b
}

// add appends the events of one step; the first step of a process begins with the size of the cache.
func (b *eventBuffer) add(events []kvEvent) {
	if b.limit == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nextID == 0 {
		b.push(map[string]any{"type": "created", "num_blocks_per_cache_level": []int{b.blocks, 0}})
	}
	for _, e := range events {
		if data := drained(&e); data != nil {
			b.push(data)
		}
	}
}

func (b *eventBuffer) push(data map[string]any) {
	if len(b.queue) == b.limit {
		b.queue = b.queue[1:]
	}
	b.queue = append(b.queue, map[string]any{"event_id": b.nextID, "data": data, "window_size": b.window})
	b.nextID++
}

// drained is an event in TensorRT-LLM's JSON; it has none for a cleared cache.
func drained(e *kvEvent) map[string]any {
	switch e.kind {
	case eventStored:
		var parent any
		if e.hasParent {
			parent = int64(e.parent)
		}
		return map[string]any{"type": "stored", "parent_hash": parent, "blocks": drainedBlocks(e)}
	case eventRemoved:
		return map[string]any{"type": "removed", "block_hashes": signed(e.hashes)}
	default:
		return nil
	}
}

// drainedBlocks: an event of this kind stores one block.
func drainedBlocks(e *kvEvent) []map[string]any {
	tokens := make([]map[string]any, 0, len(e.tokens))
	for _, t := range e.tokens {
		tokens = append(tokens, map[string]any{"type": "unique_token", "token_id": t, "token_extra_id": 0})
	}
	block := map[string]any{
		"type": "stored_block", "block_hash": int64(e.hashes[0]), "tokens": tokens, "cache_level": 0, "priority": 35,
	}
	if e.salt != "" {
		block["cache_salt"] = e.salt
	}
	return []map[string]any{block}
}

func signed(hashes []uint64) []int64 {
	out := make([]int64, 0, len(hashes))
	for _, h := range hashes {
		out = append(out, int64(h))
	}
	return out
}

// take empties the buffer.
func (b *eventBuffer) take() []map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queue
	b.queue = nil
	if q == nil {
		return []map[string]any{}
	}
	return q
}

// drainEvents answers POST /kv_cache_events.
func (e *Engine) drainEvents(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, e.life.Load().drain.take())
}
