package openai

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestContinuable(t *testing.T) {
	const chat, messages = "/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}]`
	for _, tt := range []struct {
		path, body string
		why        string // a part of it; "" when it can be gone on with
	}{
		{chat, messages + `,"temperature":0.5,"top_p":null,"logit_bias":{"5":1}`, ""},
		{chat, messages + `,"stop":[],"n":1,"tools":[],"frequency_penalty":0,"response_format": {"type": "text"}`, ""},
		{chat, messages + `,"tool_choice":"none","seed":3,"store":false,"logprobs":false`, ""},
		{"/v1/completions", `"prompt":"a","max_tokens":5`, ""},
		{"/v1/completions", `"prompt":[1,2]`, ""},
		{"/v1/completions", `"prompt":["a","b"]`, "several answers"},
		{"/v1/completions", `"prompt":"a","echo":true`, "prompt is part"},
		{"/v1/completions", `"prompt":"a","suffix":"b"`, "suffix"},
		{"/v1/completions", `"prompt":"a","logprobs":0`, "log probabilities"},
		{"/v1/responses", `"input":"a"`, "only chat"},
		{chat, messages + `,"stop":"a"`, "stop strings"},
		{chat, messages + `,"stop":["a"]`, "stop strings"},
		{chat, messages + `,"n":2`, "several answers"},
		{chat, messages + `,"best_of":2`, "several answers"},
		{chat, messages + `,"tools":[{"type":"function","function":{"name":"f"}}]`, "tools"},
		{chat, messages + `,"presence_penalty":0.1`, "penalties"},
		{chat, messages + `,"repetition_penalty":1.1`, "penalties"},
		{chat, messages + `,"min_tokens":1`, "least length"},
		{chat, messages + `,"logprobs":true`, "log probabilities"},
		{chat, messages + `,"response_format":{"type":"json_object"}`, "structure"},
		{chat, messages + `,"structured_outputs":{}`, "structured_outputs"},
		{chat, messages + `,"return_token_ids":false`, "token ids"},
		{chat, messages + `,"store":true`, "stores"},
		{chat, messages + `,"\u0073top":"a"`, `\u0073top`},
		{chat, messages + `,"truncate_prompt_tokens":5`, "truncation"},
		{chat, messages + `,"logit_bias":{"` + strings.Repeat("5", maxCarried) + `":1}`, "too long"},
		{chat, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]`, "media"},
	} {
		route, _ := routeOf(tt.path)
		r, err := Parse(route, []byte(`{"model":"m","stream":true,`+tt.body+`}`))
		if err != nil {
			t.Fatal(err)
		}
		c, why := r.Continuation()
		if (c == nil) == (why == "") || (tt.why == "") != (why == "") || !strings.Contains(why, tt.why) {
			t.Errorf("%s: %v, %q; want %q", tt.body, c, why, tt.why)
		}
	}
	r, _ := Parse(RouteChat, []byte(`{"model":"m",`+messages+`}`))
	if _, why := r.Continuation(); !strings.Contains(why, "no stream") {
		t.Errorf("an answer that is no stream: %q", why)
	}
}

func TestContinuationBody(t *testing.T) {
	r, err := Parse(RouteChat, []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],
		"temperature":0,"max_tokens":9,"max_completion_tokens":10,"cache_salt":"s","seed":1}`))
	if err != nil {
		t.Fatal(err)
	}
	c, why := r.Continuation()
	if c == nil {
		t.Fatal(why)
	}
	body := c.Body([]uint32{1, 2}, []uint32{3}, c.Left(2, 1, 100))
	const want = `{"model":"m","temperature":0,"cache_salt":"s","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"prompt":[1,2,3]}`
	if diff := cmp.Diff(want, string(body)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r, err := Parse(RouteCompletions, body); err != nil || !r.Traits.Has(TraitTokenPrompt|TraitUsage) || r.MaxTokens != 9 {
		t.Errorf("%+v, %v", r, err)
	}
	const wantChat = `{"messages":[{"role":"user","content":""}],"model":"m","temperature":0,"cache_salt":"s","stream":true,` +
		`"stream_options":{"include_usage":true},"max_tokens":9,"prompt_token_ids":[1,2,3]}`
	if diff := cmp.Diff(wantChat, string(ContinuingChat(body))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"prompt":"a"}`, `{"prompt":[1],"prompt":[2]}`, `{"prompt":[1],"messages":[]}`} {
		if got := ContinuingChat([]byte(bad)); got != nil {
			t.Errorf("%s becomes %s", bad, got)
		}
	}
}

func TestTokensLeft(t *testing.T) {
	for _, tt := range []struct {
		limit, prompt, output, context, want int
	}{
		{0, 10, 5, 100, 85},
		{0, 10, 5, 0, -1}, // nobody knows
		{20, 10, 5, 0, 15},
		{20, 10, 5, 100, 15},
		{200, 10, 5, 100, 85},
		{5, 10, 5, 100, 0},
		{0, 90, 10, 100, 0},
		{0, 90, 15, 100, 0},
	} {
		c := Continuation{limit: tt.limit}
		if got := c.Left(tt.prompt, tt.output, tt.context); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

func FuzzContinuation(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(uint8(s.route), s.body)
	}
	f.Add(uint8(RouteChat), []byte(`{"model":"m","stream":true,"temperature":0.5,"messages":[{"role":"user","content":"hi"}]}`))
	f.Fuzz(func(t *testing.T, route uint8, body []byte) {
		r, err := Parse(Route(route%uint8(RouteScore)+1), body)
		if err != nil {
			return
		}
		c, why := r.Continuation()
		if (c == nil) == (why == "") {
			t.Fatalf("%v and %q", c, why)
		}
		if c == nil {
			return
		}
		for _, b := range [][]byte{c.Body([]uint32{7}, nil, 1), ContinuingChat(c.Body(nil, []uint32{7}, 1))} {
			if !json.Valid(b) {
				t.Fatalf("%s becomes %s", body, b)
			}
		}
	})
}
