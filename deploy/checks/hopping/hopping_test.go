package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestOnlyAWholeStreamIsAnAnswer(t *testing.T) {
	event := func(data string) string { return "data: " + data + "\n\n" }
	const done = "[DONE]"
	role := event(`{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	text := event(`{"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`)
	end := event(`{"id":"x","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}`)
	used := event(`{"id":"x","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`)
	tests := []struct {
		name, body, want string // "" for a whole answer
	}{
		{"whole", role + text + end + used + event(done), ""},
		{"cut off", role + text, errNoEnd.Error()},
		{"cut off before the last event", role + text + end, errNoEnd.Error()},
		{"no finish reason", role + text + event(done), "without a finish_reason"},
		{"error", role + text + event(`{"error":{"message":"lost"}}`) + event(done), "error event"},
		{"another id", role + strings.ReplaceAll(text, `"x"`, `"y"`), "goes on as"},
		{"role again", role + text + role, "a second role"},
		{"text after the end", role + text + end + text, "text after the end"},
		{"more after the last event", role + text + end + event(done) + used, "after [DONE]"},
		{"no JSON", event("{"), "unexpected end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := &answer{}
			err := a.readStream(strings.NewReader(tt.body), time.Now())
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if tt.want != "" {
				return
			}
			if a.text != "ab" || a.finish != "stop" || a.contents != 2 || *a.usage != (usage{1, 2, 3}) {
				t.Errorf("read %+v", a)
			}
		})
	}
}

func TestAnErrorEventIsToldFromACut(t *testing.T) {
	a := &answer{}
	err := a.readStream(strings.NewReader("data: {\"error\":{\"message\":\"lost\"}}\n\n"), time.Now())
	if !errors.Is(err, errEvent) || errors.Is(err, errNoEnd) {
		t.Errorf("error %v", err)
	}
}

func TestAnswersDifferInAnyOfTheirParts(t *testing.T) {
	want := answer{text: "abc", thought: "a", finish: "stop", usage: &usage{1, 2, 3}}
	if why := want.differs(&want); why != "" {
		t.Errorf("differs from itself: %s", why)
	}
	for name, spoil := range map[string]func(*answer){
		"text":    func(a *answer) { a.text = "abd" },
		"shorter": func(a *answer) { a.text = "ab" },
		"thought": func(a *answer) { a.thought = "" },
		"finish":  func(a *answer) { a.finish = "length" },
		"usage":   func(a *answer) { a.usage = &usage{1, 3, 4} },
	} {
		got := want
		spoil(&got)
		if got.differs(&want) == "" {
			t.Errorf("%s is not missed", name)
		}
	}
}
