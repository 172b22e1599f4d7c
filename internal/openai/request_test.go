package openai

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type refusedTest struct {
	route               Route
	body, param, reason string
}

// refusedTests are bodies that no engine is to see.
var refusedTests = []refusedTest{
	{RouteChat, ``, "", ReasonJSON},
	{RouteChat, `{"model":"m"`, "", ReasonJSON},
	{RouteChat, `{"model":"m"}x`, "", ReasonJSON},
	{RouteChat, `{"model":"m",}`, "", ReasonJSON},
	{RouteChat, `{"model":'m'}`, "", ReasonJSON},
	{RouteChat, `{"a":NaN}`, "", ReasonJSON},
	{RouteChat, `{"a":01}`, "", ReasonJSON},
	{RouteChat, `{"a":"\x"}`, "", ReasonJSON},
	{RouteChat, "{\"a\":\"\n\"}", "", ReasonJSON},
	{RouteChat, strings.Repeat("[", 65) + strings.Repeat("]", 65), "", ReasonDepth},
	{RouteChat, `[]`, "", ReasonType},
	{RouteChat, body(`{‹U›}`), "model", ReasonMissing},
	{RouteChat, body(`{"model":"",‹U›}`), "model", ReasonMissing},
	{RouteChat, body(`{"model":null,‹U›}`), "model", ReasonMissing},
	{RouteChat, body(`{"model":7,‹U›}`), "model", ReasonType},
	{RouteChat, `{"model":"m"}`, "messages", ReasonMissing},
	{RouteChat, `{"model":"m","messages":[]}`, "messages", ReasonMissing},
	{RouteChat, `{"model":"m","messages":{}}`, "messages", ReasonType},
	{RouteChat, `{"model":"m","messages":[{"role":"user"},7]}`, "messages[1]", ReasonType},
	{RouteChat, `{"model":"m","messages":[{"content":"x"}]}`, "messages[0].role", ReasonMissing},
	{RouteChat, `{"model":"m","messages":[{"role":"user","content":{}}]}`, "messages[0].content", ReasonType},
	{
		RouteChat,
		`{"model":"m","messages":[{"role":"user","content":[{"text":1}]}]}`, "messages[0].content[0].text", ReasonType,
	},
	{
		RouteChat,
		`{"model":"m","messages":[{"role":"a","tool_calls":[{"function":{"name":1}}]}]}`, "messages[0].tool_calls[0].function.name", ReasonType,
	},
	{RouteChat, `{"model":"m","messages":[{"role":"a","tool_calls":{}}]}`, "messages[0].tool_calls", ReasonType},
	{RouteChat, body(`{‹M›,‹U›,"tools":[{"function":{"description":1}}]}`), "tools[0].function.description", ReasonType},
	{RouteChat, body(`{‹M›,‹U›,"tools":[1]}`), "tools[0]", ReasonType},
	{RouteChat, body(`{‹M›,‹U›,"stream":"yes"}`), "stream", ReasonType},
	{RouteChat, body(`{‹M›,‹U›,"n":1.5}`), "n", ReasonType},
	{RouteChat, body(`{‹M›,‹U›,"max_tokens":99999999999999999999}`), "max_tokens", ReasonType},
	{RouteChat, body(`{‹M›,‹U›,"input_ids":[-1]}`), "input_ids[0]", ReasonType},
	{RouteCompletions, `{"model":"m"}`, "prompt", ReasonMissing},
	{RouteCompletions, `{"model":"m","prompt":[]}`, "prompt", ReasonMissing},
	{RouteCompletions, `{"model":"m","prompt":7}`, "prompt", ReasonType},
	{RouteCompletions, `{"model":"m","prompt":["a",1]}`, "prompt[1]", ReasonType},
	{RouteCompletions, `{"model":"m","prompt":[1,4294967296]}`, "prompt[1]", ReasonType},
	{RouteCompletions, `{"model":"m","prompt":[[1],[2,"x"]]}`, "prompt[1][1]", ReasonType},
	{RouteResponses, `{"model":"m"}`, "input", ReasonMissing},
	{RouteResponses, `{"model":"m","input":[{"content":"x"}]}`, "input[0].role", ReasonMissing},
	{RouteResponses, `{"model":"m","input":[{"type":"function_call_output","output":1}]}`, "input[0].output", ReasonType},
	{RouteResponses, `{"model":"m","input":[{"type":"reasoning","summary":[1]}]}`, "input[0].summary[0]", ReasonType},
	{RouteMessages, `{"model":"m","messages":[{"role":"user","content":["x"]}]}`, "messages[0].content[0]", ReasonType},
	{RouteMessages, body(`{‹M›,‹U›,"system":{}}`), "system", ReasonType},
	{
		RouteMessages,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":1}]}]}]}`, "messages[0].content[0].content[0].type", ReasonType,
	},
	{RouteCountTokens, `{"model":"m"}`, "messages", ReasonMissing},
	{RouteEmbeddings, `{"input":"x"}`, "model", ReasonMissing},
	{RouteChat, body(`{‹M›,‹U›,"p\u0072iority":0}`), "priority", ReasonField},
	{RouteChat, body(`{‹M›,‹U›,"priority":1,"priority":null}`), "priority", ReasonField},
	{RouteChat, body(`{‹M›,‹U›,"vllm_xargs":{"kv_cache_report_mode":"x"}}`), "vllm_xargs.kv_cache_report_mode", ReasonField},
	{RouteMessages, body(`{‹M›,‹U›,"kv_transfer_params":{}}`), "kv_transfer_params", ReasonField},
}

func TestBadRequestsAreRefusedWithTheirPlace(t *testing.T) {
	for _, tt := range refusedTests {
		_, err := Parse(tt.route, []byte(tt.body))
		e, ok := errors.AsType[*Error](err)
		if !ok {
			t.Errorf("Parse(%s) = %v, want an *Error", tt.body, err)
			continue
		}
		if e.Status != http.StatusBadRequest || e.Param != tt.param || e.Reason != tt.reason || e.Message == "" {
			t.Errorf("Parse(%s) = %+v, want param %q, reason %q", tt.body, *e, tt.param, tt.reason)
		}
	}
}

func TestMalformedJSONIsRefusedWithItsOffset(t *testing.T) {
	_, err := Parse(RouteChat, []byte(`{"model":"m",!`))
	if err == nil || !strings.Contains(err.Error(), "at byte 13") {
		t.Errorf("got %v, want byte 13", err)
	}
}

func TestEveryRefusedFieldIsRefusedUnlessAllowed(t *testing.T) {
	for _, field := range RefusedFields() {
		top, member, nested := strings.Cut(field, ".")
		value := `1`
		if nested {
			value = `{"` + member + `":1}`
		}
		given := []byte(body(`{"` + top + `":` + value + `,‹M›,‹U›}`))
		if field == "chat_template" || field == "lora_path" {
			given = []byte(body(`{"` + top + `":"x",‹M›,‹U›}`))
		}
		if _, err := Parse(RouteChat, given); err == nil {
			t.Errorf("%s is accepted", given)
		}
		limits := DefaultLimits()
		limits.Refused = slices.DeleteFunc(limits.Refused, func(s string) bool { return s == field })
		r, err := limits.Parse(RouteChat, given)
		if err != nil {
			t.Errorf("%s, allowed: %v", given, err)
			continue
		}
		plain, err := Parse(RouteChat, []byte(body(`{‹M›,‹U›}`)))
		if err != nil {
			t.Fatal(err)
		}
		a, _ := walked(r, "m", 0)
		b, _ := walked(plain, "m", 0)
		hashed := !cmp.Equal(a, b, cmp.AllowUnexported(piece{}))
		if want := strings.HasPrefix(field, "chat_template") || field == "lora_path"; hashed != want {
			t.Errorf("%s is hashed: %v, want %v", field, hashed, want)
		}
		null := []byte(body(`{"` + top + `":null,‹M›,‹U›}`))
		if _, err := Parse(RouteChat, null); err != nil {
			t.Errorf("%s: %v", null, err)
		}
	}
}

func TestRequestIsReadForRouting(t *testing.T) {
	type read struct {
		Model                     string
		Stream, Usage             bool
		N, Prompts, Max           int
		Stored, Background        bool
		Keyless, Previous, Sesson string
	}
	tests := []struct {
		route Route
		body  string
		want  read
	}{
		{RouteChat, body(`{"model":"\u006d/x",‹U›}`), read{Model: "m/x", N: 1, Prompts: 1, Usage: true}},
		{
			RouteChat, body(`{‹M›,‹U›,"stream":true,"n":3,"max_tokens":5,"max_completion_tokens":7,"user":"u"}`),
			read{Model: "m", Stream: true, N: 3, Prompts: 1, Max: 7, Sesson: "u"},
		},
		{
			RouteChat, body(`{‹M›,‹U›,"stream":true,"stream_options":{"include_usage":true},"store":true,"session_id":"s","user":"u"}`),
			read{Model: "m", Stream: true, Usage: true, N: 1, Prompts: 1, Stored: true, Sesson: "s"},
		},
		{
			RouteResponses,
			`{"model":"m","input":"x","background":true,"max_output_tokens":9,"prompt_cache_key":"k","metadata":{"session_id":"s"}}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Max: 9, Stored: true, Background: true, Sesson: "s"},
		},
		{
			RouteResponses, `{"model":"m","previous_response_id":"resp_1","store":false}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Previous: "resp_1", Keyless: "stored"},
		},
		{
			RouteResponses, `{"model":"m","input":[{"type":"item_reference","id":"x"}],"store":false}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "stored"},
		},
		{
			RouteResponses,
			`{"model":"m","prompt":{"id":"x"},"store":false}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "template"},
		},
		{
			RouteResponses,
			`{"model":"m","input":"x","truncation":"auto","store":false}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "truncation"},
		},
		{RouteCompletions, `{"model":"m","prompt":["a","b","c"]}`, read{Model: "m", Usage: true, N: 1, Prompts: 3}},
		{RouteCompletions, `{"model":"m","prompt":[[1],[2]]}`, read{Model: "m", Usage: true, N: 1, Prompts: 2}},
		{RouteCompletions, `{"model":"m","prompt":[1,2]}`, read{Model: "m", Usage: true, N: 1, Prompts: 1}},
		{
			RouteCompletions,
			`{"model":"m","prompt":"p","truncate_prompt_tokens":5}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "truncation"},
		},
		{
			RouteCompletions,
			`{"model":"m","prompt":"p","suffix":"s"}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "suffix"},
		},
		{
			RouteCompletions,
			`{"model":"m","prompt":"p","echo":true,"logprobs":1}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "prompt_logprobs"},
		},
		{
			RouteCompletions,
			`{"model":"m","prompt_embeds":"AA"}`,
			read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "embeds"},
		},
		{
			RouteMessages, body(`{‹M›,‹U›,"stream":true,"max_tokens":4,"metadata":{"user_id":"u"}}`),
			read{Model: "m", Stream: true, Usage: true, N: 1, Prompts: 1, Max: 4, Sesson: "u"},
		},
		{RouteCountTokens, body(`{‹M›,‹U›}`), read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "count_tokens"}},
		{RouteEmbeddings, `{"model":"m","input":[1]}`, read{Model: "m", Usage: true, N: 1, Prompts: 1, Keyless: "pooling"}},
		{RouteModels, ``, read{N: 1, Prompts: 1, Keyless: "no_prompt"}},
	}
	for _, tt := range tests {
		r, err := Parse(tt.route, []byte(tt.body))
		if err != nil {
			t.Errorf("Parse(%v, %s): %v", tt.route, tt.body, err)
			continue
		}
		got := read{
			r.Model, r.Stream, r.IncludeUsage, r.N, r.Prompts, r.MaxTokens, r.Stored, r.Background,
			r.Keyless, r.Previous, r.SessionID,
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("Parse(%v, %s) (-want +got):\n%s", tt.route, tt.body, diff)
		}
		for range r.Walk("m", 0) {
			if r.Keyless != "" {
				t.Errorf("%s has no keys but walks", tt.body)
			}
			break
		}
	}
}

func TestRouteWithoutPromptHasNoKeys(t *testing.T) {
	for route := range RouteResponseByID + 3 {
		r, err := Parse(route, []byte(`{"model":"m"}`))
		if err == nil && r.Keyless == "" {
			t.Errorf("route %d has keys without a prompt", route)
		}
	}
}

func TestBodyOverTheLimitIsTooLarge(t *testing.T) {
	limits := DefaultLimits()
	limits.Body = 10
	_, err := limits.Parse(RouteChat, []byte(body(`{‹M›,‹U›}`)))
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("got %v, want 413", err)
	}
}

func TestRoutes(t *testing.T) {
	tests := []struct {
		method, path string
		want         Route
		status       int
	}{
		{"POST", "/v1/chat/completions", RouteChat, 0},
		{"POST", "/v1/completions", RouteCompletions, 0},
		{"POST", "/v1/responses", RouteResponses, 0},
		{"POST", "/v1/messages", RouteMessages, 0},
		{"POST", "/v1/messages/count_tokens", RouteCountTokens, 0},
		{"POST", "/v1/embeddings", RouteEmbeddings, 0},
		{"POST", "/v1/rerank", RouteRerank, 0},
		{"POST", "/v1/score", RouteScore, 0},
		{"GET", "/v1/models", RouteModels, 0},
		{"GET", "/v1/responses/resp_0a-B", RouteResponseByID, 0},
		{"GET", "/v1/chat/completions", RouteChat, 405},
		{"DELETE", "/v1/responses/resp_1", RouteResponseByID, 405},
		{"GET", "/v1/responses/", 0, 404},
		{"GET", "/v1/responses/a/b", 0, 404},
		{"GET", "/v1/responses/..", 0, 404},
		{"GET", "/v1/responses/" + strings.Repeat("a", 129), 0, 404},
		{"POST", "/v1/chat/completions/", 0, 404},
		{"POST", "/v1/load_lora_adapter", 0, 404},
		{"POST", "/flush_cache", 0, 404},
		{"GET", "/", 0, 404},
	}
	for _, tt := range tests {
		got, err := RouteFor(tt.method, tt.path)
		status := 0
		if err != nil {
			status = err.Status
		}
		if status == http.StatusMethodNotAllowed && (err.Allow == "" || err.Allow == tt.method) {
			t.Errorf("RouteFor(%s, %s) allows %q", tt.method, tt.path, err.Allow)
		}
		if got != tt.want || status != tt.status {
			t.Errorf("RouteFor(%s, %s) = %v, %v, want %v, %d", tt.method, tt.path, got, err, tt.want, tt.status)
		}
	}
}

func TestErrorsHaveTheShapeOfTheirAPI(t *testing.T) {
	e := badRequest(ReasonType, "messages[0]", "must be \"x\"")
	tests := []struct {
		got  []byte
		want string
	}{
		{e.Body(RouteChat), `{"error":{"message":"messages[0]: must be \"x\"","type":"invalid_request_error","param":"messages[0]","code":null}}`},
		{e.Body(0), `{"error":{"message":"messages[0]: must be \"x\"","type":"invalid_request_error","param":"messages[0]","code":null}}`},
		{e.Body(RouteMessages), `{"type":"error","error":{"type":"invalid_request_error","message":"messages[0]: must be \"x\""}}`},
	}
	for _, tt := range tests {
		if string(tt.got) != tt.want || !json.Valid(tt.got) {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
	}
	overload := &Error{Status: 503, Type: "overloaded", Code: "no_engine", Message: "no engine", Reason: "overload"}
	for _, route := range []Route{RouteChat, RouteCompletions, RouteResponses, RouteMessages} {
		event := ErrorEvent(route, overload)
		list, _, err := events(route, event, nil, 1<<20)
		if err != nil || len(list) != 1 || !list[0].Failed || list[0].Content {
			t.Errorf("%v reads the event %q as %+v, %v", route, event, list, err)
		}
	}
}

func TestEveryNameIsFoundInEverySpelling(t *testing.T) {
	longest := 0
	for n := nNone + 1; n < numNames; n++ {
		key := []byte(n.String())
		longest = max(longest, 6*len(key))
		var escaped []byte
		for _, c := range key {
			escaped = append(escaped, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		if nameOf(key) != n || nameOf(escaped) != n {
			t.Errorf("name %d, %q, is found as %d and %d", n, n, nameOf(key), nameOf(escaped))
		}
	}
	if longest != maxEscapedName {
		t.Errorf("the longest name takes %d bytes escaped, want maxEscapedName = %d", longest, maxEscapedName)
	}
}
