package simengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// inBubble runs f with an engine of fake time.
func inBubble(t *testing.T, change func(*Config), f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newRig(t, change)) })
}

func kind(k string) func(*Config) { return func(c *Config) { c.Kind = k } }

func TestSamePromptGivesSameAnswerStreamedOrNot(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		a := at(r.ok("/v1/chat/completions", chat(400, "")), "choices", 0, "message", "content").(string)
		b := at(r.ok("/v1/chat/completions", chat(400, "")), "choices", 0, "message", "content").(string)
		var streamed strings.Builder
		for _, ev := range r.stream("/v1/chat/completions", chat(400, `,"stream":true`)) {
			if ev.data != "[DONE]" {
				s, _ := at(decode(t, ev.data), "choices", 0, "delta", "content").(string)
				streamed.WriteString(s)
			}
		}
		if a == "" || a != b || a != streamed.String() {
			t.Errorf("answers differ:\n%q\n%q\n%q", a, b, streamed.String())
		}
		if other := at(r.ok("/v1/chat/completions", chat(401, "")), "choices", 0, "message", "content"); other == a {
			t.Error("another prompt has the same answer")
		}
	})
}

// secondTurn is how many tokens of a first turn the second finds cached.
func secondTurn(r *rig, n int) (cached, prompt, total int) {
	r.t.Helper()
	first := r.ok("/v1/chat/completions", chat(n, `,"min_tokens":200`))
	answer := at(first, "choices", 0, "message", "content").(string)
	second := r.ok("/v1/chat/completions", `{"model":"sim-model","messages":[{"role":"user","content":"`+textOf(n)+
		`"},{"role":"assistant","content":"`+answer+`"},{"role":"user","content":"go on"}]}`)
	return int(at(second, "usage", "prompt_tokens_details", "cached_tokens").(float64)),
		int(at(first, "usage", "prompt_tokens").(float64)), int(at(first, "usage", "total_tokens").(float64))
}

func TestSecondTurnIsCachedToTheAnswersEnd(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		for n := 4000; n < 4020; n++ {
			if cached, _, total := secondTurn(r, n); cached < total-16 || cached > total {
				t.Errorf("cached %d of the %d tokens of turn 1, want all but the last block", cached, total)
			}
		}
	})
}

func TestRetokenizeRateBreaksTheNextTurnInsideTheAnswer(t *testing.T) {
	inBubble(t, func(c *Config) { c.RetokenizeRate = 1 }, func(t *testing.T, r *rig) {
		places := map[int]bool{}
		for n := 4000; n < 4020; n++ {
			cached, prompt, total := secondTurn(r, n)
			if cached < prompt-16 || cached > total {
				t.Errorf("cached %d, want to stop inside the answer, from %d to %d", cached, prompt, total)
			}
			places[(total-cached)/16] = true
		}
		if len(places) < 5 {
			t.Errorf("turn 2 stops at the same place always: %v blocks before the end", places)
		}
	})
	inBubble(t, func(c *Config) { c.RetokenizeRate = 0.3 }, func(t *testing.T, r *rig) {
		broken := 0
		for n := 4000; n < 4060; n++ {
			if cached, _, total := secondTurn(r, n); cached < total-32 {
				broken++
			}
		}
		if broken < 9 || broken > 28 {
			t.Errorf("%d of 60 answers broke the prefix, want about 18", broken)
		}
	})
}

func TestThoughtsOfEarlierTurnsBreakThePrefixAtTheUserMessage(t *testing.T) {
	inBubble(t, func(c *Config) { c.Template = TemplateDropsThoughts }, func(t *testing.T, r *rig) {
		first := r.ok("/v1/chat/completions", chat(4000, ""))
		m := at(first, "choices", 0, "message")
		if at(m, "reasoning") == nil || at(m, "content") == "" {
			t.Fatalf("message %v, want a thought and an answer", m)
		}
		second := r.ok("/v1/chat/completions", `{"model":"sim-model","messages":[{"role":"user","content":"`+textOf(4000)+
			`"},`+jsonOf(m)+`,{"role":"user","content":"go on"}]}`)
		prompt := at(first, "usage", "prompt_tokens").(float64)
		cached := at(second, "usage", "prompt_tokens_details", "cached_tokens").(float64)
		if cached < prompt-32 || cached > prompt {
			t.Errorf("cached %v tokens, want the %v of turn 1's prompt and no more", cached, prompt)
		}
	})
}

func TestTemplatesShareWhatTheirModelsShare(t *testing.T) {
	one := &conversation{
		turns: []turn{{role: "system", text: textOf(1000)}, {role: "user", text: "one"}},
		tools: []tool{{"f", "does it", json.RawMessage(`{"type": "object"}`)}},
	}
	two := &conversation{turns: append(one.turns[:2:2], turn{role: "assistant", text: "yes"}, turn{role: "user", text: "two"}), tools: one.tools}
	want := map[string]bool{
		TemplatePlain: true, TemplateToolsFirst: true, TemplateDropsThoughts: true, TemplateDated: true, TemplateToolsInLastUser: false,
	}
	for name, extends := range want {
		a := strings.TrimSuffix(rendererOf(name)(one), tokenStart+"assistant\n")
		if got := strings.HasPrefix(rendererOf(name)(two), a); got != extends {
			t.Errorf("%s: turn 2 extends turn 1 = %v, want %v", name, got, extends)
		}
	}
	if !strings.HasPrefix(renderToolsFirst(one), tokenTools) || !strings.HasPrefix(renderPlain(one), tokenStart+"system") {
		t.Error("tools-first and plain begin alike")
	}
}

func TestDatedTemplateChangesAtMidnight(t *testing.T) {
	inBubble(t, func(c *Config) { c.Template = TemplateDated }, func(t *testing.T, r *rig) {
		cached := func() any {
			return at(r.ok("/v1/chat/completions", chat(4000, `,"max_tokens":1`)), "usage", "prompt_tokens_details", "cached_tokens")
		}
		cached()
		if got := cached(); got == 0.0 {
			t.Error("nothing cached on the same day")
		}
		time.Sleep(24 * time.Hour)
		if got := cached(); got != 0.0 {
			t.Errorf("cached %v tokens on the next day, want 0", got)
		}
	})
}

func TestOneConversationRendersAlikeThroughThreeAPIs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.ok("/v1/chat/completions", `{"model":"sim-model","max_tokens":1,"messages":[{"role":"system","content":"`+textOf(2000)+
			`"},{"role":"user","content":[{"type":"text","text":"hi"}]}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"b":1,"a":2}}}]}`)
		resp := r.ok("/v1/responses", `{"model":"sim-model","max_output_tokens":1,"instructions":"`+textOf(2000)+
			`","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}],"tools":[{"type":"function","name":"f","description":"d","parameters":{"b":1, "a":2}}]}`)
		msg := r.ok("/v1/messages", `{"model":"sim-model","max_tokens":1,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},{"type":"text","text":"`+textOf(2000)+
			`","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","description":"d","input_schema":{"b":1,"a":2}}]}`)
		n := at(resp, "usage", "input_tokens").(float64)
		want := float64(int(n-1) / 16 * 16)
		if got := at(resp, "usage", "input_tokens_details", "cached_tokens"); got != want {
			t.Errorf("responses: cached %v of %v, want %v", got, n, want)
		}
		if got := at(msg, "usage", "cache_read_input_tokens"); got != want {
			t.Errorf("messages: cached %v of %v, want %v", got, n, want)
		}
	})
}

func TestVLLMChatStream(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		got := r.stream("/v1/chat/completions", chat(40, `,"stream":true,"max_tokens":2,"stream_options":{"include_usage":true}`))
		if len(got) != 5 {
			t.Fatalf("%d events, want role, 2 tokens, usage, [DONE]", len(got))
		}
		for i, want := range []string{
			`"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}`,
			`"logprobs":null,"finish_reason":null,"token_ids":null}]}`,
			`"finish_reason":"length","stop_reason":null,"token_ids":null}]}`,
			`"choices":[],"usage":{"prompt_tokens":20,"total_tokens":22,"completion_tokens":2,"prompt_tokens_details":` +
				`{"cached_tokens":0,"created_cache_tokens":16}},"system_fingerprint":"vllm-0.32.0-sim"}`,
			`[DONE]`,
		} {
			if !strings.HasSuffix(got[i].data, want) {
				t.Errorf("event %d = %s, want it to end with %s", i, got[i].data, want)
			}
		}
		plain := r.stream("/v1/chat/completions", chat(40, `,"stream":true,"max_tokens":2`))
		if last := plain[2].data; !strings.Contains(last, `"system_fingerprint"`) || strings.Contains(got[2].data, `"system_fingerprint"`) {
			t.Errorf("fingerprint must be on the last chunk with choices only when no usage follows: %s", last)
		}
	})
}

func TestVLLMReturnsTokenIDs(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		whole := r.ok("/v1/chat/completions", chat(40, `,"max_tokens":3,"return_token_ids":true,"n":2`))
		tokens := r.ok("/tokenize", chat(40, ""))
		if diff := cmp.Diff(at(tokens, "tokens"), at(whole, "prompt_token_ids")); diff != "" {
			t.Errorf("prompt ids are not those of /tokenize:\n%s", diff)
		}
		got := r.stream("/v1/chat/completions", chat(40, `,"max_tokens":3,"return_token_ids":true,"n":2,"stream":true`))
		prompts, ids := 0, map[string][]any{}
		for _, ev := range got[:len(got)-1] {
			v := decode(t, ev.data)
			if p := at(v, "prompt_token_ids"); p != nil {
				prompts++
			}
			key := fmt.Sprint(at(v, "choices", 0, "index"))
			l, _ := at(v, "choices", 0, "token_ids").([]any)
			ids[key] = append(ids[key], l...)
		}
		if prompts != 2 {
			t.Errorf("prompt ids came %d times, want once a choice", prompts)
		}
		for i := range 2 {
			if diff := cmp.Diff(at(whole, "choices", i, "token_ids"), any(ids[fmt.Sprint(i)])); diff != "" {
				t.Errorf("choice %d: streamed ids differ:\n%s", i, diff)
			}
		}
	})
}

func TestParserMakesChunksOfIDsOnlyWhenIDsAreAskedFor(t *testing.T) {
	empties := func(r *rig, more string) (n int) {
		for _, ev := range r.stream("/v1/chat/completions", chat(40, `,"stream":true,"max_tokens":50`+more)) {
			if strings.Contains(ev.data, `"delta":{},`) {
				n++
			}
		}
		return n
	}
	inBubble(t, func(c *Config) { c.Template = TemplateDropsThoughts }, func(t *testing.T, r *rig) {
		if got := empties(r, ""); got != 0 {
			t.Errorf("%d chunks without content, want none", got)
		}
		if got := empties(r, `,"return_token_ids":true`); got == 0 {
			t.Error("no chunk with ids only")
		}
		hidden := r.stream("/v1/chat/completions", chat(40, `,"stream":true,"return_token_ids":true,"include_reasoning":false`))
		all := ""
		for _, ev := range hidden {
			all += ev.data
		}
		if !strings.Contains(all, `"reasoning":null}`) {
			t.Errorf("deltas with text must say that there is no reasoning: %s", all)
		}
		if !strings.Contains(all, `"prompt_token_ids":[`) || strings.Contains(all, `"token_ids":[`) || strings.Contains(all, `"reasoning":"`) {
			t.Errorf("include_reasoning false: want the prompt's ids, no others and no thought, got %s", all)
		}
	})
}

func TestEchoIsLostWhenIDsAreAskedFor(t *testing.T) {
	for k, lost := range map[string]bool{KindVLLM: true, KindSGLang: false} {
		inBubble(t, kind(k), func(t *testing.T, r *rig) {
			req := `{"model":"sim-model","prompt":"say this","max_tokens":2,"echo":true`
			plain := at(r.ok("/v1/completions", req+`}`), "choices", 0, "text").(string)
			ids := at(r.ok("/v1/completions", req+`,"return_token_ids":true}`), "choices", 0, "text").(string)
			if lost {
				ids = "say this" + ids
			}
			if ids != plain {
				t.Errorf("%s: with ids %q, without %q", k, ids, plain)
			}
			first := r.stream("/v1/completions", req+`,"stream":true}`)[0].data
			if got := strings.Contains(first, `"prompt_token_ids":[`); got != lost {
				t.Errorf("%s: echo alone brings the prompt's ids: %v, want %v: %s", k, got, lost, first)
			}
		})
	}
}

func TestCompletionPromptForms(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		ids := jsonOf(r.tok.encode(nil, "hello there"))
		texts := map[string]int{
			`"hello there"`: 1, `["hello there","other"]`: 2, ids: 1, `[` + ids + `,[72]]`: 2,
		}
		want := at(r.ok("/v1/completions", `{"model":"sim-model","prompt":"hello there"}`), "choices", 0, "text")
		for prompt, n := range texts {
			got := r.ok("/v1/completions", `{"model":"sim-model","prompt":`+prompt+`}`)
			if c := at(got, "choices").([]any); len(c) != n || at(c, 0, "text") != want {
				t.Errorf("prompt %s: %v, want %d choices, the first %q", prompt, c, n, want)
			}
		}
		status, body := r.post("/v1/completions", `{"model":"sim-model","prompt":[99999999]}`)
		if status != http.StatusBadRequest {
			t.Errorf("unknown token id: %d %s, want 400", status, body)
		}
	})
}

func TestErrorBodies(t *testing.T) {
	tests := []struct {
		kind, path, body string
		status           int
		want             string
	}{
		{KindVLLM, "/nowhere", `{}`, 404, `{"detail":"Not Found"}`},
		{KindVLLM, "/v1/chat/completions", "\"\xff\"", 400, `{"detail":"There was an error parsing the body"}`},
		{KindSGLang, "/v1/chat/completions", chat(4, `,"max_tokens":0`), 400, `{"object":"error","message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)","type":"BadRequestError","param":"max_tokens","code":400}`},
		{KindSGLang, "/v1/chat/completions", chat(4, `,"stream":true,"return_prompt_token_ids":true`), 400, `{"object":"error","message":"return_token_ids is not supported with streaming on /v1/chat/completions. Please set stream=false when using return_token_ids=true.","type":"BadRequestError","param":null,"code":400}`},
		{KindSGLang, "/v1/chat/completions", `{"messages":7}`, 400, `{"object":"error","message":"1 validation error:\n  {'type': 'type_error', 'loc': 'body', 'msg': 'json: cannot unmarshal number into Go struct field chatRequest.messages of type []simengine.chatMessage'}","type":"Bad Request","param":"body","code":400}`},
		{KindSGLang, "/v1/responses", `{"model":"x","input":"a","max_output_tokens":0}`, 400, `{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)","type":"BadRequestError","param":"max_tokens","code":400}}`},
		{KindSGLang, "/v1/messages", `{"model":"x"}`, 400, `{"type":"error","error":{"type":"invalid_request_error","message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.max_tokens', 'msg': 'Field required'}"}}`},
		{KindTRTLLM, "/v1/chat/completions", chat(4, `,"return_token_ids":true`), 400, `{"object":"error","message":"field \"return_token_ids\" is not known","type":"BadRequestError","param":null,"code":400}`},
		{KindTRTLLM, "/v1/chat/completions", chat(4, `,"stream_options":{}`), 400, "{\"object\":\"error\",\"message\":\"Stream options can only be defined when `stream=True`. (parameter=stream_options)\",\"type\":\"BadRequestError\",\"param\":\"stream_options\",\"code\":400}"},
		{KindTRTLLM, "/v1/messages", `{}`, 404, `{"detail":"Not Found"}`},
	}
	for _, tt := range tests {
		inBubble(t, kind(tt.kind), func(t *testing.T, r *rig) {
			status, body := r.post(tt.path, tt.body)
			if status != tt.status || body != tt.want {
				t.Errorf("%s %s: %d %s\nwant %d %s", tt.kind, tt.path, status, body, tt.status, tt.want)
			}
		})
	}
}

func TestSGLangReportsCachedTokensOnlyAboveZero(t *testing.T) {
	inBubble(t, kind(KindSGLang), func(t *testing.T, r *rig) {
		if got := r.ok("/v1/chat/completions", chat(400, `,"max_tokens":1`)); at(got, "usage", "prompt_tokens_details") != nil {
			t.Errorf("cold: %v, want no details", at(got, "usage"))
		}
		if got := r.ok("/v1/chat/completions", chat(400, `,"max_tokens":1`)); at(got, "usage", "prompt_tokens_details") == nil {
			t.Errorf("warm: %v, want details", at(got, "usage"))
		}
		got := r.ok("/v1/chat/completions", chat(400, `,"max_tokens":2,"return_token_ids":true`))
		if at(got, "choices", 0, "response_token_ids") == nil || at(got, "choices", 0, "prompt_token_ids") == nil {
			t.Errorf("%v, want ids of both", at(got, "choices", 0))
		}
		got = r.ok("/v1/chat/completions", chat(400, `,"max_tokens":2,"return_prompt_token_ids":true`))
		if at(got, "choices", 0, "response_token_ids") != nil || at(got, "choices", 0, "prompt_token_ids") == nil {
			t.Errorf("%v, want the prompt's ids only", at(got, "choices", 0))
		}
	})
}

func TestResponsesAndMessagesStreams(t *testing.T) {
	inBubble(t, func(c *Config) { c.Template = TemplateDropsThoughts }, func(t *testing.T, r *rig) {
		names := func(events []event) (out []string) {
			for _, ev := range events {
				if n := len(out); n == 0 || out[n-1] != ev.name {
					out = append(out, ev.name)
				}
			}
			return out
		}
		got := names(r.stream("/v1/responses", `{"model":"sim-model","input":"hi","stream":true}`))
		want := []string{
			"response.created", "response.in_progress",
			"response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
			"response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
			"response.output_item.added", "response.content_part.added", "response.output_text.delta",
			"response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("responses (-want +got):\n%s", diff)
		}
		got = names(r.stream("/v1/messages", `{"model":"sim-model","max_tokens":500,"messages":[{"role":"user","content":"hi"}],"stream":true}`))
		want = []string{
			"message_start", "content_block_start", "content_block_delta", "content_block_stop",
			"content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
	})
}

func TestOtherCacheSaltSharesNothing(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		for _, salt := range []string{"a", "b"} {
			v := r.ok("/v1/chat/completions", chat(4000, `,"max_tokens":1,"cache_salt":"`+salt+`"`))
			if got := at(v, "usage", "prompt_tokens_details", "cached_tokens"); got != 0.0 {
				t.Errorf("salt %s: cached %v, want 0", salt, got)
			}
		}
	})
}

func TestChoicesAndLengthsOutOfRangeAreRefused(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		for _, more := range []string{`,"n":0`, `,"n":4611686018427387904`, `,"max_tokens":-1`, `,"max_tokens":131073`} {
			if status, body := r.post("/v1/chat/completions", chat(40, more)); status != http.StatusBadRequest {
				t.Errorf("%s: %d %s, want 400", more, status, body)
			}
		}
		got := r.ok("/v1/chat/completions", chat(40, `,"min_tokens":4611686018427387904,"max_tokens":7`))
		if n := at(got, "usage", "completion_tokens"); n != 7.0 {
			t.Errorf("answer of %v tokens, want 7", n)
		}
	})
}
