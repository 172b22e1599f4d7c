package engineagent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

func page(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "metrics", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMetricsOfEveryKnownEngineAreRead(t *testing.T) {
	tests := []struct {
		page string
		kind engine.Kind
		want reading
	}{
		{"vllm-0.8-v0.txt", engine.KindVLLM, reading{ // the engine before V1: swapped requests wait too
			running: 6, waiting: 3, kvUsage: 0.625, blockTokens: 16, capacityTokens: 16000, noPrefixCache: true,
			counters: map[string]float64{"vllm:prompt_tokens_total": 512},
		}},
		{"vllm-0.9.0.txt", engine.KindVLLM, reading{
			running: 3, waiting: 1, kvUsage: 0.4375, blockTokens: 16, capacityTokens: 16 * 27310,
			started: 1.74853111223e+09, hitTokens: 5120, hasHits: true,
			counters: map[string]float64{"vllm:gpu_prefix_cache_hits_total": 5120, "vllm:prompt_tokens_total": 90210},
		}},
		{"vllm-0.10.2.txt", engine.KindVLLM, reading{ // old and new names of one fact side by side
			ranks: 1, running: 7, kvUsage: 0.25, blockTokens: 16, capacityTokens: 16000, noPrefixCache: true,
			hitTokens: 640, hasHits: true,
			counters: map[string]float64{"vllm:gpu_prefix_cache_hits_total": 640, "vllm:prefix_cache_hits_total": 640},
		}},
		{"vllm-0.15-offload.txt", engine.KindVLLM, reading{ // tokens of another tier apart; sizes that are not given
			ranks: 1, running: 1, kvUsage: 0.5, blockTokens: 528, capacityTokens: 52800, hitTokens: 1250, hasHits: true,
			counters: map[string]float64{
				"vllm:prefix_cache_hits_total": 1000, "vllm:external_prefix_cache_hits_total": 250,
			},
		}},
		{"vllm-0.25-dp2.txt", engine.KindVLLM, reading{ // two ranks, and the size in tokens as the engine gives it
			ranks: 2, running: 22, waiting: 2, kvUsage: 0.73, blockTokens: 64, capacityTokens: 1000000,
			started: 1.78e9, hitTokens: 500, hasHits: true,
			counters: map[string]float64{
				"vllm:prefix_cache_queries_total": 2000, "vllm:prefix_cache_hits_total": 500, "vllm:generation_tokens_total": 11,
			},
		}},
		{"vllm-0.32-live.txt", engine.KindVLLM, reading{ // captured
			ranks: 1, blockTokens: 32, capacityTokens: 3200, started: 1.79602290003e+09, hitTokens: 320, hasHits: true,
			counters: map[string]float64{
				"vllm:prefix_cache_queries_total": 4723, "vllm:prefix_cache_hits_total": 320,
				"vllm:external_prefix_cache_hits_total": 0, "vllm:prompt_tokens_total": 4723,
				"vllm:prompt_tokens_cached_total": 320, "vllm:generation_tokens_total": 175,
			},
		}},
		{"sglang-0.5.txt", engine.KindSGLang, reading{ // two tensor ranks of one scheduler
			running: 5, waiting: 2, kvUsage: 0.75, blockTokens: 16, capacityTokens: 400000,
			hitTokens: 7500, hasHits: true, counters: map[string]float64{"sglang:cached_tokens_total": 7500},
		}},
		{"sglang-dp2.txt", engine.KindSGLang, reading{
			ranks: 2, running: 9, waiting: 3, kvUsage: 0.6, counters: map[string]float64{},
		}},
		{"sglang-config-info.txt", engine.KindSGLang, reading{
			running: 2, waiting: 4, blockTokens: 64, capacityTokens: 11147 * 64,
			counters: map[string]float64{"sglang:prompt_tokens_total": 90},
		}},
		{"trtllm.txt", engine.KindTRTLLM, reading{
			running: 4, kvUsage: 0.125, blockTokens: 32, capacityTokens: 64000,
			counters: map[string]float64{"trtllm_kv_cache_reused_blocks_total": 70, "trtllm_request_success_total": 9},
		}},
		{"triton.txt", engine.KindOther, reading{
			running: 4, waiting: 1, maxRunning: 512, kvUsage: 0.25, blockTokens: 64, capacityTokens: 6000 * 64,
			counters: map[string]float64{},
		}},
		{"llamacpp.txt", engine.KindOther, reading{
			running: 2, waiting: 1, counters: map[string]float64{"llamacpp:prompt_tokens_total": 1234},
		}},
		{"llamacpp-2024.txt", engine.KindOther, reading{
			running: 1, kvUsage: 0.5,
			counters: map[string]float64{"llamacpp:prompt_tokens_total": 24, "llamacpp:tokens_predicted_total": 100},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.page, func(t *testing.T) {
			got, kind, err := parseMetrics(page(t, tt.page), "")
			if err != nil || kind != tt.kind {
				t.Fatalf("kind %q, error %v; want %q, none", kind, err, tt.kind)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(reading{})); diff != "" {
				t.Errorf("reading differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOneRankIsReadAlone(t *testing.T) {
	tests := []struct {
		page, rank string
		want       reading
	}{
		{"vllm-0.25-dp2.txt", "0", reading{
			ranks: 1, running: 12, waiting: 2, kvUsage: 0.96, blockTokens: 64, capacityTokens: 500000,
			started: 1.78e9, hitTokens: 300, hasHits: true,
		}},
		{"sglang-dp2.txt", "1", reading{ranks: 1, running: 4, waiting: 3, kvUsage: 0.7}},
		{"vllm-0.9.0.txt", "1", reading{ // a release whose samples name no rank
			running: 3, waiting: 1, kvUsage: 0.4375, blockTokens: 16, capacityTokens: 16 * 27310,
			started: 1.74853111223e+09, hitTokens: 5120, hasHits: true,
		}},
	}
	for _, tt := range tests {
		got, _, err := parseMetrics(page(t, tt.page), tt.rank)
		got.counters = nil
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(reading{})); diff != "" || err != nil {
			t.Errorf("%s, rank %s: error %v, reading differs (-want +got):\n%s", tt.page, tt.rank, err, diff)
		}
	}
}

func TestOddMetricsPages(t *testing.T) {
	tests := []struct {
		name, page string
		noLoad     bool
		want       reading
	}{
		{"empty", "", true, reading{}},
		{"another program", "go_goroutines 8\n", true, reading{}},
		{"only the start time", "process_start_time_seconds 5\n", true, reading{started: 5}},
		{"not a number", "vllm:num_requests_running NaN\nvllm:num_requests_waiting 2\n", false, reading{waiting: 2}},
		{"negative", "vllm:num_requests_running -3\nvllm:num_requests_waiting 1\n", false, reading{waiting: 1}},
		{"huge", "vllm:num_requests_running 1e300\n", false, reading{running: 1 << 20}},
		{
			"usage above one", "vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 7\n", false,
			reading{running: 1, kvUsage: 1},
		},
		{"no last newline", "vllm:num_requests_running 4", false, reading{running: 4}},
		{"fault in a metric of no interest", "broken{x= 1\nvllm:num_requests_running 4\n", false, reading{running: 4}},
		{"counters without their ending", "vllm:num_requests_running 1\nvllm:prefix_cache_hits 5\n", false, reading{
			running: 1, hitTokens: 5, hasHits: true,
		}},
		{"cached tokens instead of hits", "vllm:num_requests_running 1\nvllm:prefix_cache_hits_total 5\n" +
			"vllm:external_prefix_cache_hits_total 4\nvllm:prompt_tokens_cached_total 7\n", false, reading{
			running: 1, hitTokens: 7, hasHits: true,
		}},
		{"blocks not profiled yet", "vllm:num_requests_running 0\n" +
			`vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1` + "\n", false, reading{blockTokens: 16}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, _, err := parseMetrics([]byte(tt.page), "")
			if errors.Is(err, errNoLoad) != tt.noLoad || (err != nil && !tt.noLoad) {
				t.Fatalf("error %v", err)
			}
			got.counters = nil
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(reading{})); diff != "" {
				t.Errorf("reading differs (-want +got):\n%s", diff)
			}
		})
	}
	if _, _, err := parseMetrics([]byte("vllm:num_requests_running{ 4\n"), ""); err == nil {
		t.Error("a fault in a known metric is not an error")
	}
}

func outOfRange(r *reading) bool {
	return r.running < 0 || r.waiting < 0 || r.waitingTokens < 0 || !(r.kvUsage >= 0 && r.kvUsage <= 1) ||
		r.maxRunning < 0 || r.maxRunning > maxMaxRunning || !(r.hitTokens >= 0) ||
		r.blockTokens < 0 || r.blockTokens > maxBlockTokens || r.capacityTokens < 0 || r.capacityTokens > maxCapacityTokens
}

func FuzzParseMetrics(f *testing.F) {
	files, _ := filepath.Glob("testdata/metrics/*.txt")
	for _, name := range files {
		f.Add(page(f, filepath.Base(name)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _, _ := parseMetrics(b, "")
		if outOfRange(&r) {
			t.Errorf("reading out of range: %+v", r)
		}
	})
}

func BenchmarkParseMetrics(b *testing.B) {
	// A page of the size that vLLM writes: the histograms are nine tenths of it.
	noise := strings.Repeat(`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0`+"\n", 2500)
	text := append(page(b, "vllm-0.25-dp2.txt"), noise...)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := parseMetrics(text, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func TestLoadOfSimulatedEnginesIsRead(t *testing.T) {
	for _, kind := range []string{
		simengine.KindVLLM, simengine.KindSGLang, simengine.KindTRTLLM, simengine.KindOther,
	} {
		a := simAgent(t, func(c *simengine.Config) {
			c.Kind, c.MaxRunning, c.MaxContext, c.CapacityTokens = kind, 4, 16000, 64000
		})
		r, got, err := a.askLoad(t.Context(), engine.Kind(kind))
		if err != nil || string(got) != kind || r.running != 0 || r.waiting != 0 || r.capacityTokens != 64000 {
			t.Errorf("%s: kind %q, reading %+v, error %v", kind, got, r, err)
		}
		if kind == simengine.KindOther && r.maxRunning != 4 {
			t.Errorf("%d slots, want 4", r.maxRunning)
		}
	}
}
