package openai

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pairTest holds two bodies for one route; in a and b, M stands for `"model":"m"` and U for one user message's members.
type pairTest struct {
	name   string
	route  Route
	layout Layout
	a, b   string
}

// body writes out the short forms of the tables.
func body(s string) string {
	return strings.NewReplacer("‹M›", `"model":"m"`, "‹U›", `"messages":[{"role":"user","content":"hi"}]`).Replace(s)
}

func expand(tests []pairTest) []pairTest {
	for i := range tests {
		tests[i].a, tests[i].b = body(tests[i].a), body(tests[i].b)
	}
	return tests
}

// sameTests are pairs that are one canonical prompt: what is never hashed, and the normal forms.
var sameTests = expand([]pairTest{
	{"order of fields", RouteChat, 0, `{‹M›,‹U›,"tools":[]}`, `{"messages":[{"content":"hi","role":"user"}],‹M›}`},
	{
		"white space", RouteChat, 0,
		`{‹M›,‹U›}`, " {\r\n\t" + `"model" : "m" , "messages" : [ { "role" : "user" , "content" : "hi" } ] } `,
	},
	{
		"escapes", RouteChat, 0, `{‹M›,"messages":[{"role":"user","content":"a\"\\\/\n\té😀"}]}`,
		`{"\u006dodel":"m","messages":[{"r\u006fle":"us\u0065r","content":"\u0061\u0022\u005c/\u000a\u0009\u00e9\ud83d\ude00"}]}`,
	},
	{
		"one text part is a string", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`,
	},
	{
		"null content is absent", RouteChat, 0,
		`{‹M›,"messages":[{"role":"assistant","content":null}]}`,
		`{‹M›,"messages":[{"role":"assistant"}]}`,
	},
	{
		"empty content is absent", RouteChat, 0,
		`{‹M›,"messages":[{"role":"assistant","content":""}]}`,
		`{‹M›,"messages":[{"role":"assistant","content":[]}]}`,
	},
	{
		"empty tool calls are absent", RouteChat, 0,
		`{‹M›,"messages":[{"role":"assistant","content":"x","tool_calls":[]}]}`,
		`{‹M›,"messages":[{"role":"assistant","content":"x","tool_calls":null}]}`,
	},
	{
		"reasoning is reasoning_content", RouteChat, 0,
		`{‹M›,"messages":[{"role":"assistant","reasoning":"r","content":"x"}]}`,
		`{‹M›,"messages":[{"role":"assistant","content":"x","reasoning_content":"r"}]}`,
	},
	{
		"last of two members counts", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{"model":"x",‹M›,"messages":[{"role":"user","content":"no","content":"hi"}]}`,
	},
	{
		"sampling and streaming", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"temperature":0.5,"seed":7,"n":2,"stop":["a"],"stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"logprobs":true}`,
	},
	{
		"who asks", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"user":"u","metadata":{"a":"b"},"prompt_cache_key":"k","session_id":"s","return_token_ids":true}`,
	},
	{"unknown field", RouteChat, 0, `{‹M›,‹U›}`, `{‹M›,‹U›,"something_new":{"a":[1,2,{}]}}`},
	{
		"cache_control and ids of parts", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{‹M›,"messages":[{"role":"user","id":"1","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"},"annotations":[]}]}]}`,
	},
	{
		"generation prompt", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"add_generation_prompt":false,"continue_final_message":true,"echo":true,"chat_template_kwargs":{"add_generation_prompt":false}}`,
	},
	{
		"effort at the tail", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"reasoning_effort":"high","thinking":{"type":"enabled"},"chat_template_kwargs":{"enable_thinking":false,"thinking":true}}`,
	},
	{
		"one effort in two places", RouteChat, LayoutEffortHead,
		`{‹M›,‹U›,"reasoning_effort":"high"}`,
		`{‹M›,‹U›,"chat_template_kwargs":{"reasoning_effort":"high"}}`,
	},
	{
		"constraints", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"tool_choice":"none","parallel_tool_calls":true,"response_format":{"type":"json_object"},"structured_outputs":{},"regex":"a","json_schema":"{}","ebnf":"x","task":"t"}`,
	},
	{
		"order of template options", RouteChat, 0,
		`{‹M›,‹U›,"chat_template_kwargs":{"a":1,"b":[2, 3]}}`,
		`{‹M›,‹U›,"chat_template_kwargs":{"b":[2,3],"\u0061":1}}`,
	},
	{"documents that are not rendered", RouteChat, LayoutNoDocuments, `{‹M›,‹U›}`, `{‹M›,‹U›,"documents":[{"text":"d"}]}`},
	{
		"media options without media", RouteChat, 0,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"mm_processor_kwargs":{"a":1},"media_io_kwargs":{},"images_config":{},"max_dynamic_patch":1,"use_audio_in_video":true}`,
	},
	{"default of add_special_tokens", RouteChat, 0, `{‹M›,‹U›}`, `{‹M›,‹U›,"add_special_tokens":false}`},
	{
		"default of add_special_tokens", RouteCompletions, 0,
		`{‹M›,"prompt":"p"}`,
		`{‹M›,"prompt":"p","add_special_tokens":true}`,
	},
	{
		"white space and escapes in a schema", RouteChat, 0,
		`{‹M›,‹U›,"tools":[{"type":"function","function":{"name":"f","parameters":{"a":["x\n",1.0]}}}]}`,
		`{‹M›,‹U›,"tools":[{"function":{"parameters":{ "a" : [ "\u0078\u000a" , 1.0 ] },"name":"f"},"strict":true}]}`,
	},
	{
		"tools that a choice takes out", RouteChat, LayoutToolsFiltered,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"}`,
	},
	{
		"tools that a choice takes out but one", RouteChat, LayoutToolsFiltered,
		`{‹M›,‹U›,"tools":[{"function":{"name":"g"}}]}`,
		`{‹M›,‹U›,"tools":[{"function":{"name":"f"}},{"function":{"name":"g"}}],"tool_choice":{"type":"function","function":{"name":"\u0067"}}}`,
	},
	{
		"URL of an image as string or object", RouteChat, 0,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"image_url","image_url":"http:\/\/x/1"}]}]}`,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"detail":"low","url":"http://x/1"}}]}]}`,
	},
	{
		"input_ids replace messages", RouteChat, 0,
		`{‹M›,‹U›,"input_ids":[1,2]}`,
		`{‹M›,"messages":[{"role":"user","content":"other"}],"input_ids":[1, 2]}`,
	},
	{"first of several prompts", RouteCompletions, 0, `{‹M›,"prompt":"p"}`, `{‹M›,"prompt":["p","q"]}`},
	{"first of several token prompts", RouteCompletions, 0, `{‹M›,"prompt":[1,2]}`, `{‹M›,"prompt":[[1,2],[3]]}`},
	{
		"ids and states of items", RouteResponses, 0,
		`{‹M›,"input":[{"role":"user","content":"hi"},{"type":"message","role":"assistant","content":"x"}]}`,
		`{‹M›,"input":[{"type":"message","id":"1","status":"completed","role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"message","role":"assistant","id":"2","status":"incomplete","content":[{"type":"output_text","text":"x","annotations":[1]}]}]}`,
	},
	{
		"encrypted thoughts", RouteResponses, 0,
		`{‹M›,"input":[{"role":"user","content":"hi"}]}`,
		`{‹M›,"input":[{"role":"user","content":"hi"},{"type":"reasoning","summary":[],"encrypted_content":"x"}]}`,
	},
	{
		"input as string", RouteResponses, 0,
		`{‹M›,"input":"hi"}`,
		`{‹M›,"input":[{"role":"user","content":"hi"}],"truncation":"disabled"}`,
	},
	{
		"summary stands for thoughts", RouteResponses, 0,
		`{‹M›,"input":[{"type":"reasoning","summary":[{"type":"summary_text","text":"t"}]}]}`,
		`{‹M›,"input":[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]}]}`,
	},
	{
		"system blocks are joined", RouteMessages, 0,
		`{‹M›,‹U›,"system":"ab"}`,
		`{‹M›,‹U›,"system":[{"type":"text","text":"a","cache_control":{}},{"type":"text","text":"b","citations":null}]}`,
	},
	{
		"billing header", RouteMessages, 0,
		`{‹M›,‹U›,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},{"type":"text","text":"s"}]}`,
		`{‹M›,‹U›,"system":[{"type":"text","text":"x-anthropic\u002dbilling-header: cch=2"},{"type":"text","text":"s"}]}`,
	},
	{
		"leading system messages join the system text", RouteMessages, 0,
		`{‹M›,"system":"ab","messages":[{"role":"user","content":"u"}]}`,
		`{‹M›,"system":"a","messages":[{"role":"system","content":[{"type":"text","text":"b"}]},{"role":"user","content":"u"}]}`,
	},
	{
		"merged system messages", RouteMessages, LayoutSystemMerged,
		`{‹M›,"system":"ab","messages":[{"role":"user","content":"u"}]}`,
		`{‹M›,"system":"a","messages":[{"role":"user","content":"u"},{"role":"system","content":"b"}]}`,
	},
	{
		"signature", RouteMessages, 0,
		`{‹M›,"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"a"}]}]}`,
		`{‹M›,"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"b"},{"type":"redacted_thinking","data":"zz"}]}]}`,
	},
	{
		"tool result as block", RouteMessages, 0,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"a\nb"}]}]}`,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","is_error":true,"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}]}`,
	},
	{
		"results come before the text beside them", RouteMessages, 0,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"a"},{"type":"text","text":"t"}]}]}`,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"text","text":"t"},{"type":"tool_result","tool_use_id":"1","content":"a"}]}]}`,
	},
	{
		"input without members", RouteMessages, 0,
		`{‹M›,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f"}]}]}`,
		`{‹M›,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{ }}]}]}`,
	},
})

// differentTests are pairs of two canonical prompts: what is hashed.
var differentTests = expand([]pairTest{
	{"cache_salt", RouteChat, 0, `{‹M›,‹U›}`, `{‹M›,‹U›,"cache_salt":"s"}`},
	{"extra_key", RouteChat, 0, `{‹M›,‹U›,"extra_key":"a"}`, `{‹M›,‹U›,"extra_key":["a"]}`},
	{"add_special_tokens", RouteChat, 0, `{‹M›,‹U›}`, `{‹M›,‹U›,"add_special_tokens":true}`},
	{"add_special_tokens", RouteCompletions, 0, `{‹M›,"prompt":"p"}`, `{‹M›,"prompt":"p","add_special_tokens":false}`},
	{"unknown template option", RouteChat, 0, `{‹M›,‹U›}`, `{‹M›,‹U›,"chat_template_kwargs":{"date":"x"}}`},
	{
		"effort at the head", RouteChat, LayoutEffortHead,
		`{‹M›,‹U›,"reasoning_effort":"low"}`,
		`{‹M›,‹U›,"reasoning_effort":"high"}`,
	},
	{
		"thinking at the head", RouteChat, LayoutEffortHead,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"chat_template_kwargs":{"enable_thinking":false}}`,
	},
	{
		"constraints at the head", RouteChat, LayoutConstraintsHead,
		`{‹M›,‹U›}`,
		`{‹M›,‹U›,"response_format":{"type":"json_object"}}`,
	},
	{"documents", RouteChat, 0, `{‹M›,‹U›}`, `{‹M›,‹U›,"documents":[{"text":"d"}]}`},
	{
		"media options with media", RouteChat, 0,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}]}`,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}],"mm_processor_kwargs":{"a":1}}`,
	},
	{
		"developer is not system", RouteChat, 0,
		`{‹M›,"messages":[{"role":"system","content":"x"}]}`,
		`{‹M›,"messages":[{"role":"developer","content":"x"}]}`,
	},
	{"name", RouteChat, 0, `{‹M›,‹U›}`, `{‹M›,"messages":[{"role":"user","name":"n","content":"hi"}]}`},
	{
		"text parts are not joined", RouteChat, 0,
		`{‹M›,"messages":[{"role":"user","content":"ab"}]}`,
		`{‹M›,"messages":[{"role":"user","content":["a",{"type":"text","text":"b"}]}]}`,
	},
	{
		"order of messages", RouteChat, 0,
		`{‹M›,"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`,
		`{‹M›,"messages":[{"role":"user","content":"b"},{"role":"user","content":"a"}]}`,
	},
	{
		"spelling of arguments", RouteChat, 0,
		`{‹M›,"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}]}]}`,
		`{‹M›,"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\": 1}"}}]}]}`,
	},
	{
		"id of a call", RouteChat, 0,
		`{‹M›,"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f"}}]}]}`,
		`{‹M›,"messages":[{"role":"assistant","tool_calls":[{"id":"2","function":{"name":"f"}}]}]}`,
	},
	{
		"tool_call_id", RouteChat, 0,
		`{‹M›,"messages":[{"role":"tool","content":"x","tool_call_id":"1"}]}`,
		`{‹M›,"messages":[{"role":"tool","content":"x","tool_call_id":"2"}]}`,
	},
	{
		"partial message", RouteChat, 0,
		`{‹M›,"messages":[{"role":"assistant","content":"x"}]}`,
		`{‹M›,"messages":[{"role":"assistant","content":"x","prefix":true}]}`,
	},
	{
		"order of keys in a schema", RouteChat, 0,
		`{‹M›,‹U›,"tools":[{"function":{"name":"f","parameters":{"a":1,"b":2}}}]}`,
		`{‹M›,‹U›,"tools":[{"function":{"name":"f","parameters":{"b":2,"a":1}}}]}`,
	},
	{
		"spelling of numbers", RouteChat, 0,
		`{‹M›,‹U›,"tools":[{"function":{"name":"f","parameters":{"a":1}}}]}`,
		`{‹M›,‹U›,"tools":[{"function":{"name":"f","parameters":{"a":1.0}}}]}`,
	},
	{
		"images", RouteChat, 0,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}]}`,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"image_url","image_url":"v"}]}]}`,
	},
	{
		"kinds of media", RouteChat, 0,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}]}`,
		`{‹M›,"messages":[{"role":"user","content":[{"type":"video_url","video_url":"u"}]}]}`,
	},
	{"text is not token ids", RouteCompletions, 0, `{‹M›,"prompt":"\u0001\u0000\u0000\u0000"}`, `{‹M›,"prompt":[1]}`},
	{
		"system text stays in its place", RouteMessages, 0,
		`{‹M›,"system":"ab","messages":[{"role":"user","content":"u"}]}`,
		`{‹M›,"system":"a","messages":[{"role":"user","content":"u"},{"role":"system","content":"b"}]}`,
	},
})

func TestWhatIsRenderedAlikeWalksAlike(t *testing.T) {
	for _, tt := range sameTests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := flat(t, tt.route, tt.layout, tt.a), flat(t, tt.route, tt.layout, tt.b)
			if diff := cmp.Diff(a, b, cmp.AllowUnexported(piece{})); diff != "" {
				t.Errorf("-%s\n+%s\n%s", tt.a, tt.b, diff)
			}
		})
	}
}

func TestWhatIsRenderedApartWalksApart(t *testing.T) {
	for _, tt := range differentTests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := flat(t, tt.route, tt.layout, tt.a), flat(t, tt.route, tt.layout, tt.b)
			if cmp.Equal(a, b, cmp.AllowUnexported(piece{})) {
				t.Errorf("%s\nand %s\nboth walk as %q", tt.a, tt.b, a)
			}
		})
	}
}

// The same conversation through three APIs.
const (
	talkChat = `{"model":"m","tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],
		"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"q"},
		{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]},
		{"role":"assistant","reasoning_content":"t","content":"c","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": [1, \"é\"]}"}},
		{"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"1","content":"r1"},{"role":"tool","tool_call_id":"2","content":"r2"},{"role":"user","content":"next"}]}`
	talkResponses = `{"model":"m","instructions":"s","tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}],
		"input":[{"role":"user","content":[{"type":"input_text","text":"q"},{"type":"input_image","image_url":"data:image/png;base64,AAAA"}]},
		{"type":"reasoning","content":[{"type":"reasoning_text","text":"t"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"c"}]},
		{"type":"function_call","call_id":"1","name":"f","arguments":"{\"a\": [1, \"é\"]}"},{"type":"function_call","call_id":"2","name":"f","arguments":"{}"},
		{"type":"function_call_output","call_id":"1","output":"r1"},{"type":"function_call_output","call_id":"2","output":[{"type":"input_text","text":"r2"}]},
		{"role":"user","content":"next"}]}`
	talkMessages = `{"model":"m","system":[{"type":"text","text":"s"}],"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
		"messages":[{"role":"user","content":[{"type":"text","text":"q"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"x"},{"type":"text","text":"c"},
		{"type":"tool_use","id":"1","name":"f","input":{"a":[1,"\u00e9"]}},{"type":"tool_use","id":"2","name":"f","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r1"},{"type":"tool_result","tool_use_id":"2","content":[{"type":"text","text":"r2"}]},
		{"type":"text","text":"next"}]}]}`
)

func TestConversationWalksAlikeThroughEveryAPI(t *testing.T) {
	for _, layout := range []Layout{0, LayoutToolsFirst} {
		chat := flat(t, RouteChat, layout, talkChat)
		for route, talk := range map[Route]string{RouteResponses: talkResponses, RouteMessages: talkMessages} {
			if diff := cmp.Diff(chat, flat(t, route, layout, talk), cmp.AllowUnexported(piece{})); diff != "" {
				t.Errorf("layout %d (-chat +%v):\n%s", layout, route, diff)
			}
		}
	}
}

func TestToolsStandWhereTheLayoutHasThem(t *testing.T) {
	talk := `{"model":"m","tools":[{"function":{"name":"f"}}],"messages":[{"role":"system","content":"s"},
		{"role":"developer","content":"d"},{"role":"user","content":"u"},{"role":"system","content":"late"}]}`
	order := func(layout Layout) (out string) {
		for _, p := range flat(t, RouteChat, layout, talk) {
			if p.tag == tagText || p.tag == tagTool {
				out += p.text + " "
			}
		}
		return out
	}
	if got, want := order(0), "s d f u late "; got != want {
		t.Errorf("default layout: %q, want %q", got, want)
	}
	if got, want := order(LayoutToolsFirst), "f s d u late "; got != want {
		t.Errorf("tools first: %q, want %q", got, want)
	}
}

// stream is a walk as the bytes that a hasher sees before it closes a field: tags and pieces.
func stream(t *testing.T, route Route, body string) string {
	t.Helper()
	r, err := Parse(route, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	last := byte(0)
	for tag, p := range r.Walk("m", 0) {
		if tag != last {
			fmt.Fprintf(&b, "<%02x>", tag)
		}
		last = tag
		b.Write(p)
	}
	return b.String()
}

func TestTextsThatBeginAlikeWalkAlikeUntilTheyPart(t *testing.T) {
	quote := func(s string) string { return string(appendQuoted(nil, s)) }
	places := map[string]struct {
		route Route
		body  string
	}{
		"message":       {RouteChat, `{"messages":[{"role":"user","content":%s}],"model":"m"}`},
		"prompt":        {RouteCompletions, `{"prompt":%s,"model":"m"}`},
		"tool result":   {RouteMessages, `{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":%s}]}]}],"model":"m"}`},
		"tool output":   {RouteResponses, `{"input":[{"type":"function_call_output","output":%s}],"model":"m"}`},
		"system block":  {RouteMessages, `{"system":[{"type":"text","text":%s}],"model":"m","messages":[{"role":"user"}]}`},
		"reasoning":     {RouteChat, `{"messages":[{"role":"assistant","reasoning":%s}],"model":"m"}`},
		"arguments":     {RouteChat, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":%s}}]}],"model":"m"}`},
		"input of tool": {RouteMessages, `{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{"a":%s}}]}],"model":"m"}`},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) string {
		s := make([]rune, rng.IntN(n))
		for i := range s {
			s[i] = []rune("ab c\n\"\\\té😀\x01")[rng.IntN(11)]
		}
		return string(s)
	}
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			for range 200 {
				p := random(2000)
				x := stream(t, place.route, fmt.Sprintf(place.body, quote(p+"X"+random(50))))
				y := stream(t, place.route, fmt.Sprintf(place.body, quote(p+"Y"+random(50))))
				i := 0
				for i < min(len(x), len(y)) && x[i] == y[i] {
					i++
				}
				if !strings.Contains(x[:i], p) && !strings.Contains(x[:i], strings.Trim(quote(p), `"`)) {
					t.Fatalf("walks part before the texts %q do: after %q", p, x[:i])
				}
			}
		})
	}
}

func TestWalkStopsWhenTheCallerHasEnough(t *testing.T) {
	r, err := Parse(RouteChat, []byte(talkChat))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for range r.Walk("m", 0) {
		total++
	}
	for limit := range total {
		n := 0
		for range r.Walk("m", 0) {
			if n++; n > limit {
				break
			}
		}
		if n != limit+1 {
			t.Fatalf("got %d pairs, want %d", n, limit+1)
		}
	}
}

func TestModelAndLayoutAreInTheRoot(t *testing.T) {
	r, err := Parse(RouteChat, []byte(talkChat))
	if err != nil {
		t.Fatal(err)
	}
	got, err := walked(r, strings.Repeat("long", pieceSize), 0x0201)
	if err != nil {
		t.Fatal(err)
	}
	want := []piece{{tagModel, strings.Repeat("long", pieceSize)}, {tagLayout, "\x01\x02"}, {tag: markRoot}}
	if diff := cmp.Diff(want, got[:3], cmp.AllowUnexported(piece{})); diff != "" {
		t.Errorf("root (-want +got):\n%s", diff)
	}
}
