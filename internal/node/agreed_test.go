package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// change sends a body to a handler and decodes what it answers into out, unless that is nil.
func change(t *testing.T, h http.Handler, path, body string, out any) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	if out != nil {
		if w.Code != http.StatusOK {
			t.Fatalf("POST %s = %d %s", path, w.Code, w.Body)
		}
		if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
			t.Fatalf("POST %s: %v in %s", path, err, w.Body)
		}
	}
	return w
}

// voters runs n agents, each with an engine and a data folder, that found a group, and waits until it can decide.
func (r *rig) voters(n int) (nodes []*Node, configs []Config, stops []func()) {
	r.t.Helper()
	var seed string
	for i := range n {
		c := r.config(fmt.Sprintf("v%d", i), "e")
		c.Data, c.BootstrapExpect = r.t.TempDir(), n
		if seed != "" {
			c.Mesh.Join = []string{seed}
		}
		node, stop := r.run(c)
		if seed == "" {
			seed = node.QUICAddr()
		}
		nodes, configs, stops = append(nodes, node), append(configs, c), append(stops, stop)
	}
	r.await("a leader is known to all, and all are ready", 20*time.Second, func() bool {
		return !slices.ContainsFunc(nodes, func(n *Node) bool { return !n.Status().Agreed.Quorum || !n.Ready() })
	})
	return nodes, configs, stops
}

func (r *rig) await(what string, limit time.Duration, ok func() bool) {
	r.t.Helper()
	for start := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > limit {
			r.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

const batchPolicy = "classes:\n  - name: batch\n    strategy: load\n"

func TestPolicyAppliedOnOneAgentIsInForceOnAllAndOnThoseThatCome(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		nodes, _, _ := r.voters(3)
		config := r.config("watcher", "e")
		config.Mesh.Join = []string{nodes[0].QUICAddr()}
		watcher, _ := r.run(config)
		await(t, "the watcher is ready", 10*time.Second, watcher.Ready)
		nodes = append(nodes, watcher)
		var done ChangeAnswer
		change(t, watcher.debugMux(), "/debug/policy?author=ann", batchPolicy, &done)
		start := time.Now()
		await(t, "all have it", 2*time.Second, func() bool {
			return !slices.ContainsFunc(nodes, func(n *Node) bool { return n.Status().Agreed.Policy.Index != done.Index })
		})
		t.Logf("in force on all after %v", time.Since(start))
		for _, n := range nodes {
			s := n.Status()
			if p := s.Agreed.Policy; p.Source != SourceAgreed || p.Author != "ann" || p.Time.IsZero() || p.Classes != 1 {
				t.Errorf("%s: policy %+v", s.Agent, p)
			}
			if s.Classes[0].Name != "batch" || s.Classes[0].Strategy != forward.StrategyLoad || n.ingress.Policy().Classes[0].Name != "batch" {
				t.Errorf("%s routes by %+v", s.Agent, s.Classes)
			}
		}
		config = r.config("late", "e")
		config.Mesh.Join = []string{nodes[1].QUICAddr()}
		late, _ := r.run(config)
		await(t, "the late one is ready", 10*time.Second, late.Ready)
		if p := late.Status().Agreed.Policy; p.Index != done.Index {
			t.Errorf("the late one is ready with %+v", p)
		}
	})
}

func TestTwoOperatorsDoNotOverwriteEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		nodes, _, _ := r.voters(3)
		var first, second ChangeAnswer
		change(t, nodes[0].debugMux(), "/debug/policy", batchPolicy, &first)
		based := fmt.Sprintf("/debug/policy?based_on=%d", first.Index)
		change(t, nodes[1].debugMux(), based, "classes: []", &second)
		if w := change(t, nodes[2].debugMux(), based, batchPolicy, nil); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "another policy") {
			t.Errorf("the second one on the same base: %d %s", w.Code, w.Body)
		}
		var back ChangeAnswer
		change(t, nodes[2].debugMux(), "/debug/policy/rollback", "", &back)
		await(t, "it is taken back", 2*time.Second, func() bool { return nodes[0].Status().Agreed.Policy.Index == back.Index })
		var got PolicyAnswer
		if err := json.Unmarshal(get(nodes[0].debugMux(), "/debug/policy", nil).Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if got.Text != batchPolicy || len(got.History) != 3 || got.History[0].Index != back.Index || got.History[2].Index != first.Index {
			t.Errorf("after the rollback: %+v", got)
		}
		for body, want := range map[string]string{"classes: [{name: a, strategy: best}]": "line 1", "": "must be a policy", "hedge: 1": "unknown field"} {
			if w := change(t, nodes[0].debugMux(), "/debug/policy", body, nil); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%q: %d %s", body, w.Code, w.Body)
			}
		}
	})
}

func chatWith(n *Node) int {
	w := httptest.NewRecorder()
	n.ingress.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions",
		strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`)))
	return w.Code
}

func TestWithoutQuorumRoutingGoesOnByTheLastState(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		nodes, configs, stops := r.voters(3)
		var done ChangeAnswer
		change(t, nodes[0].debugMux(), "/debug/policy", batchPolicy, &done)
		await(t, "all have it", 2*time.Second, func() bool { return nodes[2].Status().Agreed.Policy.Index == done.Index })
		stops[0]()
		stops[1]()
		await(t, "the quorum is lost", 20*time.Second, func() bool { return !nodes[2].Status().Agreed.Quorum })
		start := time.Now()
		if w := change(t, nodes[2].debugMux(), "/debug/policy", "classes: []", nil); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "no quorum") {
			t.Errorf("a write without quorum: %d %s", w.Code, w.Body)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("its answer took %v", took)
		}
		if code := chatWith(nodes[2]); code != http.StatusOK || !nodes[2].Ready() {
			t.Errorf("a request without quorum: %d, ready %t", code, nodes[2].Ready())
		}
		if notes := strings.Join(nodes[2].Status().Notes, "\n"); !strings.Contains(notes, "has no quorum") {
			t.Errorf("notes: %s", notes)
		}
		stops[2]()
		time.Sleep(10 * time.Second)
		again, err := New(configs[2])
		if err != nil {
			t.Fatal(err)
		}
		if p := again.Status().Agreed.Policy; p.Index != done.Index || again.ingress.Policy().Classes[0].Name != "batch" {
			t.Errorf("a new life begins with %+v", p)
		}
		r.start(again)
		await(t, "it is ready alone", 10*time.Second, again.Ready)
	})
}

func TestCordonHoldsEverywhereUntilItEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		nodes, _, _ := r.voters(3)
		usable := func(want int) func() bool {
			return func() bool {
				return !slices.ContainsFunc(nodes, func(n *Node) bool { return n.UsableEngines() != want })
			}
		}
		await(t, "all are used", 5*time.Second, usable(3))
		var answer CordonAnswer
		change(t, nodes[0].debugMux(), "/debug/cordon?target=v1/e&reason=upgrade&author=ann&for=1m", "", &answer)
		await(t, "nobody uses it", 2*time.Second, usable(2))
		if answer.Local || answer.Index == 0 {
			t.Errorf("got %+v", answer)
		}
		var c []CordonStatus
		await(t, "it is shown elsewhere", 2*time.Second, func() bool { // its owner's load may be faster
			c = nodes[2].Status().Agreed.Cordons
			return len(c) > 0
		})
		if len(c) != 1 || c[0].Engine != "v1/e" || c[0].Reason != "upgrade" || c[0].Author != "ann" || c[0].Expiry.IsZero() || c[0].Local {
			t.Errorf("shown as %+v", c)
		}
		await(t, "its owner says so", 3*time.Second, func() bool {
			return slices.ContainsFunc(nodes[2].Status().Engines, func(e EngineStatus) bool { return e.Engine == "v1/e" && e.State == "draining" })
		})
		if w := change(t, nodes[0].debugMux(), "/debug/cordon?target=v9", "", nil); w.Code != http.StatusNotFound {
			t.Errorf("a name that is not known: %d %s", w.Code, w.Body)
		}
		time.Sleep(50 * time.Second)
		if !usable(2)() {
			t.Error("it ended early")
		}
		await(t, "it has ended", 12*time.Second, usable(3))
		change(t, nodes[2].debugMux(), "/debug/cordon?target=v2", "", &answer)
		await(t, "the agent's own is not used", 2*time.Second, usable(2))
		if answer.Local || nodes[2].Status().Agreed.Cordons[0].Local {
			t.Error("an agent's cordon of itself stands for it alone although the mesh agreed")
		}
		change(t, nodes[0].debugMux(), "/debug/uncordon?target=v2", "", &answer)
		await(t, "it is used again", 3*time.Second, usable(3))
		if w := change(t, nodes[0].debugMux(), "/debug/uncordon?target=v2", "", nil); w.Code != http.StatusConflict {
			t.Errorf("lifted twice: %d %s", w.Code, w.Body)
		}
	})
}

func TestAgentCordonsItselfWithoutAQuorum(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		config := r.config("a", "e")
		config.Data, config.BootstrapExpect = t.TempDir(), 3
		n, stop := r.run(config)
		peerConfig := r.config("b")
		peerConfig.Mesh.Join = []string{n.QUICAddr()}
		peer, _ := r.run(peerConfig)
		await(t, "the peer is ready", 10*time.Second, peer.Ready)
		var answer CordonAnswer
		done := make(chan struct{})
		go func() {
			defer close(done)
			change(t, n.debugMux(), "/debug/cordon?target=a&reason=broken", "", &answer)
		}()
		await(t, "it takes effect at once", time.Second, func() bool { return n.UsableEngines() == 0 })
		await(t, "the peer hears of it", 2*time.Second, func() bool { return peer.UsableEngines() == 0 })
		<-done
		if !answer.Local || !strings.Contains(answer.Note, "no quorum") {
			t.Errorf("got %+v", answer)
		}
		stop()
		time.Sleep(5 * time.Second)
		again, _ := r.run(config)
		time.Sleep(3 * time.Second)
		if c := again.Status().Agreed.Cordons; len(c) != 1 || c[0].Agent != "a" || c[0].Reason != "broken" || !c[0].Local || again.UsableEngines() != 0 {
			t.Errorf("after a restart: %+v, %d usable engines", c, again.UsableEngines())
		}
		if w := change(t, again.debugMux(), "/debug/cordon?target=b", "", nil); w.Code != http.StatusServiceUnavailable {
			t.Errorf("another agent's, without quorum: %d %s", w.Code, w.Body)
		}
		change(t, again.debugMux(), "/debug/uncordon?target=a", "", &answer)
		await(t, "it is used again", 3*time.Second, func() bool { return again.UsableEngines() == 1 })
	})
}

func TestPolicyThatThisVersionCannotReadIsNotInForce(t *testing.T) {
	r := newRig(t)
	c := r.config("a")
	c.PolicyText, c.Forward.Policy = "classes: [{name: file}]", forward.Policy{Classes: []forward.Class{{Name: "file"}}}
	n := r.node(c)
	newer := agreed.Policy{Text: "hedge: true", Index: 9}
	is := func(source string, index uint64, trouble bool) {
		t.Helper()
		p := n.Status().Agreed.Policy
		if p.Source != source || p.Index != index || (p.Trouble != "") != trouble {
			t.Errorf("in force %+v, want %s of index %d", p, source, index)
		}
	}
	is(SourceFile, 0, false)
	n.agreement.applyPolicy(&agreed.State{Policy: newer})
	is(SourceFile, 0, true)
	if notes := strings.Join(n.Status().Notes, "\n"); !strings.Contains(notes, "of index 9 cannot be read by this version: line 1") {
		t.Errorf("notes: %s", notes)
	}
	old := agreed.Policy{Text: batchPolicy, Index: 10}
	n.agreement.applyPolicy(&agreed.State{Policy: old})
	is(SourceAgreed, 10, false)
	newer.Index = 11
	n.agreement.applyPolicy(&agreed.State{Policy: newer, History: []agreed.Policy{{Text: "classes: []", Index: 2}, old, {Text: "queue_limit: 1", Index: 10}}})
	is(SourceAgreed, 10, true)
	if n.ingress.Policy().Classes[0].Name != "batch" {
		t.Errorf("it routes by %+v", n.ingress.Policy())
	}
	n.agreement.applyPolicy(&agreed.State{})
	is(SourceFile, 0, false)
	if n.ingress.Policy().Classes[0].Name != "file" {
		t.Errorf("without an agreed one it routes by %+v", n.ingress.Policy())
	}
}

func TestDryRunSaysWhatWouldChange(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		n, _ := r.run(r.config("a", "e"))
		await(t, "ready", 5*time.Second, n.Ready)
		for range 3 {
			chatWith(n)
		}
		var got TryAnswer
		change(t, n.debugMux(), "/debug/policy/try", batchPolicy, &got)
		if got.Decisions != 3 || len(got.Changes) != 3 || got.Changes[0].Would != (forward.Route{Class: "batch", Strategy: "load", Engine: "a/e"}) {
			t.Errorf("got %+v", got)
		}
		if change(t, n.debugMux(), "/debug/policy/try", "{}", &got); got.Decisions != 3 || len(got.Changes) != 0 {
			t.Errorf("of the policy in force: %+v", got)
		}
	})
}

func TestNoPageOfAnotherOriginChangesTheState(t *testing.T) {
	r := newRig(t)
	n := r.node(r.config("a"))
	for _, path := range []string{"policy", "policy/try", "policy/rollback", "cordon?target=a", "uncordon?target=a", "revoke?serial=1"} {
		q := httptest.NewRequest(http.MethodPost, "/debug/"+path, strings.NewReader("{}"))
		q.Header.Set("Origin", "http://elsewhere.example")
		w := httptest.NewRecorder()
		n.debugMux().ServeHTTP(w, q)
		if w.Code != http.StatusForbidden {
			t.Errorf("POST %s of another origin = %d", path, w.Code)
		}
	}
	if len(n.Status().Agreed.Cordons) > 0 {
		t.Error("it is cordoned")
	}
	start := time.Now()
	if w := change(t, n.debugMux(), "/debug/revoke?serial=ab:cd", "", nil); w.Code != http.StatusServiceUnavailable || time.Since(start) > time.Second {
		t.Errorf("without any data folder: %d %s after %v", w.Code, w.Body, time.Since(start))
	}
	if w := change(t, n.debugMux(), "/debug/revoke?serial=xyz", "", nil); w.Code != http.StatusBadRequest {
		t.Errorf("no serial: %d %s", w.Code, w.Body)
	}
}

func TestRevokedCertificateIsRefusedByAll(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		nodes, _, _ := r.voters(3)
		config := r.config("thief")
		config.Mesh.Join = []string{nodes[0].QUICAddr()}
		thief, _ := r.run(config)
		await(t, "it is ready", 10*time.Second, thief.Ready)
		var done ChangeAnswer
		change(t, nodes[1].debugMux(), "/debug/revoke?reason=stolen&serial="+config.Mesh.Identity.Serial(), "", &done)
		for _, n := range nodes {
			await(t, "it is refused", 5*time.Second, func() bool { p, _ := n.mesh.Peer("thief"); return !p.Connected })
		}
		if got := nodes[2].Status().Agreed.Revoked; len(got) != 1 || got[0].Reason != "stolen" {
			t.Errorf("shown as %+v", got)
		}
	})
}

func TestMetaIsReadBack(t *testing.T) {
	for _, a := range []agreed.Agent{{Name: "a"}, {Name: "a", HasState: true}, {Name: "a", RaftID: strings.Repeat("f", 32), Expect: 3, HasState: true}} {
		b := encodeMeta(a)
		if got := parseMeta("a", b); got != a {
			t.Errorf("got %+v, want %+v", got, a)
		}
		if got := parseMeta("a", append(appendPart(nil, 99, []byte("newer")), b...)); got != a {
			t.Errorf("with a part that is not known: got %+v, want %+v", got, a)
		}
	}
}

func FuzzParts(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		err := eachPart(b, func(tag byte, body []byte) { again = appendPart(again, tag, body) })
		if err == nil && parseMeta("a", again) != parseMeta("a", b) {
			t.Errorf("%x is read in another way than %x", again, b)
		}
	})
}

func TestReadyWaitsForTheStateOfPeersButNotForLong(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		// One that says that it has a state and gives it to nobody.
		owner := r.only(r.config("owner", "e"), func(n *Node, ctx context.Context) error { return n.teller.Run(ctx) })
		if err := owner.mesh.SetMeta(encodeMeta(agreed.Agent{HasState: true})); err != nil {
			t.Fatal(err)
		}
		config := r.config("late")
		config.Mesh.Join = []string{owner.QUICAddr()}
		late, _ := r.run(config)
		await(t, "it knows the mesh", 10*time.Second, func() bool { return late.mesh.Settled() && late.UsableEngines() == 1 })
		start := time.Now()
		if w := get(late.debugMux(), "/readyz", nil); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "agreed state") {
			t.Errorf("readyz: %d %s", w.Code, w.Body)
		}
		await(t, "it waits no longer", catchUpLimit+time.Second, late.Ready)
		if took := time.Since(start); took < catchUpLimit-time.Second {
			t.Errorf("it waited for %v", took)
		}
	})
}
