package node

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/mesh"
)

func TestGossipKeyIsRotatedByTheDebugServer(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		c := r.config("a", "e")
		c.Debug, c.DebugToken = ":7083", "secret"
		a, _ := r.run(c)
		cb := r.config("b", "e")
		cb.Mesh.Join = []string{a.QUICAddr()}
		b, _ := r.run(cb)
		await(t, "connected", 5*time.Second, func() bool { return len(b.mesh.Peers()) == 1 && b.mesh.Peers()[0].GossipAddr.IsValid() })
		ask := func(method string, change func(*http.Request)) (int, mesh.GossipKeys) {
			req := httptest.NewRequest(method, "/debug/gossip-key", http.NoBody)
			if change != nil {
				change(req)
			}
			w := httptest.NewRecorder()
			a.debugMux().ServeHTTP(w, req)
			var keys mesh.GossipKeys
			_ = json.Unmarshal(w.Body.Bytes(), &keys)
			return w.Code, keys
		}
		token := func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret") }
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if code, _ := ask(method, nil); code != http.StatusUnauthorized {
				t.Errorf("%s without token: %d", method, code)
			}
		}
		elsewhere := func(r *http.Request) {
			token(r)
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		if code, _ := ask(http.MethodPost, elsewhere); code != http.StatusForbidden {
			t.Errorf("a page of another site: %d", code)
		}
		code, before := ask(http.MethodGet, token)
		if code != http.StatusOK || before.Version != 0 || len(before.Keys) != 1 {
			t.Errorf("%d, %+v", code, before)
		}
		code, after := ask(http.MethodPost, token)
		if code != http.StatusOK || after.Version != 3 || len(after.Keys) != 1 || after.Keys[0] == before.Keys[0] {
			t.Errorf("%d, %+v after %+v", code, after, before)
		}
		if diff := cmp.Diff(after.Keys, b.Status().GossipKeys.Keys); diff != "" {
			t.Errorf("b has others (-a +b):\n%s", diff)
		}
	})
}
