package simengine

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModelsListsAliasesAndAdapters(t *testing.T) {
	inBubble(t, func(c *Config) { c.Aliases, c.Adapters = []string{"alias"}, []string{"lora"} }, func(t *testing.T, r *rig) {
		_, body := r.do("GET", "/v1/models", "")
		var got []string
		for _, m := range at(decode(t, body), "data").([]any) {
			got = append(got, fmt.Sprint(at(m, "id"), at(m, "root"), at(m, "parent"), at(m, "max_model_len")))
		}
		want := []string{"sim-modelsim-model<nil> 131072", "aliassim-model<nil> 131072", "loralorasim-model<nil>"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("models (-want +got):\n%s", diff)
		}
		r.ok("/v1/chat/completions", strings.Replace(chat(4000, `,"max_tokens":1`), "sim-model", "alias", 1))
		for model, cached := range map[string]bool{"sim-model": true, "lora": false} {
			v := r.ok("/v1/chat/completions", strings.Replace(chat(4000, `,"max_tokens":1`), "sim-model", model, 1))
			if got := at(v, "usage", "prompt_tokens_details", "cached_tokens").(float64) > 0; got != cached {
				t.Errorf("model %s finds the alias's blocks = %v, want %v", model, got, cached)
			}
		}
	})
}

func TestMetricsCountTokens(t *testing.T) {
	for k, names := range map[string][]string{
		KindVLLM: {
			"vllm:num_requests_running{", "vllm:prefix_cache_queries_total{", "vllm:prefix_cache_hits_total{",
			"vllm:kv_cache_usage_perc{", `vllm:cache_config_info{block_size="16"`,
		},
		KindSGLang: {"sglang:num_running_reqs{", "sglang:num_queue_reqs{", "sglang:cached_tokens_total{"},
	} {
		inBubble(t, kind(k), func(t *testing.T, r *rig) {
			for range 2 {
				r.ok("/v1/chat/completions", chat(4000, `,"max_tokens":1`))
			}
			_, body := r.do("GET", "/metrics", "")
			for _, n := range names {
				if !strings.Contains(body, "\n"+n) {
					t.Errorf("%s: no %s in\n%s", k, n, body)
				}
			}
			if s := r.Stats(); s.HitTokens == 0 || s.QueriedTokens < 2*s.HitTokens {
				t.Errorf("%s: %d of %d tokens hit, want the second prompt", k, s.HitTokens, s.QueriedTokens)
			}
		})
	}
}

func TestTokenizeAndBack(t *testing.T) {
	for k, field := range map[string]string{KindVLLM: "prompt", KindSGLang: "text"} {
		inBubble(t, kind(k), func(t *testing.T, r *rig) {
			tokens := at(r.ok("/tokenize", `{"model":"sim-model","prompt":"Hello, world"}`), "tokens")
			back := r.ok("/detokenize", `{"model":"sim-model","tokens":`+jsonOf(tokens)+`}`)
			if at(back, field) != "Hello, world" {
				t.Errorf("%s: %v, want the text back", k, back)
			}
		})
	}
}

func TestTRTLLMEventsAreDrainedOnce(t *testing.T) {
	inBubble(t, func(c *Config) { c.Kind, c.EventBuffer = KindTRTLLM, 100 }, func(t *testing.T, r *rig) {
		drain := func() []any {
			resp := r.open(t.Context(), "POST", "/kv_cache_events", "")
			b, _ := io.ReadAll(resp.Body)
			var v []any
			if err := json.Unmarshal(b, &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		r.ok("/v1/chat/completions", chat(400, `,"max_tokens":1`))
		got := drain()
		if len(got) < 3 || at(got, 0, "data", "type") != "created" || at(got, 1, "data", "type") != "stored" || at(got, 1, "event_id") != 1.0 {
			t.Errorf("events %v, want created, then stored", got)
		}
		if again := drain(); len(again) != 0 {
			t.Errorf("second drain has %d events, want none", len(again))
		}
	})
}

func TestConfigReportsAllViolations(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Kind, cfg.Model, cfg.Speed, cfg.Template = "x", "", 0, "y"
	cfg.Groups = []Group{{Kind: "z"}, {Kind: GroupSliding}}
	cfg.KVEvents = EventsConfig{Endpoint: "udp://x", ArrayLen: 3}
	cfg.Faults.ErrorRate, cfg.Faults.LoseBatches, cfg.Faults.CutMillis, cfg.RetokenizeRate = 2, -1, -1, 1.5
	_, err := New(cfg)
	for _, field := range []string{"Kind", "Model", "Speed", "Template", "Groups[0]", "Groups[1]", "Endpoint", "ArrayLen", "ErrorRate", "LoseBatches", "CutMillis", "RetokenizeRate"} {
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(field)) {
			t.Errorf("error does not name %s: %v", field, err)
		}
	}
}

func TestAPIKeyGuardsWhatTheKindGuards(t *testing.T) {
	for k, want := range map[string]map[string]int{
		KindVLLM:   {"/v1/models": 401, "/metrics": 200, "/version": 200},
		KindSGLang: {"/v1/models": 401, "/metrics": 200, "/server_info": 401, "/health": 200},
	} {
		inBubble(t, func(c *Config) { c.Kind, c.APIKey = k, "secret" }, func(t *testing.T, r *rig) {
			for path, status := range want {
				got, body := r.do("GET", path, "")
				if got != status || got == 401 && body != `{"error":"Unauthorized"}` {
					t.Errorf("%s GET %s = %d %s, want %d", k, path, got, body, status)
				}
			}
		})
	}
}
