package engineagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// maxInfoBytes bounds /server_info, /v1/loads and /version: SGLang's server_info is its whole command line.
const maxInfoBytes = 1 << 20

// serverInfo is the part of SGLang's /server_info that matters here (ENGINES.md section 3.2).
type serverInfo struct {
	Version        string  `json:"version"`
	MaxRunning     float64 `json:"max_running_requests"`
	MaxTokens      float64 `json:"max_total_num_tokens"`
	PageSize       float64 `json:"page_size"`
	PrefillStep    float64 `json:"chunked_prefill_size"` // -1 for whole prompts
	NoRadixCache   bool    `json:"disable_radix_cache"`
	CacheReport    bool    `json:"enable_cache_report"`
	Metrics        bool    `json:"enable_metrics"`
	TokenizerPath  string  `json:"tokenizer_path"`
	SchedulePolicy string  `json:"schedule_policy"`
}

// parseServerInfo reads /server_info. ok is false when the answer is of another program: TensorRT-LLM has a route of
// that name too.
func parseServerInfo(body []byte) (info serverInfo, ok bool) {
	if decode(body, &info) != nil {
		return serverInfo{}, false
	}
	return info, info.PageSize > 0 || info.SchedulePolicy != "" || info.TokenizerPath != ""
}

// rankLoad is one data-parallel rank in SGLang's /v1/loads.
type rankLoad struct {
	Rank       int     `json:"dp_rank"`
	Running    float64 `json:"num_running_reqs"`
	Waiting    float64 `json:"num_waiting_reqs"`
	Uncached   float64 `json:"num_waiting_uncached_tokens"` // since 2026
	MaxTokens  float64 `json:"max_total_num_tokens"`
	MaxRunning float64 `json:"max_running_requests"`
	Usage      float64 `json:"token_usage"`
}

// parseLoads reads /v1/loads, which SGLang serves also when it was started without --enable-metrics. rank is as in
// parseMetrics.
func parseLoads(body []byte, rank string) (reading, error) {
	var page struct {
		Loads []rankLoad `json:"loads"`
	}
	if err := decode(body, &page); err != nil {
		return reading{}, fmt.Errorf("parse loads: %w", err)
	}
	page.Loads = slices.DeleteFunc(page.Loads, func(l rankLoad) bool { return rank != "" && strconv.Itoa(l.Rank) != rank })
	if len(page.Loads) == 0 {
		return reading{}, errNoLoad
	}
	var s rankLoad
	for _, l := range page.Loads {
		s.Running += max(l.Running, 0)
		s.Waiting += max(l.Waiting, 0)
		s.Uncached += max(l.Uncached, 0)
		s.MaxTokens += max(l.MaxTokens, 0)
		s.MaxRunning += max(l.MaxRunning, 0)
		s.Usage += min(max(l.Usage, 0), 1)
	}
	return reading{
		ranks:          len(page.Loads),
		running:        clampInt(s.Running, 1<<20),
		waiting:        clampInt(s.Waiting, 1<<20),
		waitingTokens:  clampInt(s.Uncached, maxWaitingTokens),
		kvUsage:        s.Usage / float64(len(page.Loads)),
		capacityTokens: int64(min(s.MaxTokens, maxCapacityTokens)),
		maxRunning:     clampInt(s.MaxRunning, maxMaxRunning),
	}, nil
}

// sglangLoad reads SGLang's load: its metrics page, or /v1/loads where it was started without one.
func (a *Agent) sglangLoad(ctx context.Context) (reading, engine.Kind, error) {
	r, kind, err := a.metricsPage(ctx, "/metrics")
	if !missing(err) {
		return r, kind, err
	}
	body, err := a.get(ctx, "/v1/loads", maxInfoBytes)
	if err != nil {
		return reading{}, "", err
	}
	r, err = parseLoads(body, a.cfg.Rank)
	return r, engine.KindSGLang, err
}

// maxWaitingTokens bounds the tokens that wait in an engine: a thousand prompts of a million.
const maxWaitingTokens = 1 << 30

// decode reads JSON into v. A field of another type than is known here is left out: it must not hide the others, since
// servers change what they say of themselves with every release.
func decode(body []byte, v any) error {
	err := json.Unmarshal(body, v)
	if _, other := errors.AsType[*json.UnmarshalTypeError](err); other {
		return nil
	}
	return err //nolint:wrapcheck // callers say what they read
}

// hasVersion reports whether body is an answer to /version, which vLLM and TensorRT-LLM serve.
func hasVersion(body []byte) bool { return parseVersion(body) != "" }

// parseVersion reads the answer to /version, "" when it is none.
func parseVersion(body []byte) string {
	var v struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(body, &v) != nil || len(v.Version) > maxNameBytes {
		return ""
	}
	return v.Version
}

// kindOfOwner reads owned_by of a model card, which names the software in the servers seen so far.
func kindOfOwner(owner string) (engine.Kind, bool) {
	switch owner {
	case "vllm":
		return engine.KindVLLM, true
	case "sglang":
		return engine.KindSGLang, true
	case "tensorrt_llm":
		return engine.KindTRTLLM, true
	case "llamacpp":
		return engine.KindOther, true
	}
	return "", false
}
