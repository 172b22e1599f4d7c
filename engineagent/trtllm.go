package engineagent

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// iteration is one step of TensorRT-LLM in its GET /metrics.
type iteration struct {
	Number     float64 `json:"iter"`
	Active     float64 `json:"numActiveRequests"`
	Queued     float64 `json:"numQueuedRequests"`
	MaxRunning float64 `json:"maxNumActiveRequests"`
	KV         *struct {
		Max      float64 `json:"maxNumBlocks"`
		Used     float64 `json:"usedNumBlocks"`
		PerBlock float64 `json:"tokensPerBlock"`
	} `json:"kvCacheStats"`
}

// parseIterations reads TensorRT-LLM's JSON /metrics: the steps since it was last asked, of which the newest counts. None
// means that nothing ran.
func parseIterations(body []byte) (reading, error) {
	var steps []*iteration
	if err := decode(body, &steps); err != nil {
		return reading{}, fmt.Errorf("parse iterations: %w", err)
	}
	steps = slices.DeleteFunc(steps, func(i *iteration) bool { return i == nil })
	if len(steps) == 0 {
		return reading{}, nil
	}
	last := steps[len(steps)-1]
	r := reading{
		running:    clampInt(last.Active, 1<<20),
		waiting:    clampInt(last.Queued, 1<<20),
		maxRunning: clampInt(last.MaxRunning, maxMaxRunning),
		counters:   map[string]float64{"iter": max(last.Number, 0)},
	}
	if kv := last.KV; kv != nil && kv.Max > 0 {
		r.kvUsage = min(max(kv.Used/kv.Max, 0), 1)
		r.blockTokens = clampInt(kv.PerBlock, maxBlockTokens)
		r.capacityTokens = int64(min(kv.Max*float64(r.blockTokens), maxCapacityTokens))
	}
	return r, nil
}

// trtllmLoad reads TensorRT-LLM's load. Its Prometheus page is there only with return_perf_metrics. Without it the load is
// in its JSON statistics, which it hands out once: asking takes them from whoever else reads them, so it is the last way.
func (a *Agent) trtllmLoad(ctx context.Context) (reading, engine.Kind, error) {
	r, kind, err := a.metricsPage(ctx, "/prometheus/metrics")
	if !missing(err) {
		return r, kind, err
	}
	body, err := a.get(ctx, "/metrics", maxMetricsBytes)
	if err != nil {
		return reading{}, "", err
	}
	r, err = parseIterations(body)
	return r, engine.KindTRTLLM, err
}
