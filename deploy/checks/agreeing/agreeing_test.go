package main

import (
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
)

func TestOnlyAWholeStreamIsAnAnswer(t *testing.T) {
	const content = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	tests := []struct {
		name, body string
		ok         bool
	}{
		{"whole", content + content + "data: [DONE]\n\n", true},
		{"cut off", content, false},
		{"empty", "data: [DONE]\n\n", false},
		{"error", content + `data: {"error":{"message":"lost"}}` + "\n\ndata: [DONE]\n\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := readStream(strings.NewReader(tt.body), time.Now()); (err == nil) != tt.ok {
				t.Errorf("error %v, want none: %v", err, tt.ok)
			}
		})
	}
}

func TestQuantilesAreOfAnswersAlone(t *testing.T) {
	var o outcomes
	for i := range 101 {
		o.add(time.Duration(100-i)*time.Millisecond, nil)
	}
	o.add(time.Hour, errNoAnswer)
	if p50, p99 := o.ttft(0.5), o.ttft(0.99); p50 != 50 || p99 != 99 {
		t.Errorf("p50 %v, p99 %v, want 50 and 99", p50, p99)
	}
	if len(o.failed) != 1 || !strings.Contains(o.why(), errNoAnswer.Error()) {
		t.Errorf("failed %v, %q", o.failed, o.why())
	}
}

func TestAnAgentLacksWhatItDoesNotReach(t *testing.T) {
	whole := func() *node.Status {
		s := &node.Status{Ready: true, Agreed: node.AgreedStatus{Quorum: true}}
		for range voters {
			s.Agreed.Members = append(s.Agreed.Members, node.MemberStatus{Voter: true, Here: true})
			s.Engines = append(s.Engines, node.EngineStatus{State: "fresh"})
		}
		return s
	}
	if why := lacks(whole()); why != "" {
		t.Errorf("a whole mesh lacks: %s", why)
	}
	for name, spoil := range map[string]func(*node.Status){
		"ready":  func(s *node.Status) { s.Ready = false },
		"quorum": func(s *node.Status) { s.Agreed.Quorum = false },
		"voter":  func(s *node.Status) { s.Agreed.Members[1].Here = false },
		"joins":  func(s *node.Status) { s.Agreed.Members[1].Voter = false },
		"engine": func(s *node.Status) { s.Engines[2].State = "unreachable" },
		"load":   func(s *node.Status) { s.Engines[2].LoadAge = -1 },
	} {
		s := whole()
		spoil(s)
		if lacks(s) == "" {
			t.Errorf("%s is not missed", name)
		}
	}
}
