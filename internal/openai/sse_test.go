package openai

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type streamTest struct {
	name  string
	route Route
	body  string
	marks string // per event: c content, d done, f failed, . nothing
	usage *Usage
}

func sse(data ...string) string { return "data: " + strings.Join(data, "\n\ndata: ") + "\n\n" }

var streamTests = []streamTest{
	{"chat", RouteChat, sse(
		`{"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[1,2]}`,
		`{"id":"1","choices":[{"index":0,"delta":{},"token_ids":[7],"finish_reason":null}]}`,
		`{"id":"1","choices":[{"index":0,"delta":{"content":"Hel"}}]}`,
		`{"id":"1","choices":[{"index":0,"delta":{"content":"say \"error\" and \"usage\""}}]}`,
		`{"id":"1","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}`,
		`{"id":"1","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":64}}}`,
		`[DONE]`), "..c...d", &Usage{100, 2, 64, true}},
	{"no cached tokens told", RouteChat, sse(
		`{"choices":[{"delta":{"reasoning_content":"t"}}],"usage":null}`,
		`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":null}}`), "c.", &Usage{5, 1, 0, false}},
	{"tool call", RouteChat, sse(`{"choices":[{"delta":{"role":"assistant","tool_calls":[]}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}`), ".c", nil},
	{"nothing but an end", RouteChat, sse(`{"choices":[{"delta":{},"finish_reason":"stop"}]}`, `[DONE]`), "cd", nil},
	{"error in mid-stream", RouteChat, sse(`{"choices":[{"delta":{"content":"x"}}]}`,
		`{"error":{"message":"engine died","code":500}}`, `[DONE]`), "cfd", nil},
	{"flat error", RouteChat, sse(`{"object":"error","message":"x"}`), "f", nil},
	{"comments and CR LF", RouteChat, ": ping\r\n\r\ndata:{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\r\n\r\n\r\ndata: [DONE]\r\n\r\n", ".c.d", nil},
	{"data in several lines", RouteChat, "data: {\"choices\":\ndata: [{\"delta\":{\ndata: \"content\":\"x\"}}]}\n\n", "c", nil},
	{"what is not JSON may be content", RouteChat, "data: hello\n\n", "c", nil},
	{"completions", RouteCompletions, sse(`{"choices":[{"text":"","finish_reason":null}]}`, `{"choices":[{"text":"a"}]}`,
		`{"choices":[{"text":"b","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`, `[DONE]`), ".c.d", &Usage{3, 2, 0, false}},
	{
		"responses", RouteResponses, sse(
			`{"type":"response.created","response":{"id":"r","usage":null,"error":null}}`,
			`{"type":"response.output_item.added","item":{"type":"message","content":[]}}`,
			`{"type":"response.content_part.added","part":{"text":""}}`,
			`{"type":"response.output_text.delta","delta":""}`,
			`{"type":"response.output_text.delta","delta":"a"}`,
			`{"type":"response.output_text.delta","delta":"response.completed"}`,
			`{"type":"response.completed","response":{"error":null,"usage":{"input_tokens":9,"output_tokens":1,"input_tokens_details":{"cached_tokens":0}}}}`),
		"....c.d", &Usage{9, 1, 0, true},
	},
	{"responses: tool call", RouteResponses, sse(`{"type":"response.output_item.added","item":{"type":"function_call","name":"f"}}`), "c", nil},
	{"responses: failed", RouteResponses, sse(`{"type":"response.output_text.delta","delta":"a"}`,
		`{"type":"response.failed","response":{"error":{"code":"x"}}}`), "cF", nil},
	{"messages", RouteMessages, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":50,\"output_tokens\":0,\"cache_read_input_tokens\":32}}}\n\n" + sse(
		`{"type":"ping"}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}`,
		`{"type":"message_stop"}`), "...c..d", &Usage{50, 4, 32, true}},
	{"messages: tool", RouteMessages, sse(`{"type":"content_block_start","content_block":{"type":"tool_use","name":"f","input":{}}}`), "c", nil},
	{"messages: error", RouteMessages, "event: error\n" + sse(`{"type":"error","error":{"type":"overloaded_error"}}`), "f", nil},
}

func marks(list []Event) string {
	var b strings.Builder
	for _, e := range list {
		switch {
		case e.Done && e.Failed:
			b.WriteByte('F')
		case e.Done:
			b.WriteByte('d')
		case e.Failed:
			b.WriteByte('f')
		case e.Content:
			b.WriteByte('c')
		default:
			b.WriteByte('.')
		}
	}
	return b.String()
}

func TestStreamsAreReadWhateverTheirPieces(t *testing.T) {
	for _, tt := range streamTests {
		for _, cuts := range [][]byte{nil, {0}, {1}, {2, 60, 0, 9}} {
			list, s, err := events(tt.route, []byte(tt.body), cuts, 1<<20)
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if got := marks(list); got != tt.marks {
				t.Errorf("%s in pieces %v: events %q, want %q", tt.name, cuts, got, tt.marks)
			}
			usage, ok := s.Usage()
			if ok != (tt.usage != nil) || ok && usage != *tt.usage {
				t.Errorf("%s: usage %+v, %v, want %+v", tt.name, usage, ok, tt.usage)
			}
		}
	}
}

func TestCutStreamIsTruncated(t *testing.T) {
	for _, body := range []string{"data: [DONE]\n", "data: x", "\r"} {
		if _, _, err := events(RouteChat, []byte(body), nil, 1<<20); !errors.Is(err, ErrTruncated) {
			t.Errorf("%q: %v, want ErrTruncated", body, err)
		}
	}
}

func TestEventOverTheBoundEndsTheStream(t *testing.T) {
	long := "data: " + strings.Repeat("x", 100) + "\n\n"
	for _, cuts := range [][]byte{nil, {10}} {
		if _, _, err := events(RouteChat, []byte(long), cuts, 50); !errors.Is(err, ErrLine) {
			t.Errorf("in pieces %v: %v, want ErrLine", cuts, err)
		}
		if _, _, err := events(RouteChat, []byte(long), cuts, len(long)); err != nil {
			t.Errorf("in pieces %v at the bound: %v", cuts, err)
		}
	}
}

func TestFeedStopsWhenToldTo(t *testing.T) {
	s, n := NewStream(RouteChat, 1<<20), 0
	if err := s.Feed([]byte("\n\n\n"), func(Event) bool { n++; return n < 2 }); err != nil || n != 2 {
		t.Errorf("got %d events, %v, want 2", n, err)
	}
}

func TestUsageOfAnswers(t *testing.T) {
	tests := []struct {
		route Route
		body  string
		want  Usage
		ok    bool
	}{
		{RouteChat, `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":8}}}`, Usage{10, 3, 8, true}, true},
		{RouteChat, `{"choices":[]}`, Usage{}, false},
		{RouteChat, `{"usage":null}`, Usage{}, false},
		{RouteChat, `{"usage":{"prompt_tokens":-1}}`, Usage{}, false},
		{RouteChat, `not JSON`, Usage{}, false},
		{RouteChat, `[1]`, Usage{}, false},
		{RouteEmbeddings, `{"usage":{"prompt_tokens":10,"total_tokens":10}}`, Usage{PromptTokens: 10}, true},
		{RouteResponses, `{"usage":{"input_tokens":10,"output_tokens":3,"input_tokens_details":{"cached_tokens":0}}}`, Usage{10, 3, 0, true}, true},
		{RouteMessages, `{"usage":{"input_tokens":10,"output_tokens":3}}`, Usage{10, 3, 0, false}, true},
		{RouteMessages, `{"usage":{"input_tokens":10,"output_tokens":3,"cache_read_input_tokens":4}}`, Usage{10, 3, 4, true}, true},
		{RouteMessages, `{"usage":{"input_tokens":2,"output_tokens":3,"cache_read_input_tokens":40,"cache_creation_input_tokens":5}}`, Usage{47, 3, 40, true}, true},
		{RouteCountTokens, `{"input_tokens":7}`, Usage{PromptTokens: 7}, true},
	}
	for _, tt := range tests {
		got, ok := ParseUsage(tt.route, []byte(tt.body))
		if diff := cmp.Diff(tt.want, got); diff != "" || ok != tt.ok {
			t.Errorf("ParseUsage(%v, %s) = %v (-want +got):\n%s", tt.route, tt.body, ok, diff)
		}
	}
}
