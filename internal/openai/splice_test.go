package openai

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// begun are chunks of text as engines write them.
var begun = []struct {
	name, event string
	usage       bool // in every chunk
}{
	{"vLLM chat", `{"id":"c1","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"content":"TEXT"},"logprobs":null,"finish_reason":null,"token_ids":null}]}`, false},
	{"vLLM completion", `{"id":"c1","object":"text_completion","created":5,"model":"m","choices":[{"index":0,"text":"TEXT","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}`, false},
	{"SGLang chat", `{"id":"c1","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":null,"content":"TEXT"},"logprobs":null,"finish_reason":null,"matched_stop":null}]}`, false},
	{"TensorRT-LLM chat", `{"id":"c1","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"content":"TEXT","reasoning_content":""}}]}`, false},
	{"usage in every chunk", `{"id":"c1","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"content":"TEXT"},"finish_reason":null}],"usage":{"prompt_tokens":10,"total_tokens":TOTAL,"completion_tokens":COUNT}}`, true},
}

// TestSplicedChunksAreWrittenLikeTheOthers puts an answer behind chunks of each kind.
func TestSplicedChunksAreWrittenLikeTheOthers(t *testing.T) {
	answer := []string{
		`{"id":"x","object":"text_completion","created":9,"model":"other","choices":[{"index":0,"text":"","finish_reason":null,"token_ids":[1]}]}`,
		`{"id":"x","object":"text_completion","created":9,"model":"other","choices":[{"index":0,"text":" é\u00e9\n","finish_reason":null}]}`,
		`{"id":"x","choices":[{"index":0,"delta":{"content":" more","reasoning_content":""}}]}`,
		`{"id":"x","choices":[{"index":0,"text":"","finish_reason":"stop","stop_reason":null}]}`,
		`{"id":"x","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}`,
		`[DONE]`,
	}
	for _, b := range begun {
		chunk := func(text, finish string, count, total string) string {
			e := strings.NewReplacer(`"TEXT"`, text, "TOTAL", total, "COUNT", count).Replace(b.event)
			switch {
			case finish == "null":
			case strings.Contains(e, `"finish_reason":null`):
				e = strings.Replace(e, `"finish_reason":null`, `"finish_reason":`+finish, 1)
			default:
				e = strings.Replace(e, `}]}`, `,"finish_reason":`+finish+`}]}`, 1)
			}
			return "data: " + e + "\n\n"
		}
		for _, usage := range []bool{false, true} {
			m := MannerOf([]byte(chunk(`"first"`, "null", "2", "12")))
			if m == nil {
				t.Fatalf("%s: no manner", b.name)
			}
			s := Splicer{Manner: m, Usage: usage, Prompt: 10, Before: 2}
			var got []byte
			for i, data := range answer {
				s.Now = 2 + min(i+1, 4) - 1
				var ok bool
				if got, ok = s.Event(got, []byte("data: "+data+"\n\n")); !ok {
					t.Fatalf("%s: event %d is not taken", b.name, i)
				}
			}
			want := chunk(`" é\u00e9\n"`, "null", "3", "13") + chunk(`" more"`, "null", "4", "14") + chunk(`""`, `"stop"`, "5", "15")
			if usage || b.usage {
				object := b.event[strings.Index(b.event, `"object"`):strings.Index(b.event, `,"created"`)]
				want += `data: {"id":"c1",` + object + `,"created":5,"model":"m","choices":[],"usage":{"prompt_tokens":10,"total_tokens":15,"completion_tokens":5}}` + "\n\n"
			}
			want += "data: [DONE]\n\n"
			if diff := cmp.Diff(want, string(got)); diff != "" || !s.Done() {
				t.Errorf("%s, usage %t, done %t (-want +got):\n%s", b.name, usage, s.Done(), diff)
			}
		}
	}
}

func TestNoMannerOfOtherChunks(t *testing.T) {
	for _, e := range []string{
		``, `: comment`, `data: [DONE]`, `data: {}`, `data: {"choices":[]}`, `data: {"choices":{}}`, `data: {"choices":[1]}`,
		`data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`,
		`data: {"choices":[{"delta":{"reasoning":"so"},"finish_reason":null}]}`,
		`data: {"choices":[{"delta":{"reasoning":"so","content":"a"},"finish_reason":null}]}`,
		`data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`,
		`data: {"choices":[{"text":"a"},{"text":"b"}]}`,
		`data: {"choices":[{"delta":{"tool_calls":[{"index":0}],"content":"a"}}]}`,
		"data: {\"choices\":\ndata: [{\"text\":\"a\"}]}",
	} {
		if m := MannerOf([]byte(e + "\n\n")); m != nil {
			t.Errorf("%s: %+v", e, m)
		}
	}
}

func TestSplicerRefusesWhatCannotFollow(t *testing.T) {
	for _, e := range []string{
		`data: {"error":{"message":"dead"}}`, `data: nonsense`, `data: [1]`, `data: [DONE]`,
		`data: {"choices":[{"delta":{"reasoning_content":"so"}}]}`,
		`data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`,
		`data: {"choices":[{"text":"a"},{"text":"b"}]}`, `data: {"choices":[{"text":1}]}`, `data: {"choices":7}`,
		`data: {"choices":[{"text":"a","finish_reason":1}]}`,
		"data: {\ndata: }",
	} {
		s := Splicer{Manner: MannerOf([]byte("data: " + begun[0].event + "\n\n"))}
		if got, ok := s.Event(nil, []byte(e+"\n\n")); ok {
			t.Errorf("%s gives %q", e, got)
		}
	}
}

func FuzzSplicer(f *testing.F) {
	for _, b := range begun {
		f.Add([]byte("data: "+b.event+"\n\n"), []byte("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n"))
	}
	f.Fuzz(func(t *testing.T, first, next []byte) {
		m := MannerOf(first)
		if m == nil {
			return
		}
		s := Splicer{Manner: m, Usage: true, Prompt: 1, Before: 1, Now: 2}
		out, ok := s.Event(nil, next)
		if !ok && len(out) > 0 {
			t.Fatalf("%q is refused with %q", next, out)
		}
		if !ok || len(out) == 0 || s.Done() {
			return
		}
		if MannerOf(first) == nil || dataIsObject(next) && !dataIsObject(out) {
			t.Fatalf("%q after %q gives %q", next, first, out)
		}
	})
}

// dataIsObject reports whether an event's data is a JSON object.
func dataIsObject(raw []byte) bool {
	lo, hi := dataOf(raw)
	d, err := scan(raw[lo:hi], answerDepth)
	return err == nil && d.kind(d.root()) == kindObject
}
