package workload

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

const (
	role    = `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	hello   = `data: {"choices":[{"delta":{"content":"hel"}}]}` + "\n\n" + `data: {"choices":[{"delta":{"content":"lo"}}]}` + "\n\n"
	counted = `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}` + "\n\n"
	end     = "data: [DONE]\n\n"
)

func TestReadStream(t *testing.T) {
	tests := []struct {
		name   string
		give   string
		text   string
		began  bool
		cached int
		err    error
	}{
		{"whole", ": comment\n\n" + role + hello + counted + end, "hello", true, 8, nil},
		{"CRLF and no space", "data:{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\r\n\r\ndata:[DONE]\r\n\r\n", "x", true, 0, nil},
		{"nothing but a role", role + end, "", false, 0, nil},
		{"a thought is content but no answer", `data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}` + "\n\n" + end, "", true, 0, nil},
		{"a tool call is content", `data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}` + "\n\n" + end, "", true, 0, nil},
		{"nulls", `data: {"choices":[{"delta":{"content":null,"tool_calls":null}}],"usage":null,"error":null}` + "\n\n" + end, "", false, 0, nil},
		{"cut", role + hello, "hello", true, 0, errNoEnd},
		{"empty", "", "", false, 0, errNoEnd},
		{"error in stream", hello + `data: {"error":{"message":"boom"}}` + "\n\n", "hello", true, 0, errEvent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			firsts := 0
			a, err := readStream(strings.NewReader(tt.give), func() { firsts++ })
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if a.text.String() != tt.text || a.began != tt.began {
				t.Errorf("text %q, began %v, want %q, %v", a.text.String(), a.began, tt.text, tt.began)
			}
			if firsts > 1 || (firsts == 1) != tt.began {
				t.Errorf("first content was told %d times", firsts)
			}
			if a.usage != nil && a.usage.cached() != tt.cached {
				t.Errorf("cached %d, want %d", a.usage.cached(), tt.cached)
			}
		})
	}
}

func TestEndlessEventIsRefused(t *testing.T) {
	if _, err := readStream(strings.NewReader("data: "+strings.Repeat("x", maxEventBytes)), func() {}); err == nil {
		t.Error("an event above the limit has no error")
	}
}

func FuzzReadStream(f *testing.F) {
	f.Add([]byte(role + hello + counted + end))
	f.Fuzz(func(t *testing.T, in []byte) {
		firsts := 0
		a, _ := readStream(bytes.NewReader(in), func() { firsts++ })
		if (firsts == 1) != a.began || firsts > 1 {
			t.Errorf("first content told %d times, began %v", firsts, a.began)
		}
		if a.text.Len() > 0 && !a.began {
			t.Error("an answer that never began")
		}
	})
}
