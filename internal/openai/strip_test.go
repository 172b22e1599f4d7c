package openai

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asks are what the last part of a capture's name stands for.
var asks = map[string]Ask{
	"ids":   {Fields: []string{fieldTokenIDs}},
	"both":  {Fields: []string{fieldTokenIDs}, Usage: true},
	"usage": {Usage: true},
}

// stripped feeds a stream to a stripper as an owner does.
func stripped(t testing.TB, s *Stripper, body []byte) []byte {
	t.Helper()
	var out []byte
	events := NewStream(RouteChat, 32<<20)
	err := events.Feed(body, func(e Event) bool {
		raw := bytes.Clone(e.Raw)
		out = s.Event(out, raw)
		clear(raw) // an event is gone after its turn
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.Flush(out)
}

// TestRealAnswersAreStrippedToWhatTheEngineSendsUnasked compares answers that vLLM 0.32 gave to one request, with and
// without the fields, but for when they were made.
func TestRealAnswersAreStrippedToWhatTheEngineSendsUnasked(t *testing.T) {
	files, err := filepath.Glob("testdata/vllm/*")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, file := range files {
		ask, ok := asks[strings.TrimPrefix(filepath.Ext(file), ".")]
		if !ok {
			continue
		}
		compared++
		t.Run(filepath.Base(file), func(t *testing.T) {
			given := read(t, file)
			want := read(t, strings.TrimSuffix(file, filepath.Ext(file))+".plain")
			s := NewStripper(ask)
			got := stripped(t, s, given)
			if strings.Contains(file, ".whole.") {
				got = s.Whole(given)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("(-unasked +stripped):\n%s", diff)
			}
			if len(ask.Fields) > 0 && len(ParseIDs(s.Prompt())) == 0 {
				t.Errorf("the prompt's ids are %q", s.Prompt())
			}
		})
	}
	if compared < 20 {
		t.Errorf("only %d answers to compare", compared)
	}
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	stripRole   = `{"choices":[{"delta":{"role":"assistant","content":""}}],"prompt_token_ids":null}`
	stripUsage  = `{"choices":[],"usage":{"prompt_tokens":1},"system_fingerprint":"f"}`
	stripFinish = `{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]`
)

func TestEventsAreStripped(t *testing.T) {
	tests := []struct {
		name   string
		ask    Ask
		events []string // data of each
		want   []string
	}{
		{
			"nothing to take out", asks["both"],
			[]string{stripRole, `{"choices":[{"delta":{"content":"token_ids usage"}}]}`, "[DONE]"},
			[]string{stripRole, `{"choices":[{"delta":{"content":"token_ids usage"}}]}`, "[DONE]"},
		},
		{
			"only where ids belong", asks["ids"],
			[]string{`{"x":{"token_ids":[1]},"choices":[{"delta":{"token_ids":[2]},"message":{"prompt_token_ids":[3]}},[{"token_ids":[4]}]]}`},
			[]string{`{"x":{"token_ids":[1]},"choices":[{"delta":{"token_ids":[2]},"message":{"prompt_token_ids":[3]}},[{"token_ids":[4]}]]}`},
		},
		{
			"not asked for",
			Ask{Usage: true},
			[]string{`{"choices":[{"delta":{"content":"x"},"token_ids":[1]}]}`},
			[]string{`{"choices":[{"delta":{"content":"x"},"token_ids":[1]}]}`},
		},
		{
			"chunks of vLLM 0.11 to 0.15", asks["ids"],
			[]string{
				`{"choices":[{"delta":{"reasoning_content":null},"logprobs":null,"token_ids":[1]}]}`,
				`{"choices":[{"delta":{"reasoning_content":""},"token_ids":[1]}]}`,
			},
			[]string{`{"choices":[{"delta":{"reasoning_content":""},"token_ids":null}]}`},
		},
		{
			"chunks that say more than ids", asks["ids"],
			[]string{
				`{"choices":[{"delta":{},"logprobs":{"content":[]},"token_ids":[1]}]}`,
				`{"choices":[{"delta":{},"finish_reason":"stop","token_ids":[1]}]}`,
				`{"choices":[{"delta":{},"token_ids":null}]}`,
				`{"choices":[{"delta":{},"token_ids":[1]},{"delta":{"content":"x"},"token_ids":[1]}]}`,
			},
			[]string{
				`{"choices":[{"delta":{},"logprobs":{"content":[]},"token_ids":null}]}`,
				`{"choices":[{"delta":{},"finish_reason":"stop","token_ids":null}]}`,
				`{"choices":[{"delta":{},"token_ids":null}]}`,
				`{"choices":[{"delta":{},"token_ids":null},{"delta":{"content":"x"},"token_ids":null}]}`,
			},
		},
		{
			"fingerprint moves to the end of the choice", asks["usage"],
			[]string{stripFinish + `}`, stripUsage, "[DONE]"},
			[]string{stripFinish + `,"system_fingerprint":"f"}`, "[DONE]"},
		},
		{
			"engine without fingerprint", asks["usage"],
			[]string{stripFinish + `}`, `{"choices":[],"usage":{"prompt_tokens":1}}`, "[DONE]"},
			[]string{stripFinish + `}`, "[DONE]"},
		},
		{
			"engine that stamps no chunk of a choice",
			Ask{Usage: true, Style: StyleAbsent},
			[]string{stripFinish + `}`, stripUsage, "[DONE]"},
			[]string{stripFinish + `}`, "[DONE]"},
		},
		{
			"engine that stamps the choice and the usage", asks["usage"],
			[]string{stripFinish + `,"system_fingerprint":"f"}`, stripUsage, "[DONE]"},
			[]string{stripFinish + `,"system_fingerprint":"f"}`, "[DONE]"},
		},
		{
			"engine that gives no usage", asks["usage"],
			[]string{stripFinish + `}`, "[DONE]"},
			[]string{stripFinish + `}`, "[DONE]"},
		},
		{
			"stream that breaks off", asks["usage"],
			[]string{stripFinish + `}`},
			[]string{stripFinish + `}`},
		},
		{
			"engine that gives usage unasked", asks["usage"],
			[]string{`{"choices":[{"delta":{"role":"assistant"}}],"usage":{"prompt_tokens":1}}`, stripFinish + `,"usage":{"prompt_tokens":1}}`, stripUsage},
			[]string{`{"choices":[{"delta":{"role":"assistant"}}],"usage":{"prompt_tokens":1}}`, stripFinish + `,"usage":{"prompt_tokens":1}}`, stripUsage},
		},
		{
			"other events without choices", asks["both"],
			[]string{`{"choices":[],"sglext":{},"usage":null}`, `{"error":{"message":"usage of token_ids","code":500},"usage":null}`},
			[]string{`{"choices":[],"sglext":{},"usage":null}`, `{"error":{"message":"usage of token_ids","code":500},"usage":null}`},
		},
		{
			"not JSON", asks["both"],
			[]string{`{"token_ids":[1],"usage"`, `["token_ids",[1]]`, `"token_ids"`},
			[]string{`{"token_ids":[1],"usage"`, `["token_ids",[1]]`, `"token_ids"`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := stripped(t, NewStripper(tt.ask), []byte(sse(tt.events...)))
			if diff := cmp.Diff(sse(tt.want...), string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFormsOfEventsAreStripped(t *testing.T) {
	const in, out = `{"choices":[],"prompt_token_ids":[1]}`, `{"choices":[],"prompt_token_ids":null}`
	for _, form := range []string{"data: %\n\n", "data:%\r\n\r\n", ": c\nevent: e\nid: 1\ndata: % \n\n", "data: %\nretry: 1\n\n"} {
		give := strings.Replace(form, "%", in, 1)
		if got, want := string(NewStripper(asks["ids"]).Event(nil, []byte(give))), strings.Replace(form, "%", out, 1); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, form := range []string{"data: {\ndata: %}\n\n", "data: %\ndata: 1\n\n", "x-data: %\n\n", ": %\n\n", "event: data:\ndata: %\n\n"} {
		give := strings.Replace(form, "%", in, 1)
		if got := string(NewStripper(asks["ids"]).Event(nil, []byte(give))); got != give {
			t.Errorf("got %q, want what was given: %q", got, give)
		}
	}
}

// TestMembersAreCutWithOneComma goes through every choice of places for lists among the members of an object.
func TestMembersAreCutWithOneComma(t *testing.T) {
	lists := []string{`"token_ids":[1]`, `"prompt_token_ids" : [ 2, 3 ]`}
	others := []string{`"a":1`, ` "b" : [ ]`}
	for n := range 5 {
		for mask := range 1 << n {
			var give, want []string
			for i := range n {
				if mask>>i&1 == 0 {
					give = append(give, others[i%2])
					want = append(want, others[i%2])
				} else {
					give = append(give, lists[i%2])
				}
			}
			body := `{"choices":[{` + strings.Join(give, ",") + `}]}`
			got := string(NewStripper(Ask{Fields: []string{fieldTokenIDs}, Style: StyleAbsent}).Whole([]byte(body)))
			if plain := `{"choices":[{` + strings.Join(want, ",") + `}]}`; got != plain {
				t.Errorf("%s: got %s, want %s", body, got, plain)
			}
		}
	}
}

func TestPromptIsTheFirstList(t *testing.T) {
	s := NewStripper(asks["ids"])
	if s.Prompt() != nil {
		t.Errorf("prompt %q before any event", s.Prompt())
	}
	_ = stripped(t, s, []byte(sse(
		`{"choices":[{"text":"a","prompt_token_ids":[7,8]},{"text":"b","prompt_token_ids":[9]}]}`, `{"choices":[],"prompt_token_ids":[1]}`,
	)))
	if got := ParseIDs(s.Prompt()); !slices.Equal(got, []uint32{7, 8}) {
		t.Errorf("prompt %v, want that of the first choice", got)
	}
}

func TestStrippingAnOrdinaryEventAllocatesNothing(t *testing.T) {
	long := strings.Repeat("long ", 200)
	for name, data := range map[string]string{
		"untouched": `{"choices":[{"delta":{"content":"` + long + `"}}]}`,
		"ids":       `{"choices":[{"delta":{"content":"` + long + `"},"finish_reason":null,"token_ids":[1]}]}`,
	} {
		s, event := NewStripper(asks["both"]), []byte(sse(data))
		out := s.Event(nil, event)
		if n := testing.AllocsPerRun(20, func() { out = s.Event(out[:0], event) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
