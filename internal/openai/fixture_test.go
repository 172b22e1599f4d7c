package openai

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "fixtures", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// flat parses body and walks it in the layout.
func flat(t testing.TB, route Route, layout Layout, body string) []piece {
	t.Helper()
	r, err := Parse(route, []byte(body))
	if err != nil {
		t.Fatalf("Parse(%s): %v", body, err)
	}
	out, err := walked(r, "m", layout)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNextTurnOfAnAgentBeginsWithAllOfTheLast(t *testing.T) {
	tests := []struct {
		name   string
		route  Route
		layout Layout
	}{
		{"claude_code", RouteMessages, 0},
		{"claude_code", RouteMessages, LayoutToolsFirst | LayoutEffortHead},
		{"codex", RouteResponses, 0},
		{"codex", RouteResponses, LayoutEffortHead | LayoutConstraintsHead},
		{"openai_agent", RouteChat, 0},
		{"openai_agent", RouteChat, LayoutToolsFirst},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			first := flat(t, tt.route, tt.layout, string(fixture(t, tt.name+"_1")))
			second := flat(t, tt.route, tt.layout, string(fixture(t, tt.name+"_2")))
			if len(second) <= len(first) {
				t.Fatalf("second turn has %d fields, the first %d", len(second), len(first))
			}
			if diff := cmp.Diff(first, second[:len(first)], cmp.AllowUnexported(piece{})); diff != "" {
				t.Errorf("the turns differ before the new one (-first +second):\n%s", diff)
			}
		})
	}
}

func TestFixturesWalkAsTheTwin(t *testing.T) {
	for _, s := range seeds(t) {
		compareWithTwin(t, s.route, s.layout, s.body)
	}
}

func TestClaudeCodeRequestIsReadWhole(t *testing.T) {
	r, err := Parse(RouteMessages, fixture(t, "claude_code_2"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := walked(r, "m", 0)
	if err != nil {
		t.Fatal(err)
	}
	var tags []byte
	for _, p := range out {
		tags = append(tags, p.tag)
	}
	want := slices.Concat(
		[]byte{tagModel, tagLayout, markRoot},
		[]byte{tagRole, tagText, markMessage},
		[]byte{tagTool, tagDescription, tagToolParameters, tagTool, tagDescription, tagToolParameters, markMessage},
		[]byte{tagRole, tagText, tagText, markMessage},
		[]byte{tagRole, tagReasoning, tagText, tagCall, tagArguments, tagCallID, tagCall, tagArguments, tagCallID, markMessage},
		[]byte{tagRole, tagText, tagResultID, markMessage},
		[]byte{tagRole, tagText, tagResultID, markMessage},
	)
	if diff := cmp.Diff(want, tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	for _, p := range out {
		if strings.Contains(p.text, "billing") {
			t.Errorf("the billing header is hashed: %q", p.text)
		}
	}
	if r.SessionID != "user_5f0c_account__session_0d7b6c1e-4a55-4c0c-9a33-2d3f5d9f7a10" || r.MaxTokens != 32000 || !r.Stream {
		t.Errorf("read %+v", *r)
	}
}

// seed is one body of the tables and fixtures, a start for fuzzing.
type seed struct {
	route  Route
	layout Layout
	body   []byte
}

func seeds(t testing.TB) []seed {
	var list []seed
	for name, route := range map[string]Route{
		"claude_code": RouteMessages, "codex": RouteResponses, "openai_agent": RouteChat,
	} {
		list = append(list, seed{route, 0, fixture(t, name+"_1")}, seed{route, 0xff, fixture(t, name+"_2")})
	}
	for _, tt := range sameTests {
		list = append(list, seed{tt.route, tt.layout, []byte(tt.a)}, seed{tt.route, tt.layout, []byte(tt.b)})
	}
	for _, tt := range differentTests {
		list = append(list, seed{tt.route, tt.layout, []byte(tt.a)}, seed{tt.route, tt.layout, []byte(tt.b)})
	}
	for _, tt := range refusedTests {
		list = append(list, seed{tt.route, 0, []byte(tt.body)})
	}
	return list
}
