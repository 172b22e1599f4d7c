package simengine

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLlamaSaysWhatWasCachedInEveryAnswer(t *testing.T) {
	inBubble(t, func(c *Config) { c.Kind, c.CachedTokens = KindOther, false }, func(t *testing.T, r *rig) {
		for _, warm := range []bool{false, true} {
			got := r.ok("/v1/chat/completions", strings.Replace(chat(4000, `,"max_tokens":3,"ignore_eos":true`), "sim-model", "any name", 1))
			n, _ := at(got, "usage", "prompt_tokens_details", "cached_tokens").(float64)
			if warm != (n > 900) || at(got, "timings", "cache_n") != n {
				t.Errorf("warm %v: %v and timings %v", warm, at(got, "usage"), at(got, "timings"))
			}
			computed, _ := at(got, "timings", "prompt_n").(float64)
			if sum := at(got, "usage", "prompt_tokens"); n+computed != sum {
				t.Errorf("%v cached and %v computed of %v", n, computed, sum)
			}
			if ms := at(got, "timings", "predicted_ms").(float64); ms != 40.2 {
				t.Errorf("two tokens after the first took %v ms, want two steps", ms)
			}
		}
	})
}

func TestLlamaSendsHeadersWithTheFirstToken(t *testing.T) {
	inBubble(t, kind(KindOther), func(t *testing.T, r *rig) {
		start := time.Now()
		resp := r.open(t.Context(), "POST", "/v1/chat/completions", chat(40_000, `,"stream":true,"max_tokens":3`))
		n := len(r.tok.encode(nil, renderPlain(&conversation{turns: []turn{{role: "user", text: textOf(40_000)}}})))
		if got, want := time.Since(start), prefillTime(16000, n, n, 0); got != want {
			t.Errorf("headers came after %v, want %v", got, want)
		}
		if got := readEvents(t, resp.Body); len(got) != 6 {
			t.Errorf("%d events, want role, 3 tokens, end, [DONE]", len(got))
		}
	})
}

func TestLlamaSlots(t *testing.T) {
	inBubble(t, func(c *Config) { c.Kind, c.MaxRunning = KindOther, 2 }, func(t *testing.T, r *rig) {
		slot := func(id, busy string) string {
			return `{"id":` + id + `,"n_ctx":131072,"speculative":false,"is_processing":` + busy + `}`
		}
		if _, got := r.do("GET", "/slots?fail_on_no_slot=1", ""); got != "["+slot("0", "false")+","+slot("1", "false")+"]" {
			t.Errorf("idle: %s", got)
		}
		for _, text := range []string{"a", "b", "c"} {
			r.start("/v1/completions", `{"prompt":"`+text+textOf(4000)+`","max_tokens":100,"ignore_eos":true}`)
		}
		time.Sleep(time.Second)
		if _, got := r.do("GET", "/slots", ""); got != "["+slot("0", "true")+","+slot("1", "true")+"]" {
			t.Errorf("busy: %s", got)
		}
		status, got := r.do("GET", "/slots?fail_on_no_slot=1", "")
		if want := `{"error":{"code":503,"message":"no slot available","type":"unavailable_error"}}`; status != 503 || got != want {
			t.Errorf("busy: %d %s", status, got)
		}
		_, got = r.do("GET", "/metrics", "")
		for _, line := range []string{"llamacpp:requests_processing 2", "llamacpp:requests_deferred 1"} {
			if !strings.Contains(got, "\n"+line+"\n") {
				t.Errorf("no %q in\n%s", line, got)
			}
		}
	})
}

func TestLlamaRoutes(t *testing.T) {
	long := chat(40, "")
	tests := []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/health", "", 200, `{"status":"ok"}`},
		{"GET", "/nowhere", "", 404, `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`},
		{"GET", "/version", "", 404, `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`},
		{"POST", "/tokenize", `{"content":"hello"}`, 200, `{"tokens":[94053,111]}`},
		{"POST", "/detokenize", `{"tokens":[94053,111]}`, 200, `{"content":"hello"}`},
		{"POST", "/apply-template", `{"messages":[{"role":"user","content":"a"}]}`, 200, `{"prompt":"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"}`},
		{"GET", "/props", "", 200, `{"build_info":"b0.32.0-sim","default_generation_settings":{"n_ctx":16},"model_path":"sim-model","total_slots":128}`},
		{"POST", "/v1/chat/completions", long, 400, `{"error":{"code":400,"message":"request (20 tokens) exceeds the available context size (16 tokens), try increasing it","type":"exceed_context_size_error"}}`},
		{"POST", "/v1/chat/completions", `{`, 400, `{"error":{"code":400,"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error'}","type":"invalid_request_error"}}`},
	}
	for _, tt := range tests {
		inBubble(t, func(c *Config) { c.Kind, c.MaxContext = KindOther, 16 }, func(t *testing.T, r *rig) {
			status, body := r.do(tt.method, tt.path, tt.body)
			if status != tt.status || body != tt.want {
				t.Errorf("%s %s: %d %s\nwant %d %s", tt.method, tt.path, status, body, tt.status, tt.want)
			}
		})
	}
}

func TestLlamaGuardsAllButHealthAndModels(t *testing.T) {
	inBubble(t, func(c *Config) { c.Kind, c.APIKey = KindOther, "secret" }, func(t *testing.T, r *rig) {
		got := map[string]int{}
		for _, path := range []string{"/health", "/v1/models", "/metrics", "/slots"} {
			got[path], _ = r.do("GET", path, "")
		}
		if diff := cmp.Diff(map[string]int{"/health": 200, "/v1/models": 200, "/metrics": 401, "/slots": 401}, got); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
	})
}

func TestLlamaHangsAfterHeadersThatCameEarly(t *testing.T) {
	inBubble(t, kind(KindOther), func(t *testing.T, r *rig) {
		r.fault(`{"hang_after_headers":true}`)
		resp := r.open(t.Context(), "POST", "/v1/chat/completions", chat(40, `,"stream":true`))
		read := make(chan error, 1)
		r.posts.Go(func() {
			_, err := io.Copy(io.Discard, resp.Body)
			read <- err
		})
		synctest.Wait()
		r.Restart()
		if err := <-read; err == nil || resp.StatusCode != http.StatusOK {
			t.Errorf("status %d, read %v", resp.StatusCode, err)
		}
	})
}

func TestOnlyVLLMAndSGLangPublishKVEvents(t *testing.T) {
	for k, want := range map[string]bool{KindVLLM: true, KindSGLang: true, KindTRTLLM: false, KindOther: false} {
		cfg := DefaultConfig()
		cfg.Kind, cfg.KVEvents.Endpoint = k, "tcp://*:5557"
		if err := cfg.Validate(); (err == nil) != want {
			t.Errorf("%s: %v", k, err)
		}
	}
}
