package simengine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The expected shapes here were read in the sources of SGLang 0.5.23, TensorRT-LLM and llama.cpp, not captured.

func TestAnswersOfOtherKinds(t *testing.T) {
	const (
		chunk = `{id:text object:chat.completion.chunk created:n model:text `
		text  = `{id:text object:text_completion created:n model:text `
		u     = `prompt_tokens:n total_tokens:n completion_tokens:n `

		lu      = ` usage:{completion_tokens:n prompt_tokens:n total_tokens:n prompt_tokens_details:{cached_tokens:n}}`
		timings = ` timings:{cache_n:n prompt_n:n prompt_ms:n predicted_n:n predicted_ms:n}`
	)
	llama := func(choice, more string) string {
		return `{choices:[` + choice + `] created:n id:text model:text system_fingerprint:text object:chat.completion.chunk` + more + `}`
	}
	tests := []struct {
		name, kind, path, more string
		want                   []string
	}{
		{"sglang chat stream", KindSGLang, "/v1/chat/completions", `,"stream":true,"stream_options":{"include_usage":true}`, []string{
			chunk + `choices:[{index:n delta:{reasoning_content:null role:assistant content:text} logprobs:null finish_reason:null matched_stop:null}]}`,
			chunk + `choices:[{index:n delta:{reasoning_content:null content:text} logprobs:null finish_reason:null matched_stop:null}]}`,
			chunk + `choices:[{index:n delta:{reasoning_content:null} logprobs:null finish_reason:length matched_stop:null}]}`,
			chunk + `choices:[] usage:{` + u + `prompt_tokens_details:null reasoning_tokens:n completion_tokens_details:null}}`,
			"[DONE]",
		}},
		{"sglang chat", KindSGLang, "/v1/chat/completions", ``, []string{
			`{id:text object:chat.completion created:n model:text choices:[{index:n message:{role:assistant content:text ` +
				`reasoning_content:null} logprobs:null finish_reason:length matched_stop:null}] usage:{` + u +
				`prompt_tokens_details:null reasoning_tokens:n completion_tokens_details:null} metadata:{weight_version:text}}`,
		}},
		{"sglang text stream with ids", KindSGLang, "/v1/completions", `,"stream":true,"return_token_ids":true`, []string{
			text + `choices:[{index:n text:text logprobs:null finish_reason:null matched_stop:null token_ids:[n] prompt_token_ids:[n]}] usage:null}`,
			text + `choices:[{index:n text:text logprobs:null finish_reason:null matched_stop:null token_ids:[n]}] usage:null}`,
			text + `choices:[{index:n text:text logprobs:null finish_reason:length matched_stop:null token_ids:[n]}] usage:null}`,
			"[DONE]",
		}},
		{"trtllm chat stream", KindTRTLLM, "/v1/chat/completions", `,"stream":true,"stream_options":{}`, []string{
			chunk + `choices:[{index:n delta:{role:assistant}}]}`,
			chunk + `choices:[{index:n delta:{content:text reasoning_content:text}}]}`,
			chunk + `choices:[{index:n delta:{content:text reasoning_content:text} finish_reason:length}]}`,
			chunk + `choices:[] usage:{` + u + `prompt_tokens_details:{cached_tokens:n}}}`,
			"[DONE]",
		}},
		{"trtllm chat", KindTRTLLM, "/v1/chat/completions", ``, []string{
			`{id:text object:chat.completion created:n model:text choices:[{index:n message:{role:assistant content:text ` +
				`reasoning_content:text tool_calls:[]} logprobs:null finish_reason:length stop_reason:null ` +
				`disaggregated_params:null avg_decoded_tokens_per_iter:null}] usage:{` + u +
				`prompt_tokens_details:{cached_tokens:n}} prompt_token_ids:null}`,
		}},
		{"trtllm text stream", KindTRTLLM, "/v1/completions", `,"stream":true`, []string{
			text + `choices:[{index:n text:text token_ids:null logprobs:null finish_reason:null stop_reason:null avg_decoded_tokens_per_iter:null}] usage:null}`,
			text + `choices:[{index:n text:text token_ids:null logprobs:null finish_reason:length stop_reason:null avg_decoded_tokens_per_iter:null}] usage:null}`,
			"[DONE]",
		}},
		{"llama.cpp chat stream", KindOther, "/v1/chat/completions", `,"stream":true,"stream_options":{"include_usage":true}`, []string{
			llama(`{finish_reason:null index:n delta:{role:assistant content:null}}`, ``),
			llama(`{finish_reason:null index:n delta:{content:text}}`, ``),
			llama(`{finish_reason:length index:n delta:{}}`, ``),
			llama(``, lu+timings),
			"[DONE]",
		}},
		{"llama.cpp chat", KindOther, "/v1/chat/completions", `,"return_token_ids":true`, []string{
			strings.Replace(llama(`{finish_reason:length index:n message:{role:assistant content:text}}`, lu+timings), ".chunk", "", 1),
		}},
		{"llama.cpp text stream", KindOther, "/v1/completions", `,"stream":true`, []string{
			strings.Replace(llama(`{text:text logprobs:null finish_reason:null index:n}`, ``), "chat.completion.chunk", "text_completion", 1),
			strings.Replace(llama(`{text:text logprobs:null finish_reason:length index:n}`, lu+timings), "chat.completion.chunk", "text_completion", 1),
			"[DONE]",
		}},
		{"sglang messages stream", KindSGLang, "/v1/messages", `,"stream":true`, []string{
			"event: message_start\n{type:message_start message:{id:text type:message role:assistant content:[] model:text usage:{input_tokens:n output_tokens:n}}}",
			"event: content_block_start\n{type:content_block_start content_block:{type:text text:text} index:n}",
			"event: content_block_delta\n{type:content_block_delta delta:{type:text_delta text:text} index:n}",
			"event: content_block_stop\n{type:content_block_stop index:n}",
			"event: message_delta\n{type:message_delta delta:{stop_reason:max_tokens} usage:{output_tokens:n}}",
			"event: message_stop\n{type:message_stop}",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, kind(tt.kind), func(t *testing.T, r *rig) {
				body := chat(40, `,"ignore_eos":true,"max_tokens":3`+tt.more)
				if tt.path == "/v1/completions" {
					body = `{"model":"sim-model","prompt":"` + textOf(40) + `","ignore_eos":true,"max_tokens":3` + tt.more + `}`
				}
				status, got := r.post(tt.path, body)
				if diff := cmp.Diff("200\n"+strings.Join(tt.want, "\n"), answerShape(t, fmt.Sprint(status, "\n", got))); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestTRTLLMRoleLineEndsInABlank(t *testing.T) {
	inBubble(t, kind(KindTRTLLM), func(t *testing.T, r *rig) {
		_, got := r.post("/v1/chat/completions", chat(40, `,"stream":true,"max_tokens":2`))
		lines := strings.Split(got, "\n\n")
		if !strings.HasSuffix(lines[0], "} ") || !strings.HasSuffix(lines[1], "}") {
			t.Errorf("lines %q", lines[:2])
		}
	})
}

func TestSGLangEndsAllChoicesAfterTheLast(t *testing.T) {
	inBubble(t, kind(KindSGLang), func(t *testing.T, r *rig) {
		var got []any
		for _, ev := range r.stream("/v1/chat/completions", chat(40, `,"stream":true,"max_tokens":3,"n":2`)) {
			if ev.data != "[DONE]" {
				got = append(got, at(decode(t, ev.data), "choices", 0, "finish_reason"))
			}
		}
		if n := len(got); got[n-1] == nil || got[n-2] == nil || got[n-3] != nil {
			t.Errorf("finish reasons %v, want two at the end", got)
		}
	})
}

func TestVLLMSendsAllRolesFirst(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		got := r.stream("/v1/chat/completions", chat(40, `,"stream":true,"max_tokens":3,"n":3,"return_token_ids":true`))
		for i, ev := range got[:4] {
			if role := strings.Contains(ev.data, `"role"`); role != (i < 3) || role && !strings.Contains(ev.data, `"prompt_token_ids":[`) {
				t.Errorf("event %d: %s", i, ev.data)
			}
		}
	})
}

func TestForcedUsageIsOnEveryChunkOfVLLM(t *testing.T) {
	inBubble(t, func(c *Config) { c.ForceIncludeUsage = true }, func(t *testing.T, r *rig) {
		got := r.stream("/v1/chat/completions", chat(40, `,"stream":true,"max_tokens":3`))
		for i, ev := range got[:len(got)-1] {
			v := decode(t, ev.data)
			if n, _ := at(v, "usage", "completion_tokens").(float64); int(n) != min(i, 3) {
				t.Errorf("event %d counts %v tokens: %s", i, n, ev.data)
			}
			if cached := at(v, "usage", "prompt_tokens_details") != nil; cached != (i == len(got)-2) {
				t.Errorf("event %d has cached tokens: %v", i, cached)
			}
		}
	})
}

func TestVLLMTellsTheCachedTokensOfOnePromptOnly(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		two := `{"model":"sim-model","max_tokens":1,"prompt":["` + textOf(900) + `","x` + textOf(400) + `"]`
		r.ok("/v1/completions", two+"}")
		first := r.resident(`{"model":"sim-model","prompt":"` + textOf(900) + `"}`).HitTokens
		last := r.resident(`{"model":"sim-model","prompt":"x` + textOf(400) + `"}`).HitTokens
		if n := at(r.ok("/v1/completions", two+"}"), "usage", "prompt_tokens_details", "cached_tokens"); n != float64(last) {
			t.Errorf("whole answer: %v cached, want the %d of the last prompt", n, last)
		}
		got := r.stream("/v1/completions", two+`,"stream":true,"stream_options":{"include_usage":true}}`)
		usage := at(decode(t, got[len(got)-2].data), "usage")
		if n := at(usage, "prompt_tokens_details", "cached_tokens"); n != float64(first) {
			t.Errorf("stream: %v, want the %d of the first prompt", usage, first)
		}
	})
}

func TestCreatedCacheTokensAreThoseNotCachedBefore(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		for _, n := range []int{4000, 4000, 6000} {
			u := at(r.ok("/v1/chat/completions", chat(n, `,"max_tokens":1`)), "usage")
			cached := at(u, "prompt_tokens_details", "cached_tokens").(float64)
			created := at(u, "prompt_tokens_details", "created_cache_tokens").(float64)
			prompt := int(at(u, "prompt_tokens").(float64))
			if int(cached+created) != prompt/16*16 {
				t.Errorf("%v cached and %v created of %d", cached, created, prompt)
			}
		}
	})
}

func TestCachedTokensWithoutTheFlag(t *testing.T) {
	inBubble(t, func(c *Config) { c.CachedTokens = false }, func(t *testing.T, r *rig) {
		r.ok("/v1/chat/completions", chat(4000, `,"max_tokens":1`))
		if u := at(r.ok("/v1/chat/completions", chat(4000, `,"max_tokens":1`)), "usage"); at(u, "prompt_tokens_details") != nil {
			t.Errorf("chat: %v", u)
		}
		u := at(r.ok("/v1/messages", chat(4000, `,"max_tokens":1`)), "usage")
		if at(u, "cache_read_input_tokens") != nil || at(u, "input_tokens").(float64) < 900 {
			t.Errorf("messages: %v, want the whole prompt and nothing about the cache", u)
		}
		u = at(r.ok("/v1/responses", `{"model":"sim-model","max_output_tokens":1,"input":"`+textOf(4000)+`"}`), "usage")
		if n, _ := at(u, "input_tokens_details", "cached_tokens").(float64); n < 900 {
			t.Errorf("responses: %v, want cached tokens all the same", u)
		}
	})
}

func TestMessagesUsageAddsUpToThePrompt(t *testing.T) {
	for k, keys := range map[string][]string{
		KindVLLM:   {"input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"},
		KindSGLang: {"input_tokens", "cache_read_input_tokens"},
	} {
		inBubble(t, kind(k), func(t *testing.T, r *rig) {
			body := chat(4000, `,"max_tokens":1`)
			prompt := at(r.ok("/v1/messages/count_tokens", body), "input_tokens").(float64)
			for _, warm := range []bool{false, true} {
				u := at(r.ok("/v1/messages", body), "usage")
				sum := 0.0
				for _, key := range keys {
					n, _ := at(u, key).(float64)
					sum += n
				}
				read, _ := at(u, "cache_read_input_tokens").(float64)
				if sum != prompt || warm != (read > 900) {
					t.Errorf("%s warm %v: %v, want a sum of %v", k, warm, u, prompt)
				}
			}
			got := r.stream("/v1/messages", chat(4000, `,"max_tokens":1,"stream":true`))
			start := at(decode(t, got[0].data), "message", "usage")
			whole := at(start, "input_tokens") == prompt && at(start, "cache_read_input_tokens") == nil
			if whole != (k == KindVLLM) {
				t.Errorf("%s begins with %v, the prompt has %v", k, start, prompt)
			}
		})
	}
}

func TestMaxTokensIsCutToTheRoom(t *testing.T) {
	for k, want := range map[string]int{KindVLLM: 200, KindSGLang: 400} {
		inBubble(t, func(c *Config) { c.Kind, c.MaxContext = k, 100 }, func(t *testing.T, r *rig) {
			status, body := r.post("/v1/completions", strings.Replace(tinyRequest(1, 90, 100), "{", `{"min_tokens":100,`, 1))
			if status != want || want == 200 && at(decode(t, body), "usage", "completion_tokens") != 10.0 {
				t.Errorf("%s: %d %s", k, status, body)
			}
			if status, body := r.post("/v1/completions", tinyRequest(1, 100, 1)); status != 400 || !strings.Contains(body, "input_tokens") {
				t.Errorf("%s: a prompt without room for an answer: %d %s", k, status, body)
			}
		})
	}
}
