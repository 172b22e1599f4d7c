package engineagent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/cachestate"
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

// TestDrainedEngine: KV events that are polled end no connection, so that a restart must be known by other signs.
func TestDrainedEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		page := func(running int) string {
			return fmt.Sprintf("process_start_time_seconds %d\ntrtllm_num_requests_running 0\n", running)
		}
		f.pages["/prometheus/metrics"] = page(1)
		f.pages["/kv_cache_events"] = `[{"event_id":9,"window_size":4096,"data":{"type":"stored","parent_hash":null,"blocks":[` +
			`{"block_hash":1,"tokens":[{"token_id":1000},{"token_id":1001},{"token_id":1002},{"token_id":1003}]},` +
			`{"block_hash":2,"tokens":[{"token_id":1004},{"token_id":1005},{"token_id":1006},{"token_id":1007}]}]}}]`
		c := testConfig(f)
		c.Kind = engine.KindTRTLLM
		a := newAgent(t, c)
		follow(t, a)
		time.Sleep(500 * time.Millisecond)
		f.mu.Lock()
		f.pages["/kv_cache_events"] = "[]"
		f.mu.Unlock()
		a.mu.Lock()
		a.blocks.Teach(cachestate.Lesson{Prompt: dense(prompt(1, 0, 0, 2)), Tokens: tokensOf(1, 8)})
		a.mu.Unlock()
		if e := a.Engine(); e.Residency != engine.ResidencyEvents || len(a.Notes()) > 0 || keysTold(a) != 2 {
			t.Fatalf("residency by %v, notes %q, %d keys", e.Residency, a.Notes(), keysTold(a))
		}
		f.mu.Lock()
		f.pages["/prometheus/metrics"] = page(2)
		f.mu.Unlock()
		time.Sleep(2 * time.Second)
		if keysTold(a) != 0 {
			t.Errorf("%d keys of a process that is gone", keysTold(a))
		}
	})
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
