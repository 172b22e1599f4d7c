package simengine

import (
	"fmt"
	"net/http"
	"strings"
)

// exposition builds Prometheus text.
type exposition struct {
	strings.Builder
	labels string
}

func (x *exposition) metric(kind, name string, v any) {
	fmt.Fprintf(x, "# HELP %s Simulated.\n# TYPE %s %s\n", name, name, kind)
	x.series(name, v)
}

// series adds one more series of the metric before.
func (x *exposition) series(name string, v any) {
	if x.labels != "" {
		name += "{" + x.labels + "}"
	}
	fmt.Fprintf(x, "%s %v\n", name, v)
}

func (x *exposition) serve(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(x.String())) // a client that went away needs no answer
}

// usageShare is the share of blocks that running requests hold.
func (s *Stats) usageShare() float64 { return float64(s.UsedBlocks) / float64(max(s.TotalBlocks, 1)) }

// vllmMetrics answers vLLM's GET /metrics.
func (e *Engine) vllmMetrics(w http.ResponseWriter, _ *http.Request) {
	s := e.Stats()
	x := exposition{labels: fmt.Sprintf("engine=%q,model_name=%q", fmt.Sprint(e.cfg.KVEvents.Rank), e.cfg.Model)}
	x.metric("gauge", "vllm:num_requests_running", s.Running)
	x.metric("gauge", "vllm:num_requests_waiting", s.Waiting)
	x.metric("gauge", "vllm:kv_cache_usage_perc", s.usageShare())
	x.metric("counter", "vllm:prefix_cache_queries_total", s.QueriedTokens)
	x.metric("counter", "vllm:prefix_cache_hits_total", s.HitTokens)
	external := int64(0)
	if e.cfg.OffloadTokens > 0 {
		external = s.QueriedTokens - s.HitTokens
	}
	x.metric("counter", "vllm:external_prefix_cache_queries_total", external)
	x.metric("counter", "vllm:external_prefix_cache_hits_total", s.LoadedTokens)
	x.metric("counter", "vllm:prompt_tokens_total", s.PromptTokens)
	x.metric("counter", "vllm:prompt_tokens_cached_total", s.CachedTokens)
	x.metric("counter", "vllm:generation_tokens_total", s.GenerationTokens)
	x.metric("counter", "vllm:num_preemptions_total", s.Preemptions)
	e.firstTokens(&x, "vllm:time_to_first_token_seconds", &s)
	x.labels = fmt.Sprintf(`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="%d",`+
		`kv_cache_size_tokens="%d",num_gpu_blocks="%d",prefix_caching_hash_algo="sha256"`,
		e.cfg.BlockTokens, e.cfg.KVEvents.Rank, e.cfg.CapacityTokens, s.TotalBlocks)
	x.metric("gauge", "vllm:cache_config_info", 1)
	x.labels = ""
	x.metric("gauge", "process_start_time_seconds", float64(e.life.Load().started.UnixMilli())/1e3)
	x.serve(w)
}

// firstTokens is a histogram with its last bucket only: sum and count are what readers use.
func (e *Engine) firstTokens(x *exposition, name string, s *Stats) {
	fmt.Fprintf(x, "# HELP %s Simulated.\n# TYPE %s histogram\n", name, name)
	fmt.Fprintf(x, "%s_bucket{%s,le=\"+Inf\"} %d\n", name, x.labels, s.FirstTokens)
	fmt.Fprintf(x, "%s_sum{%s} %v\n%s_count{%s} %d\n", name, x.labels, s.FirstTokenSeconds, name, x.labels, s.FirstTokens)
}

// sglangMetrics answers SGLang's GET /metrics.
func (e *Engine) sglangMetrics(w http.ResponseWriter, _ *http.Request) {
	s := e.Stats()
	x := exposition{labels: fmt.Sprintf(`engine_type="unified",model_name=%q,pp_rank="0",tp_rank="0"`, e.cfg.Model)}
	x.metric("gauge", "sglang:num_running_reqs", s.Running)
	x.metric("gauge", "sglang:num_queue_reqs", s.Waiting)
	x.metric("gauge", "sglang:token_usage", s.usageShare())
	x.metric("gauge", "sglang:cache_hit_rate", float64(s.CachedTokens)/float64(max(s.PromptTokens, 1)))
	x.metric("gauge", "sglang:num_used_tokens", s.UsedBlocks*e.cfg.BlockTokens)
	x.metric("gauge", "sglang:max_total_num_tokens", e.cfg.CapacityTokens)
	x.metric("gauge", "sglang:page_size", e.cfg.BlockTokens)
	x.metric("gauge", "sglang:num_pages", s.TotalBlocks)
	x.metric("gauge", "sglang:num_retracted_reqs", s.Preemptions)
	x.metric("counter", "sglang:prompt_tokens_total", s.PromptTokens)
	x.metric("counter", "sglang:generation_tokens_total", s.GenerationTokens)
	e.firstTokens(&x, "sglang:time_to_first_token_seconds", &s)
	labels := x.labels
	x.labels += `,cache_source="device"`
	x.metric("counter", "sglang:cached_tokens_total", s.CachedTokens-s.LoadedTokens)
	if e.cfg.OffloadTokens > 0 {
		x.labels = labels + `,cache_source="host"`
		x.series("sglang:cached_tokens_total", s.LoadedTokens)
	}
	x.serve(w)
}

// trtllmMetrics answers TensorRT-LLM's GET /prometheus/metrics.
func (e *Engine) trtllmMetrics(w http.ResponseWriter, _ *http.Request) {
	s := e.Stats()
	x := exposition{labels: fmt.Sprintf(`engine_type="trtllm",model_name=%q`, e.cfg.Model)}
	x.metric("gauge", "trtllm_num_requests_running", s.Running)
	x.metric("gauge", "trtllm_num_requests_waiting", s.Waiting)
	x.metric("gauge", "trtllm_kv_cache_utilization", s.usageShare())
	x.metric("gauge", "trtllm_kv_cache_hit_rate", float64(s.CachedTokens)/float64(max(s.PromptTokens, 1)))
	x.metric("gauge", "trtllm_kv_cache_tokens_per_block", e.cfg.BlockTokens)
	x.metric("gauge", "trtllm_kv_cache_max_blocks", s.TotalBlocks)
	x.serve(w)
}
