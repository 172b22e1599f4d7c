package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestEventsAreCutAtEmptyLines(t *testing.T) {
	tests := []struct{ name, give, want string }{
		{"two events", "data: a\n\ndata: b\n\n", "a|b"},
		{"no space after the colon", "data:a\n\n", "a"},
		{"carriage returns", "data: a\r\n\r\n", "a"},
		{"comments and names", ": wait\n\nevent: x\ndata: a\n\n", "a"},
		{"two lines are one event", "data: a\ndata: b\n\n", "a\nb"},
		{"empty data", "data:\n\ndata: b\n\n", "|b"},
		{"an event that was cut is none", "data: a\n\ndata: b", "a"},
		{"nothing", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.give), iotest.OneByteReader(strings.NewReader(tt.give))} {
				var got []string
				for data, err := range events(r) {
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, string(data))
				}
				if joined := strings.Join(got, "|"); joined != tt.want {
					t.Errorf("events = %q, want %q", joined, tt.want)
				}
			}
		})
	}
}

func TestBrokenStreamEndsWithItsError(t *testing.T) {
	broken := errors.New("connection reset")
	r := io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken))
	var last error
	n := 0
	for _, err := range events(r) {
		last = err
		n++
	}
	if n != 2 || !errors.Is(last, broken) {
		t.Errorf("%d pairs, last error %v; want 2 and %v", n, last, broken)
	}
}

func TestChunksSayWhatTheyMeanToAClient(t *testing.T) {
	tests := []struct {
		name, give    string
		content, done bool
		failed        bool
	}{
		{"role only", `{"choices":[{"delta":{"role":"assistant","content":""}}]}`, false, false, false},
		{"text", `{"choices":[{"delta":{"content":"x"}}]}`, true, false, false},
		{"usage", `{"choices":[],"usage":{"prompt_tokens":1}}`, false, false, false},
		{"end", `[DONE]`, false, true, false},
		{"error", `{"error":{"message":"engine failed"}}`, false, false, true},
		{"null error", `{"error":null,"choices":[{"delta":{"content":"x"}}]}`, true, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := readChunk([]byte(tt.give))
			if c.content != tt.content || c.done != tt.done || errors.Is(c.err, errStreamError) != tt.failed {
				t.Errorf("readChunk = %+v", c)
			}
		})
	}
	if c := readChunk([]byte("{")); c.err == nil || errors.Is(c.err, errStreamError) {
		t.Errorf("an event that is no JSON: %v, want an error that is no error event", c.err)
	}
}

func TestAnswersAreComparedWithoutIDsAndTimes(t *testing.T) {
	give := `{"id":"chatcmpl-0a1b","created":1796001039,"choices":[{"text":"the \"id\" of created:5"}]}`
	want := `{"id":"chatcmpl-*,"created":*,"choices":[{"text":"the \"id\" of created:5"}]}`
	if diff := cmp.Diff(want, normalise(give)); diff != "" {
		t.Errorf("normalise (-want +got):\n%s", diff)
	}
}

func TestDifferingBytesAreCounted(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"abc", "axc", 1}, {"abc", "abcde", 2}, {"xbc", "abcd", 2}}
	for _, tt := range tests {
		if got := differingBytes(tt.a, tt.b); got != tt.want {
			t.Errorf("differingBytes(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
