package engineagent

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// maxSlotsBytes bounds /slots. Older releases, and newer ones for debugging, put the whole prompt into each slot.
const maxSlotsBytes = 8 << 20

// slot is one of the places in which llama.cpp runs requests.
type slot struct {
	Processing *bool   `json:"is_processing"`
	State      float64 `json:"state"` // until 2024: 0 is idle
	Context    float64 `json:"n_ctx"`
}

// parseSlots reads llama.cpp's GET /slots. Each slot keeps the KV of its last prompt, so that their contexts are the
// cache. With one cache that all slots share, their sum is too much; llama.cpp reports cached tokens in every answer,
// which corrects it.
func parseSlots(body []byte) (reading, error) {
	var slots []slot
	if err := decode(body, &slots); err != nil {
		return reading{}, fmt.Errorf("parse slots: %w", err)
	}
	if len(slots) == 0 {
		return reading{}, fmt.Errorf("parse slots: %w", errNoLoad)
	}
	var running int
	var tokens float64
	for _, s := range slots {
		if s.Processing == nil && s.State > 0 || s.Processing != nil && *s.Processing {
			running++
		}
		tokens += max(s.Context, 0)
	}
	return reading{
		running:        min(running, maxMaxRunning),
		capacityTokens: int64(min(tokens, maxCapacityTokens)),
		maxRunning:     min(len(slots), maxMaxRunning),
	}, nil
}

// otherLoad reads the load of an engine of no known kind: its metrics page, and llama.cpp's slots where that page is
// llama.cpp's or not there. Only the page tells who waits, only the slots how large the cache is.
func (a *Agent) otherLoad(ctx context.Context) (reading, engine.Kind, error) {
	page, err := a.get(ctx, "/metrics", maxMetricsBytes)
	if err != nil && !missing(err) {
		return reading{}, "", err
	}
	var r reading
	kind := engine.KindOther
	if err == nil {
		r, kind, err = parseMetrics(page, a.cfg.Rank)
		if !bytes.Contains(page, []byte("llamacpp:")) {
			return r, kind, err
		}
	}
	slots, slotsErr := a.slots(ctx)
	switch {
	case slotsErr == nil && err != nil:
		return slots, kind, nil
	case slotsErr == nil:
		r.capacityTokens, r.maxRunning = slots.capacityTokens, slots.maxRunning
	case !missing(slotsErr):
		return reading{}, "", slotsErr
	}
	return r, kind, err
}

func (a *Agent) slots(ctx context.Context) (reading, error) {
	body, err := a.get(ctx, "/slots", maxSlotsBytes)
	if err != nil {
		return reading{}, err
	}
	return parseSlots(body)
}
