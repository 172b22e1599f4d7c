package node

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// metric is the value of a counter or gauge without labels.
func metric(t *testing.T, n *Node, name string) float64 {
	t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// admit has the first engine beside n serve one prompt with keys that only seed gives.
func admit(t *testing.T, n *Node, seed uint64) {
	t.Helper()
	p := &cachestate.Prompt{Bytes: 4096}
	for i := range 8 {
		p.Keys = append(p.Keys, cachestate.Key(seed<<32+uint64(i+1)))
		p.Offsets = append(p.Offsets, uint32(512*(i+1)))
	}
	b, _, err := n.agentsOf[0].Admit(engineagent.Admission{Prompt: p, QueuedAtProbe: -1})
	if err != nil {
		t.Fatal(err)
	}
	b.FirstContent()
	b.Finish(engineagent.Outcome{})
}

func get(h http.Handler, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestDebugServerAsksForItsToken(t *testing.T) {
	r := newRig(t)
	c := r.config("a", "e")
	c.Debug, c.DebugToken = ":7083", "secret"
	guarded := r.node(c).debugMux()
	open := r.node(r.config("b")).debugMux()
	with := func(header string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", header) }
	}
	basic := func(password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth("anybody", password) }
	}
	for _, path := range []string{"/metrics", "/debug/", "/debug/mesh.json", "/debug/decisions.json"} {
		for name, tt := range map[string]struct {
			h      http.Handler
			change func(*http.Request)
			want   int
		}{
			"no token asked for":   {open, nil, http.StatusOK},
			"none given":           {guarded, nil, http.StatusUnauthorized},
			"bearer":               {guarded, with("Bearer secret"), http.StatusOK},
			"wrong bearer":         {guarded, with("Bearer secre"), http.StatusUnauthorized},
			"empty bearer":         {guarded, with("Bearer "), http.StatusUnauthorized},
			"password":             {guarded, basic("secret"), http.StatusOK},
			"wrong password":       {guarded, basic("wrong"), http.StatusUnauthorized},
			"token in another way": {guarded, with("Basic secret"), http.StatusUnauthorized},
		} {
			w := get(tt.h, path, tt.change)
			if w.Code != tt.want {
				t.Errorf("%s, %s: %d, want %d", path, name, w.Code, tt.want)
			}
			if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
				t.Errorf("%s, %s: a browser is not asked for the token", path, name)
			}
		}
	}
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/": http.StatusFound, "/nothing": http.StatusNotFound,
	} {
		if w := get(guarded, path, nil); w.Code != want {
			t.Errorf("GET %s without token = %d, want %d", path, w.Code, want)
		}
	}
	post := httptest.NewRecorder()
	if open.ServeHTTP(post, httptest.NewRequest(http.MethodPost, "/debug/mesh.json", http.NoBody)); post.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST = %d", post.Code)
	}
}

func TestReadyzSaysWhyNot(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		seeded := r.config("lonely", "e")
		seeded.Mesh.Join = []string{"10.0.0.99:7081"}
		lonely, _ := r.run(seeded)
		ingressOnly, _ := r.run(r.config("ingress"))
		n, stop := r.run(r.config("a", "e"))
		is := func(n *Node, path string, status int, text string) {
			t.Helper()
			for _, w := range []*httptest.ResponseRecorder{
				get(n.debugMux(), "/"+path, nil), get(n.ingressMux(), "/kvmesh/"+path, nil),
			} {
				if w.Code != status || !strings.Contains(w.Body.String(), text) {
					t.Errorf("%s: GET %s = %d %q, want %d %q", n.config.Mesh.Name, path, w.Code, w.Body, status, text)
				}
			}
		}
		time.Sleep(time.Second)
		is(lonely, "readyz", http.StatusServiceUnavailable, "has not settled")
		is(ingressOnly, "readyz", http.StatusServiceUnavailable, "no engine")
		is(ingressOnly, "readyz?engine=1", http.StatusServiceUnavailable, "there is none")
		is(n, "readyz", http.StatusOK, "ready")
		is(n, "readyz?engine=1", http.StatusOK, "ready")
		is(n, "healthz", http.StatusOK, "ok")
		time.Sleep(r.config("x").Mesh.Timings.SettleTimeout)
		is(lonely, "readyz", http.StatusOK, "ready") // its seed may come later
		stop()
		time.Sleep(100 * time.Millisecond)
		is(n, "readyz", http.StatusServiceUnavailable, "drains")
		is(n, "healthz", http.StatusOK, "ok")
	})
}

// nulls returns the paths of all nulls in a JSON value.
func nulls(path string, v any) []string {
	var out []string
	switch v := v.(type) {
	case nil:
		return []string{path}
	case map[string]any:
		for k, e := range v {
			out = append(out, nulls(path+"."+k, e)...)
		}
	case []any:
		for _, e := range v {
			out = append(out, nulls(path+"[]", e)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestPagesHoldNoNulls(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		idle := r.node(r.config("idle", "e"))
		config := r.config("busy", "e")
		config.Forward.Zone = "west"
		busy, _ := r.run(config)
		peer := r.config("peer")
		peer.Mesh.Join = []string{busy.QUICAddr()}
		other, _ := r.run(peer)
		await(t, "the peer is ready", 10*time.Second, other.Ready)
		for _, n := range []*Node{idle, busy, other} {
			for _, path := range []string{"/debug/mesh.json", "/debug/decisions.json"} {
				var v any
				w := get(n.debugMux(), path, nil)
				if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
					t.Fatalf("%s of %s: %v", path, n.config.Mesh.Name, err)
				}
				if got := nulls("", v); len(got) > 0 {
					t.Errorf("%s of %s has nulls at %q", path, n.config.Mesh.Name, got)
				}
			}
		}
		var s Status
		if err := json.Unmarshal(get(other.debugMux(), "/debug/mesh.json", nil).Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Agents) != 2 || len(s.Engines) != 1 || s.Engines[0].Engine != "busy/e" || !slices.Equal(s.Engines[0].Models, []string{"m"}) || s.Engines[0].Zone != "west" {
			t.Errorf("status of the peer: %+v", s)
		}
	})
}

func TestStatusNamesWhoIsNotBelieved(t *testing.T) {
	r := newRig(t)
	n := r.node(r.config("a"))
	n.ingress.Doubt("b", "b/e", forward.DoubtLoad, engine.ErrImplausible)
	var s Status
	if err := json.Unmarshal(get(n.debugMux(), "/debug/mesh.json", nil).Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Doubts) != 1 || s.Doubts[0].Agent != "b" || s.Doubts[0].Engine != "b/e" || s.Doubts[0].What != forward.DoubtLoad || s.Doubts[0].Count != 1 {
		t.Errorf("doubts %+v", s.Doubts)
	}
	if page := get(n.debugMux(), "/debug/", nil).Body.String(); !strings.Contains(page, "mesh.doubts") {
		t.Error("the page does not show doubts")
	}
}

func TestMetricsAreClean(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		a, _ := r.run(r.config("a", "e", "f"))
		config := r.config("b", "e")
		config.Mesh.Join = []string{a.QUICAddr()}
		b, _ := r.run(config)
		await(t, "both are ready", 10*time.Second, func() bool { return a.Ready() && b.Ready() && b.UsableEngines() == 3 })
		time.Sleep(time.Second)
		problems, err := testutil.GatherAndLint(a.registry)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		if got := testutil.CollectAndCount(&digestCollector{b}, "kvmesh_cachestate_digest_age_seconds"); got != 2 {
			t.Errorf("%d digest ages, want those of the two engines elsewhere", got)
		}
		for _, name := range []string{"digest_keys", "digest_fill_ratio", "residency_info", "overlap_scale_ratio"} {
			if got := testutil.CollectAndCount(&digestCollector{b}, "kvmesh_cachestate_"+name); got != 1 {
				t.Errorf("%d of %s, want that of the engine beside the agent", got, name)
			}
		}
	})
}
