package node

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestResidencyWords(t *testing.T) {
	for _, tt := range []struct {
		e    EngineStatus
		want string
	}{
		{EngineStatus{}, ""},
		{EngineStatus{Residency: "none", Evidence: "none", Unstable: true}, "none"},
		{EngineStatus{Residency: "mirror", Evidence: "none", OverlapScale: 1}, "mirror, unverified"},
		{EngineStatus{Residency: "mirror", Evidence: "counters", OverlapScale: 1}, "mirror"},
		{EngineStatus{Residency: "events", Evidence: "usage", OverlapScale: 0.75}, "events, 75% true"},
		{EngineStatus{Residency: "events", Evidence: "none", OverlapScale: 0.25, Unstable: true}, "events, unverified, 25% true, unstable layout"},
	} {
		if got := tt.e.ResidencyWords(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.e, got, tt.want)
		}
	}
}

// announceAs makes n believe that an engine of a peer is described so.
func announceAs(n *Node, e engine.Engine) {
	n.view.Announce(e.ID.Agent(), []engine.Engine{e}, time.Now())
}

func TestStatusSaysHowFarAnEngineCanBeTrusted(t *testing.T) {
	n := newRig(t)
	hearer := n.node(n.config("hearer"))
	announceAs(hearer, engine.Engine{
		ID: "sender/e", Residency: engine.ResidencyEvents, Evidence: engine.EvidenceNone, Scale: 0.5, Unstable: true,
		Models: []engine.Model{{Name: "m"}},
	})
	var s Status
	if err := json.Unmarshal(get(hearer.debugMux(), "/debug/mesh.json", nil).Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	e := s.Engines[0]
	if e.Residency != "events" || e.Evidence != "none" || e.OverlapScale != 0.5 || !e.Unstable || e.Words != e.ResidencyWords() {
		t.Errorf("%+v", e)
	}
	if len(e.Digests) != 0 || e.DigestAge >= 0 || e.DigestVersion != 0 {
		t.Errorf("digests of an engine that sent none: %+v", e)
	}
}

func TestMetricsSayHowFarOwnEnginesCanBeTrusted(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		n, _ := r.run(r.config("a", "e"))
		await(t, "the engine is up", 5*time.Second, n.Ready)
		admit(t, n, 1)
		time.Sleep(time.Second)
		const want = `
# HELP kvmesh_cachestate_digest_keys Prompt keys in the digest of an engine beside this agent.
# TYPE kvmesh_cachestate_digest_keys gauge
kvmesh_cachestate_digest_keys{engine="a/e",tier="gpu"} 8
# HELP kvmesh_cachestate_overlap_scale_ratio Share of the overlap claimed of an engine beside this agent that turns out true. Worry below 0.9.
# TYPE kvmesh_cachestate_overlap_scale_ratio gauge
kvmesh_cachestate_overlap_scale_ratio{engine="a/e"} 1
# HELP kvmesh_cachestate_residency_info 1 for what the digests of an engine beside this agent rest on and are checked by. Worry at evidence none: it is unverified, and at layout unstable: it is routed by load alone.
# TYPE kvmesh_cachestate_residency_info gauge
kvmesh_cachestate_residency_info{engine="a/e",evidence="none",layout="stable",residency="mirror"} 1
`
		if err := testutil.CollectAndCompare(&digestCollector{n}, strings.NewReader(want), "kvmesh_cachestate_digest_keys",
			"kvmesh_cachestate_overlap_scale_ratio", "kvmesh_cachestate_residency_info"); err != nil {
			t.Error(err)
		}
	})
}

func TestNotesOfOwnEnginesAreShown(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		n, _ := r.run(r.config("a", "e"))
		await(t, "the engine is up", 5*time.Second, n.Ready)
		want := n.agentsOf[0].Notes()
		if len(want) == 0 {
			t.Fatal("an engine without KV events has no note")
		}
		for _, note := range want {
			if s := n.Status(); !slices.Contains(s.Notes, note) {
				t.Errorf("%q is not among the notes %q", note, s.Notes)
			}
		}
	})
}

// read returns the fields of a JSON object that the page's script reads of a variable.
func read(t *testing.T, variable string) []string {
	t.Helper()
	b, err := page.ReadFile("page/index.html")
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, m := range regexp.MustCompile(`\b`+variable+`\.([a-z_]+)\b`).FindAllStringSubmatch(string(b), -1) {
		fields = append(fields, m[1])
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

func TestPageReadsWhatThereIs(t *testing.T) {
	fields := func(v any) map[string]any {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]any{}
		if err := json.Unmarshal(b, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	for variable, tt := range map[string]struct {
		value any
		want  []string // at least
	}{
		"e":     {EngineStatus{}, []string{"digests", "engine", "residency_words"}},
		"g":     {DigestStatus{}, []string{"age_s", "fill", "keys", "tier", "version"}},
		"a":     {AgentStatus{}, []string{"state"}},
		"q":     {QueueStatus{}, []string{"classes", "model", "oldest_s", "waiting"}},
		"tried": {forward.Attempt{Hedge: true}, []string{"engine", "hedge", "result"}},
		"r":     {RefusalStatus{}, []string{"reason"}},
		"mesh":  {Status{}, []string{"agreed", "engines", "notes", "queues"}},

		"agreed": {AgreedStatus{}, []string{"cordons", "index", "leader", "members", "policy", "quorum", "role"}},
		"policy": {PolicyStatus{Index: 1, Author: "a", Time: time.Now()}, []string{"author", "index", "source", "time"}},
		"member": {MemberStatus{}, []string{"agent", "here", "leader", "voter"}},
		"cordon": {
			CordonStatus{Engine: "e", Agent: "a", Reason: "r", Author: "a", Expiry: time.Now(), Local: true},
			[]string{"agent", "author", "engine", "expiry", "local", "reason"},
		},
	} {
		there, reads := fields(tt.value), read(t, variable)
		for _, f := range reads {
			if _, ok := there[f]; !ok && f != "json" && f != "message" {
				t.Errorf("the page reads %s.%s, which is not told", variable, f)
			}
		}
		for _, f := range tt.want {
			if !slices.Contains(reads, f) {
				t.Errorf("the page does not show %s.%s", variable, f)
			}
		}
	}
}

// post asks the debug server what an engine is believed to hold of a request.
func post(n *Node, query, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	n.debugMux().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/debug/residency"+query, strings.NewReader(body)))
	return w
}

func TestResidencyOfARequest(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		n, _ := r.run(r.config("a", "e"))
		await(t, "the engine is up", 5*time.Second, n.Ready)
		const secret = "kumquat"
		body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(secret+" ", 200) + `"}]}`
		for name, tt := range map[string]struct {
			query, body string
			status      int
			text        string
		}{
			"no engine":          {"", body, 400, "?engine=NAME"},
			"another engine":     {"?engine=f", body, 400, "?engine=NAME"},
			"no route":           {"?engine=e&route=/v1/nothing", body, 400, "no such route"},
			"no prompt":          {"?engine=e&route=/v1/models", body, 400, ""},
			"another route":      {"?engine=e&route=/v1/completions", `{"model":"m","prompt":"` + secret + `"}`, 200, `"source": "none"`},
			"another model":      {"?engine=e", strings.Replace(body, `"m"`, `"x"`, 1), 400, "no model"},
			"no JSON":            {"?engine=e", body[:len(body)-1], 400, "JSON"},
			"no messages":        {"?engine=e", `{"model":"m"}`, 400, "messages"},
			"nothing is held":    {"?engine=e", body, 200, `"resident_keys": 0`},
			"prompt without key": {"?engine=e&route=/v1/completions", `{"model":"m","prompt":"` + secret + `","prompt_logprobs":1}`, 200, `"keys": 0`},
		} {
			w := post(n, tt.query, tt.body)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.text) {
				t.Errorf("%s: %d %q, want %d %q", name, w.Code, w.Body, tt.status, tt.text)
			}
			if strings.Contains(w.Body.String(), secret) {
				t.Errorf("%s: the prompt is told again: %q", name, w.Body)
			}
		}
		var e engineagent.Estimate
		if err := json.Unmarshal(post(n, "?engine=e", body).Body.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.Keys < 3 || e.Tokens < 200 || e.Overlap != 0 || e.Exact {
			t.Errorf("nothing was sent to the engine: %+v", e)
		}
	})
}

func TestResidencyUsesTheKeysOfTheIngress(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		n, _ := r.run(r.config("a", "e"))
		await(t, "the engine is up", 5*time.Second, n.Ready)
		body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("again and ", 200) + `"}]}`
		w := httptest.NewRecorder()
		n.ingressMux().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body)))
		if w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		var e engineagent.Estimate
		if err := json.Unmarshal(post(n, "?engine=e", body).Body.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.ResidentKeys != e.Keys || e.Keys != n.recorder.Events()[0].Keys || e.Source != "mirror" || e.Overlap == 0 || e.Overlap >= e.Tokens {
			t.Errorf("%+v after a request with %d keys", e, n.recorder.Events()[0].Keys)
		}
	})
}
