package forward

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/kvmesh/kvmesh/internal/openai"
)

func TestPastDecisionIsTriedOnAnotherPolicy(t *testing.T) {
	body := `{"model":"m","session_id":"s","messages":[{"role":"user","content":"` + strings.Repeat("what is held. ", 2000) + `"}]}`
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		held := digestOf("b/0", 1, keysOf(t, openai.RouteChat, body).Keys...)
		a.Index.Apply(&held)
		b.book.occupy(2)
		defer b.book.occupy(-2)
		a.post(t.Context(), body, func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer secret")
			r.Header.Set("X-Team", "team-of-chat")
		})
		e := a.last()
		if e.Engine != "b/0" {
			t.Fatalf("it went to %s", e.Engine)
		}
		chat := Match{Header: map[string]string{"x-team": "team-of-chat"}}
		for name, tt := range map[string]struct {
			class Class
			want  Route
		}{
			"none that matches":    {Class{Name: "c", Match: Match{Path: "/v1/completions"}}, Route{DefaultClass, StrategyAuto, "b/0"}},
			"another name":         {Class{Name: "c", Match: chat}, Route{"c", StrategyAuto, "b/0"}},
			"by key":               {Class{Name: "c", Match: Match{APIKey: keyOfTests}}, Route{"c", StrategyAuto, "b/0"}},
			"by key as it was":     {Class{Name: "c", Match: Match{Header: map[string]string{"authorization": "*"}}}, Route{DefaultClass, StrategyAuto, "b/0"}},
			"load":                 {Class{Name: "c", Match: chat, Strategy: StrategyLoad}, Route{"c", StrategyLoad, "a/0"}},
			"overlap for nothing":  {Class{Name: "c", Match: chat, MinPromptTokens: 1e6}, Route{"c", StrategyAuto, "a/0"}},
			"a session's hash":     {Class{Name: "c", Match: chat, Strategy: StrategySession}, Route{"c", StrategySession, ""}},
			"a beginning's hash":   {Class{Name: "c", Match: chat, Strategy: StrategyPrefix, PrefixTokens: 100}, Route{"c", StrategyPrefix, ""}},
			"less worth of caches": {Class{Name: "c", Match: chat, LocalityWeight: 0.001}, Route{"c", StrategyAuto, "a/0"}},
		} {
			was, would, ok := e.Redecide(&Policy{Classes: []Class{tt.class}})
			if !ok || was != (Route{DefaultClass, StrategyAuto, "b/0"}) || would != tt.want {
				t.Errorf("%s: %+v became %+v, want %+v", name, was, would, tt.want)
			}
		}
		a.post(t.Context(), body, func(r *http.Request) { r.Header.Set("X-Long", strings.Repeat("x", maxPastHeader)) })
		if h := a.last().past.traffic.Header; len(h) > 0 {
			t.Errorf("a long header is kept: %d fields", len(h))
		}
		if text, err := json.Marshal(e); err != nil || strings.Contains(string(text), "secret") || strings.Contains(string(text), "team-of-chat") {
			t.Errorf("%v, the event shows the header: %s", err, text)
		}
		if h := e.past.traffic.Header; h.Get("Authorization") != "" || h.Get("X-Team") != "team-of-chat" {
			t.Errorf("kept header %v", h)
		}
	})
}

func TestPastHashIsTheSameUnderTheSameClass(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
		p := Policy{Classes: []Class{{Name: "c", Strategy: StrategySession}}}
		a.setPolicy(p)
		a.post(t.Context(), strings.Replace(chatBody, "{", `{"session_id":"s",`, 1))
		e := a.last()
		if was, would, ok := e.Redecide(&p); !ok || was != would || was.Engine != e.Engine {
			t.Errorf("%+v became %+v", was, would)
		}
		if _, would, _ := e.Redecide(&Policy{}); would != (Route{DefaultClass, StrategyAuto, ""}) {
			t.Errorf("without its class: %+v", would)
		}
		if _, _, ok := (&Event{}).Redecide(&p); ok {
			t.Error("a request that was not decided has a decision")
		}
	})
}
