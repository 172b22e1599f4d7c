package policy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/forward"
)

const whole = `
response_headers: [engine]
allowed_routes:
  - /v1/chat/completions
  - /v1/responses/{id}
allowed_fields: [priority]
classes:
  - name: chat
    match: {path: /v1/chat/completions, header: {x-team: support}}
    strategy: session
    session_header: x-chat
    wait_weight: 2
    overlap_candidates: 4
    random_candidates: 8
    probes: 5
    priority: -3
    queue_limit: 100
    queue_bytes: 1000000
    queue_timeout: 1m30s
    continue: true
  - name: documents
    match: {model: big, min_tokens: 20000}
    strategy: prefix
    prefix_tokens: 4000
    locality_weight: 0.5
    min_prompt_tokens: 300
`

func TestWholePolicyIsRead(t *testing.T) {
	want := &forward.Policy{
		ResponseHeaders: []string{"engine"}, AllowedRoutes: []string{"/v1/chat/completions", "/v1/responses/{id}"},
		AllowedFields: []string{"priority"},
		Classes: []forward.Class{
			{
				Name: "chat", Strategy: forward.StrategySession, SessionHeader: "x-chat",
				Match:      forward.Match{Path: "/v1/chat/completions", Header: map[string]string{"x-team": "support"}},
				WaitWeight: 2, OverlapCandidates: 4, RandomCandidates: 8, Probes: 5, Continue: true,
				Priority: -3, QueueLimit: 100, QueueBytes: 1_000_000, QueueTimeout: 90 * time.Second,
			},
			{
				Name: "documents", Match: forward.Match{Model: "big", MinTokens: 20000},
				Strategy: forward.StrategyPrefix, PrefixTokens: 4000, LocalityWeight: 0.5, MinPromptTokens: 300,
			},
		},
	}
	got, err := Parse([]byte(whole))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestListsThatAreEmptyAreNotLeftOut(t *testing.T) {
	p, err := Parse([]byte("response_headers: []\nallowed_routes: []\n"))
	if err != nil || p.ResponseHeaders == nil || p.AllowedRoutes == nil {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, empty := range []string{"", "\n", "# nothing\n", "{}", "classes: []"} {
		p, err := Parse([]byte(empty))
		if err != nil || len(p.Classes) != 0 || p.ResponseHeaders != nil || p.AllowedRoutes != nil {
			t.Errorf("%q: got %+v, %v", empty, p, err)
		}
	}
}

func TestFaultsNameTheirLines(t *testing.T) {
	for text, want := range map[string][]string{
		"classes:\n  - name: a\n    strategy: best\n":                                              {`line 3, column 15: policy class 1 ("a"): strategy "best" is none of auto, session, prefix, load`},
		"classes:\n  - name: a\n    colour: red\n":                                                 {`line 3, column 5: unknown field "colour"`},
		"classes:\n  - name: a\n    match: {min_tokens: many}\n":                                   {"line 3, column 25: cannot unmarshal string"},
		"classes:\n  - name: a\n    match:\n      path: v1\n":                                      {`line 4, column 13: policy class 1 ("a"): path ("v1") must begin with a slash`},
		"classes:\n  - strategy: auto\n":                                                           {`policy class 1 (""): name must have 1 to 64 bytes`},
		"classes:\n  - name: a\n  - name: a\n    strategy: prefix\n":                               {`line 4, column 15: policy class 2 ("a"): strategy prefix needs`, `line 3, column 11: policy class 2 ("a"): name is taken`},
		"classes:\n  - name: a\n    probes: 0\n":                                                   {"line 3, column 13: ", "probes must be above 0"},
		"allowed_routes:\n- /v1/models\n- /nowhere\n":                                              {`line 2, column 1: policy: allowed_routes "/nowhere" is no route`},
		"hedge: true\nclasses:\n  - name: a\n    hedge: 2\n":                                       {"line 4, column 12: cannot unmarshal"},
		"classes:\n  - name: a\n    priority: 101\n    queue_timeout: 0s\n":                        {`line 3, column 15: policy class 1 ("a"): priority (101) must be -100 to 100`, "line 4, column 20: policy class 1 (\"a\"): queue_timeout must be above 0"},
		"classes:\n  - name: a\n    queue_limit: -1\n    queue_bytes: -1\n    queue_timeout: 2h\n": {"line 3", "queue_limit (-1) must", "line 4", "queue_bytes (-1) must", "line 5", "queue_timeout (2h0m0s) must be at most 1h"},
		"classes:\n- &a {name: x}\n- *a\n":                                                         {"line 3, column 3: aliases are not allowed"},
		"classes: {":                                                                               {"line 1, column 10: "},
		"classes: 3":                                                                               {"line 1, column 10: "},
		"a: 1\n---\n":                                                                              {"several documents"},
		strings.Repeat("#", MaxBytes+1):                                                            {"at most 262144 are allowed"},
		"classes:\n  - name: a\n    retry_budget: 2\n":                                             {"line 3, column 19: ", "retry_budget (2) must be above 0 and at most 1"},
	} {
		_, err := Parse([]byte(text))
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%.60q: got %v, want %s", text, err, w)
			}
		}
		if err != nil && slices.Contains(strings.Split(err.Error(), "\n"), "") {
			t.Errorf("%.60q: an empty line in %q", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := Parse(text); err == nil {
			if err := p.Validate(); err != nil {
				t.Errorf("a policy that is not valid is no error: %v", err)
			}
		}
	})
}
