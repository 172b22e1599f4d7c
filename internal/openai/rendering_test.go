package openai

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const plainTurns = `[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`

var renderBodyTests = []struct {
	name  string
	route Route
	body  string
	want  string
}{
	{
		"chat", RouteChat, `{"model":"m","stream":true,"temperature":0.5,"messages":` + plainTurns + `,"max_tokens":9,"seed":null}`,
		`{"model":"m","messages":` + plainTurns + `}`,
	},
	{
		"chat with all that templates see", RouteChat,
		`{"tools":[],"tool_choice":"auto","model":"m","messages":[],"reasoning_effort":"low","chat_template_kwargs":{"a":1},` +
			`"add_generation_prompt":false,"continue_final_message":true,"cache_salt":"s"}`,
		`{"tools":[],"tool_choice":"auto","model":"m","messages":[],"reasoning_effort":"low","chat_template_kwargs":{"a":1},` +
			`"add_generation_prompt":false,"continue_final_message":true}`,
	},
	{"chat with a field that is not known", RouteChat, `{"model":"m","messages":[],"documents":[]}`, ""},
	{"the same without value", RouteChat, `{"model":"m","messages":[],"documents":null}`, `{"model":"m","messages":[]}`},
	{"chat of token ids", RouteChat, `{"model":"m","messages":[],"input_ids":[1]}`, ""},
	{"name spelled with an escape", RouteChat, `{"model":"m","messages":[],"tool\u0073":[1]}`, ""},
	{
		"messages", RouteMessages, `{"model":"m","max_tokens":5,"system":"s","messages":` + plainTurns + `}`,
		`{"model":"m","messages":[{"role":"system","content":"s"},` + plainTurns[1:] + `}`,
	},
	{
		"messages of single blocks", RouteMessages,
		`{"model":"m","system":[{"type":"text","text":"s","cache_control":{}}],"messages":[{"role":"user","content":[{"type":"text","text":"a\"\n"}]}]}`,
		`{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a\"\n"}]}`,
	},
	{"two system blocks", RouteMessages, `{"model":"m","system":[{"type":"text","text":"s"},{"type":"text","text":"t"}],"messages":` + plainTurns + `}`, ""},
	{"billing header", RouteMessages, `{"model":"m","system":[{"type":"text","text":"x-anthropic-billing-header: 1"}],"messages":` + plainTurns + `}`, ""},
	{"tools", RouteMessages, `{"model":"m","tools":[{"name":"f"}],"messages":` + plainTurns + `}`, ""},
	{"thinking", RouteMessages, `{"model":"m","thinking":{"type":"enabled"},"messages":` + plainTurns + `}`, ""},
	{"picture", RouteMessages, `{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`, ""},
	{"thought", RouteMessages, `{"model":"m","messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]},{"role":"user","content":"b"}]}`, ""},
	{"tool result", RouteMessages, `{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":"a"}]}]}`, ""},
	{"system message inside", RouteMessages, `{"model":"m","messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]}`, ""},
	{"answer that is begun", RouteMessages, `{"model":"m","messages":` + strings.Replace(plainTurns, `,{"role":"user","content":"c"}`, "", 1) + `}`, ""},
	{"empty text", RouteMessages, `{"model":"m","messages":[{"role":"user","content":""}]}`, ""},
	{
		"responses", RouteResponses, `{"model":"m","instructions":"s","input":"a","store":false,"max_output_tokens":5}`,
		`{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]}`,
	},
	{
		"responses of items", RouteResponses,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},` +
			`{"type":"message","id":"1","role":"assistant","content":[{"type":"output_text","text":"b"}]},{"role":"user","content":"c"}]}`,
		`{"model":"m","messages":` + plainTurns + `}`,
	},
	{"stored", RouteResponses, `{"model":"m","previous_response_id":"r","input":"a"}`, ""},
	{"call", RouteResponses, `{"model":"m","input":[{"type":"function_call","name":"f","role":"user","content":"a"}]}`, ""},
	{"reasoning", RouteResponses, `{"model":"m","reasoning":{"effort":"low"},"input":"a"}`, ""},
	{"no input", RouteResponses, `{"model":"m"}`, ""},
	{"no model", RouteResponses, `{"input":"a"}`, ""},
	{"completion", RouteCompletions, `{"model":"m","prompt":"a"}`, ""},
	{"no object", RouteChat, `[]`, ""},
	{"no JSON", RouteChat, `{"model"`, ""},
}

func TestConversationsAreRenderedOnlyWhereTheMeaningIsTheSame(t *testing.T) {
	for _, tt := range renderBodyTests {
		if got := string(RenderBody(tt.route, []byte(tt.body))); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// FuzzRenderBody checks that what is to be rendered has the keys of the request, but for its salt and adapter.
func FuzzRenderBody(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(uint8(s.route), s.body)
	}
	for _, tt := range renderBodyTests {
		f.Add(uint8(tt.route), []byte(tt.body))
	}
	limits := DefaultLimits()
	limits.Refused = nil
	f.Fuzz(func(t *testing.T, route uint8, body []byte) {
		out := RenderBody(Route(route), body)
		r, err := limits.Parse(Route(route), body)
		if out == nil || err != nil || r.Media {
			return
		}
		chat, err := limits.Parse(RouteChat, out)
		if err != nil {
			t.Fatalf("%s is to be rendered for %s: %v", out, body, err)
		}
		if diff := cmp.Diff(conversationOf(t, r), conversationOf(t, chat), cmp.AllowUnexported(piece{})); diff != "" {
			t.Errorf("%s for %s (-request +rendering):\n%s", out, body, diff)
		}
	})
}

// conversationOf is the walk of a request without what keeps caches apart and is not rendered.
func conversationOf(t *testing.T, r *Request) []piece {
	t.Helper()
	pieces, err := walked(r, "m", 0)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(pieces, func(p piece) bool { return p.tag == tagSalt || p.tag == tagLoRA })
}
