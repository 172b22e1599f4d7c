package engineagent

import (
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// field is one quantity of a reading.
type field uint8

const (
	fieldNone field = iota
	fieldRunning
	fieldWaiting
	fieldHeld // waits elsewhere than in the queue: swapped out, or for its grammar
	fieldMaxRunning
	fieldUsage
	fieldBlockTokens
	fieldBlocks
	fieldCapacity
	fieldStarted
	fieldHits     // cached tokens of the engine's own cache
	fieldLoaded   // cached tokens that came from another tier
	fieldCached   // both
	fieldCounter  // grows during one life of the process; nothing else is read from it
	fieldConfig   // cache_config_info, whose labels are the facts
	fieldLabelled // Triton: a label says which quantity a sample is
)

// counts reports whether a quantity only grows during one life of the process.
func (f field) counts() bool {
	return f == fieldHits || f == fieldLoaded || f == fieldCached || f == fieldCounter
}

// fieldOf returns what the metric called name says, and the software that calls it so. The names are those of
// ENGINES.md sections 3.3, 4 and 5, over all releases seen; counters with and without the ending that some exporters add.
func fieldOf(name string) (field, engine.Kind) {
	if name == "process_start_time_seconds" {
		return fieldStarted, engine.KindOther
	}
	prefix, rest, _ := strings.Cut(name, ":")
	rest = strings.TrimSuffix(rest, "_total")
	switch prefix {
	case "vllm":
		return vllmField(rest), engine.KindVLLM
	case "sglang":
		return sglangField(rest), engine.KindSGLang
	case "llamacpp":
		return llamaField(rest), engine.KindOther
	case "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics":
		return fieldLabelled, engine.KindOther // Triton has none of TensorRT-LLM's own routes
	}
	return trtllmField(name), engine.KindTRTLLM
}

func vllmField(name string) field {
	switch name {
	case "num_requests_running":
		return fieldRunning
	case "num_requests_waiting":
		return fieldWaiting
	case "num_requests_swapped": // the engine before V1
		return fieldHeld
	case "kv_cache_usage_perc", "gpu_cache_usage_perc": // the second until 0.11; both in 0.9.2 to 0.11
		return fieldUsage
	case "cache_config_info":
		return fieldConfig
	case "prefix_cache_hits", "gpu_prefix_cache_hits": // the second until 0.11
		return fieldHits
	case "external_prefix_cache_hits":
		return fieldLoaded
	case "prompt_tokens_cached": // since 0.18
		return fieldCached
	case "prompt_tokens", "generation_tokens", "prefix_cache_queries", "gpu_prefix_cache_queries":
		return fieldCounter
	}
	return fieldNone
}

func sglangField(name string) field {
	switch name {
	case "num_running_reqs":
		return fieldRunning
	case "num_queue_reqs":
		return fieldWaiting
	case "num_grammar_queue_reqs":
		return fieldHeld
	case "token_usage":
		return fieldUsage
	case "max_total_num_tokens":
		return fieldCapacity
	case "page_size":
		return fieldBlockTokens
	case "num_pages":
		return fieldBlocks
	case "cache_config_info":
		return fieldConfig
	case "cached_tokens":
		return fieldCached
	case "prompt_tokens", "generation_tokens":
		return fieldCounter
	}
	return fieldNone
}

func trtllmField(name string) field {
	switch name {
	case "trtllm_num_requests_running":
		return fieldRunning
	case "trtllm_num_requests_waiting":
		return fieldWaiting
	case "trtllm_kv_cache_utilization":
		return fieldUsage
	case "trtllm_kv_cache_tokens_per_block":
		return fieldBlockTokens
	case "trtllm_kv_cache_max_blocks":
		return fieldBlocks
	case "trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total", "trtllm_request_success_total":
		return fieldCounter
	}
	return fieldNone
}

func llamaField(name string) field {
	switch name {
	case "requests_processing":
		return fieldRunning
	case "requests_deferred":
		return fieldWaiting
	case "kv_cache_usage_ratio": // until 2025
		return fieldUsage
	case "prompt_tokens", "tokens_predicted":
		return fieldCounter
	}
	return fieldNone
}

// labelledField reads the labels of Triton's TensorRT-LLM metrics.
func labelledField(labels []*dto.LabelPair) field {
	for _, l := range labels {
		switch l.GetName() + "=" + l.GetValue() {
		case "request_type=scheduled":
			return fieldRunning
		case "request_type=waiting":
			return fieldWaiting
		case "request_type=max":
			return fieldMaxRunning
		case "kv_cache_block_type=fraction":
			return fieldUsage
		case "kv_cache_block_type=tokens_per":
			return fieldBlockTokens
		case "kv_cache_block_type=max":
			return fieldBlocks
		}
	}
	return fieldNone
}
