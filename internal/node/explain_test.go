package node

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestRequestsAreExplained(t *testing.T) {
	r := newRig(t)
	c := r.config("a", "e")
	c.Debug, c.DebugToken = ":7083", "secret"
	c.Forward.Policy.Classes = []forward.Class{{Name: "support", Match: forward.Match{Header: map[string]string{"x-team": "support"}}}}
	n := r.node(c)
	ask := func(query, token string) *httptest.ResponseRecorder {
		body := strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/debug/explain?"+query, body)
		req.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		n.debugMux().ServeHTTP(w, req)
		return w
	}
	if w := ask("route=/v1/chat/completions", "guess"); w.Code != http.StatusUnauthorized {
		t.Errorf("without the token: %d", w.Code)
	}
	if w := ask("route=/v1/chat/completions&header=x-team", "secret"); w.Code != http.StatusBadRequest {
		t.Errorf("a header without a value: %d", w.Code)
	}
	var e forward.Explanation
	w := ask("route=/v1/chat/completions&header=x-team:+support", "secret")
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Refused == "" || e.Route != "chat" {
		t.Errorf("before any engine is known: %+v, %v", e, err)
	}
	n.view.Announce("b", []engine.Engine{{ID: "b/e", Models: []engine.Model{{Name: "m"}}}}, time.Now())
	e = forward.Explanation{}
	if err := json.Unmarshal(ask("header=x-team:+support", "secret").Body.Bytes(), &e); err != nil || e.Route != "chat" || e.Class != "support" || e.Continued == "" {
		t.Errorf("%+v, %v", e, err)
	}
}
