package openai

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestNoted(t *testing.T) {
	for _, tt := range []struct {
		event string
		want  Noted
	}{
		{`{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[1,2]}`, Noted{}},
		{`{"choices":[{"delta":{"content":"a"},"finish_reason":null,"token_ids":[5,6]}]}`, Noted{IDs: []uint32{5, 6}, Text: true}},
		{`{"choices":[{"delta":{},"finish_reason":null,"token_ids":[5]}]}`, Noted{IDs: []uint32{5}}},
		{`{"choices":[{"delta":{"reasoning":"a"},"finish_reason":null,"token_ids":[5]}]}`, Noted{IDs: []uint32{5}, Thought: true}},
		{`{"choices":[{"delta":{"reasoning_content":"a"},"token_ids":[5]}]}`, Noted{IDs: []uint32{5}, Thought: true}},
		{`{"choices":[{"delta":{"content":"a"},"finish_reason":"length","token_ids":[5]}]}`, Noted{IDs: []uint32{5}, Text: true, Finished: true}},
		{`{"choices":[{"text":"a","token_ids":[7]}]}`, Noted{IDs: []uint32{7}, Text: true}},
		{`{"choices":[{"text":"","token_ids":null}]}`, Noted{}},
		{`{"choices":[{"text":"a"}]}`, Noted{Text: true}},
		{`{"choices":[{"text":"a","token_ids":[7,"b"]}]}`, Noted{IDs: []uint32{7}, Text: true, Other: true}},
		{`{"choices":[{"delta":{"tool_calls":[{"index":0}]},"token_ids":[7]}]}`, Noted{IDs: []uint32{7}, Other: true}},
		{`{"choices":[{"delta":{"refusal":"no"}}]}`, Noted{Other: true}},
		{`nonsense`, Noted{Other: true}},
		{`[DONE]`, Noted{}},
		{`{"choices":[],"usage":{"prompt_tokens":1}}`, Noted{}},
	} {
		s := NewStripper(Ask{Fields: []string{fieldTokenIDs}})
		s.Watch()
		s.Event(nil, []byte("data: {\"choices\":[{\"text\":\"b\",\"token_ids\":[9]}]}\n\n"))
		s.Event(nil, []byte("data: "+tt.event+"\n\n"))
		if diff := cmp.Diff(tt.want, s.Noted(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.event, diff)
		}
	}
}
