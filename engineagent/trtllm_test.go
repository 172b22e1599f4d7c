package engineagent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
)

const iterations = `[{"iter":153,"numActiveRequests":9,"numQueuedRequests":9},
 {"iter":154,"iterLatencyMS":7.0,"gpuMemUsage":76665782272,"numActiveRequests":5,"numQueuedRequests":3,
  "maxNumActiveRequests":64,"inflightBatchingStats":{"numContextRequests":2,"numGenRequests":3,"numPausedRequests":1},
  "kvCacheStats":{"maxNumBlocks":1000,"freeNumBlocks":400,"usedNumBlocks":600,"tokensPerBlock":32,"cacheHitRate":0.85}}]`

func TestNewestIterationCounts(t *testing.T) {
	tests := []struct {
		name, body string
		want       reading
	}{
		{"several", iterations, reading{
			running: 5, waiting: 3, kvUsage: 0.6, blockTokens: 32, capacityTokens: 32000, maxRunning: 64,
			counters: map[string]float64{"iter": 154},
		}},
		{"nothing ran", `[]`, reading{}},
		{"no cache", `[null,{"iter":1,"numActiveRequests":1,"kvCacheStats":null},null]`, reading{
			running: 1, counters: map[string]float64{"iter": 1},
		}},
		{"absurd", `[{"iter":-5,"numActiveRequests":-1,"numQueuedRequests":1e300,"kvCacheStats":{"maxNumBlocks":1,` +
			`"usedNumBlocks":7,"tokensPerBlock":1e30}}]`, reading{
			waiting: 1 << 20, kvUsage: 1, blockTokens: maxBlockTokens, capacityTokens: maxBlockTokens,
			counters: map[string]float64{"iter": 0},
		}},
	}
	for _, tt := range tests {
		got, err := parseIterations([]byte(tt.body))
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(reading{})); diff != "" || err != nil {
			t.Errorf("%s: error %v, reading differs (-want +got):\n%s", tt.name, err, diff)
		}
	}
	if _, err := parseIterations([]byte(`# HELP`)); err == nil {
		t.Error("text is not an error")
	}
}

func TestStatisticsOfTensorRTLLMAreLeftToOthersWherePossible(t *testing.T) {
	f := newFakeEngine()
	f.pages = map[string]string{"/prometheus/metrics": string(page(t, "trtllm.txt")), "/metrics": iterations}
	a := newAgent(t, testConfig(f))
	r, kind, err := a.askLoad(t.Context(), engine.KindTRTLLM)
	if err != nil || kind != engine.KindTRTLLM || r.running != 4 || f.count("/metrics") != 0 {
		t.Errorf("kind %q, reading %+v, error %v, %d asked", kind, r, err, f.count("/metrics"))
	}
	f.remove("/prometheus/metrics")
	r, kind, err = a.askLoad(t.Context(), engine.KindTRTLLM)
	if err != nil || kind != engine.KindTRTLLM || r.running != 5 {
		t.Errorf("kind %q, reading %+v, error %v", kind, r, err)
	}
}
