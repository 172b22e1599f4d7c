package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/forward"
)

func TestPolicyIsReadFromItsFile(t *testing.T) {
	policy := file(t, "policy.yaml", `
classes:
  - name: chat
    match: {path: /v1/chat/completions, header: {x-team: support}}
    strategy: session
    session_header: x-chat
  - name: documents
    match: {model: big, min_tokens: 20000, max_tokens: 90000, api_key_sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b}
    strategy: prefix
    prefix_tokens: 4000
    locality_weight: 0.5
    min_prompt_tokens: 300
`)
	want := forward.Policy{Classes: []forward.Class{
		{
			Name: "chat", Strategy: forward.StrategySession, SessionHeader: "x-chat",
			Match: forward.Match{Path: "/v1/chat/completions", Header: map[string]string{"x-team": "support"}},
		},
		{
			Name: "documents", Strategy: forward.StrategyPrefix, PrefixTokens: 4000, LocalityWeight: 0.5, MinPromptTokens: 300,
			Match: forward.Match{
				Model: "big", MinTokens: 20000, MaxTokens: 90000,
				APIKey: "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
			},
		},
	}}
	got, text, err := loadPolicy(policy)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if !strings.Contains(text, "name: documents") {
		t.Errorf("its text is %q", text)
	}
	if got, _, err := loadPolicy(file(t, "empty.yaml", "")); err != nil || len(got.Classes) != 0 {
		t.Errorf("an empty file: got %+v, %v", got, err)
	}
}

func TestFaultsOfAPolicyAreToldWithAllOthers(t *testing.T) {
	for text, want := range map[string]string{
		"classes: [{name: a, strategy: best}]":            `strategy "best" is none of auto, session, prefix, load`,
		"classes: [{name: a, colour: red}]":               `unknown field "colour"`,
		"classes: [{name: a, match: {min_tokens: many}}]": "cannot unmarshal string",
		"classes: {": "policy: ",
	} {
		r := kvmesh(t, nil, "agent", "--quic-bind=127.0.0.1:0", "--gossip-bind=127.0.0.1:0", "--name=a", "--http=nowhere",
			"--policy", file(t, "policy.yaml", text))
		if r.code != 1 || !strings.Contains(r.errout, want) || !strings.Contains(r.errout, "http (") {
			t.Errorf("%s: exit code %d, %s; want %s", text, r.code, r.errout, want)
		}
	}
}
