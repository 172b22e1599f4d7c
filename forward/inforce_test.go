package forward

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// setPolicy puts a policy that must be valid into force.
func (a *memAgent) setPolicy(p Policy) {
	a.mesh.t.Helper()
	if err := a.SetPolicy(&p); err != nil {
		a.mesh.t.Fatal(err)
	}
}

func TestCountersOfAClassSurviveAChangeOfPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMemMesh(t, "a").agents["a"]
		team := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("X-Team", name) } }
		class := func(name string) Class {
			return Class{Name: name, Match: Match{Header: map[string]string{"x-team": name}}}
		}
		a.setPolicy(Policy{Classes: []Class{class("stays"), class("goes")}})
		a.post(t.Context(), chatBody, team("stays"))
		a.post(t.Context(), chatBody, team("goes"))
		a.post(t.Context(), chatBody)
		a.setPolicy(Policy{Classes: []Class{class("comes"), class("stays")}})
		if a.classes.byName["goes"] != nil {
			t.Error("the counters of a class that is gone are kept")
		}
		a.post(t.Context(), chatBody, team("stays"))
		a.post(t.Context(), chatBody, team("goes"))
		synctest.Wait()
		var got []string
		for _, c := range a.Classes() {
			got = append(got, c.Name+strings.Repeat("+", c.Requests))
		}
		if want := []string{"comes", "stays++", DefaultClass + "++"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if n := testutil.CollectAndCount(a.metrics.decisions); n != 2 {
			t.Errorf("%d series of decisions, want those of stays and default", n)
		}
		if err := a.SetPolicy(&Policy{Classes: []Class{{Name: "bad", Strategy: "best"}}}); err == nil || a.Policy().Classes[0].Name != "comes" {
			t.Errorf("got %v of a policy that is not valid, and %+v is in force", err, a.Policy())
		}
	})
}

func TestPolicySaysWhatAnswersTell(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
		for _, tt := range []struct {
			explain bool
			headers []string
			want    []string
		}{
			{true, nil, explainHeaders},
			{false, nil, nil},
			{true, []string{}, nil},
			{false, []string{"engine", "reason"}, []string{"engine", "reason"}},
		} {
			a.Explain = tt.explain
			a.setPolicy(Policy{ResponseHeaders: tt.headers})
			w := a.post(t.Context(), chatBody)
			for _, name := range explainHeaders {
				if got := w.Header().Get("X-Kvmesh-"+name) != ""; got != slices.Contains(tt.want, name) {
					t.Errorf("explain %t, headers %q: %s is there: %t", tt.explain, tt.headers, name, got)
				}
			}
		}
	})
}

func TestPolicyLimitsRoutesAndFields(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
		body := strings.Replace(chatBody, "{", `{"priority":1,`, 1)
		status := func(body string) int { return a.post(t.Context(), body).Code }
		if got := status(body); got != http.StatusBadRequest {
			t.Errorf("without a policy: %d", got)
		}
		a.setPolicy(Policy{AllowedFields: []string{"priority"}, AllowedRoutes: []string{"/v1/chat/completions", "/v1/responses/{id}"}})
		if got := status(body); got != http.StatusOK {
			t.Errorf("with the field allowed: %d", got)
		}
		if got := status(strings.Replace(chatBody, "{", `{"request_id":"x",`, 1)); got != http.StatusBadRequest {
			t.Errorf("another field: %d", got)
		}
		a.setPolicy(Policy{AllowedRoutes: []string{"/v1/models"}})
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "the policy of this mesh") {
			t.Errorf("a route that is not allowed: %d %s", w.Code, w.Body)
		}
	})
}
