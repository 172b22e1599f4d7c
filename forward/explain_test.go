package forward

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestExplanations(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		policy := Policy{Classes: []Class{
			{Name: "careful", Match: Match{Header: map[string]string{"x-team": "careful"}}, Continue: true},
		}}
		if err := a.SetPolicy(&policy); err != nil {
			t.Fatal(err)
		}
		careful := http.Header{"X-Team": {"careful"}}
		whole := strings.Replace(chatBody, "true", "false", 1)
		for _, tt := range []struct {
			name      string
			header    http.Header
			body      string
			kinds     [2]engine.Kind
			class     string
			continued string
		}{
			{"default", nil, chatBody, [2]engine.Kind{"vllm", "vllm"}, "default", "no: the class does not"},
			{"class", careful, chatBody, [2]engine.Kind{"vllm", "vllm"}, "careful", "yes"},
			{"kind", careful, chatBody, [2]engine.Kind{"sglang", "sglang"}, "careful", "no: engines of kind sglang tell no token ids in streams of chat"},
			{"no stream", careful, whole, [2]engine.Kind{"vllm", "vllm"}, "careful", "no: the answer is no stream"},
			{"one of two", careful, chatBody, [2]engine.Kind{"vllm", "other"}, "careful", ""},
		} {
			for i, id := range []engine.ID{"a/0", "b/0"} {
				described := described(id, 1)
				described.Kind = tt.kinds[i]
				a.View.Announce(id.Agent(), []engine.Engine{described}, time.Now())
			}
			got := a.ExplainRequest(t.Context(), chatPath, tt.header, []byte(tt.body))
			if got.Class != tt.class || !strings.HasPrefix(got.Queued, "no: an engine") || !strings.HasPrefix(got.Continued, tt.continued) ||
				len(got.Candidates) != 2 || got.Refused != "" || got.Keys == 0 || got.Route != "chat" || got.Model != "m" {
				t.Errorf("%s: %+v", tt.name, got)
			}
			if tt.name == "one of two" && got.Continued == "yes" {
				t.Errorf("%s: %+v", tt.name, got)
			}
		}
		for path, body := range map[string]string{chatPath: `{"model":"unknown","messages":[{"role":"user","content":"a"}]}`, "/v1/nothing": chatBody} {
			if got := a.ExplainRequest(t.Context(), path, nil, []byte(body)); got.Refused == "" || len(got.Candidates) > 0 {
				t.Errorf("%s %s: %+v", path, body, got)
			}
		}
		if len(a.events)+len(a.book.bodies)+len(b.book.bodies) > 0 {
			t.Error("something was sent")
		}
		for _, agent := range m.agents {
			agent.book.limit = 1
			agent.book.occupy(1)
			defer agent.book.occupy(-1)
		}
		m.tell()
		if got := a.ExplainRequest(t.Context(), chatPath, nil, []byte(chatBody)); !strings.HasPrefix(got.Queued, "yes: every engine") {
			t.Errorf("%+v", got)
		}
		a.room.limit.bytes = int64(len(chatBody)) - 1
		if got := a.ExplainRequest(t.Context(), chatPath, nil, []byte(chatBody)); !strings.HasPrefix(got.Queued, "no: every engine") {
			t.Errorf("where it would not be let in: %+v", got)
		}
	})
}
