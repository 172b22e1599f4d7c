package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
)

// changes are what a server was asked to change.
type changes struct {
	mu  sync.Mutex
	all []string
}

func (c *changes) add(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, s)
}

// take returns the changes since the last call.
func (c *changes) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := strings.Join(c.all, "\n")
	c.all = nil
	return all
}

// agreedServer stands in for an agent of a mesh that has agreed on things. It keeps what it is asked to change.
func agreedServer(t *testing.T, asked *changes) (addr string) {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old := node.AgreedPolicy{Index: 7, Author: "ann@host", Time: at, Text: "classes: []\n"}
	now := node.AgreedPolicy{Index: 12, Author: "bob@host", Time: at.Add(time.Hour), Text: "classes:\n  - name: a\n"}
	status := exampleStatus()
	status.Agreed = node.AgreedStatus{
		Role: "voter", Leader: "a2", Quorum: true, Index: 14,
		Policy: node.PolicyStatus{Source: node.SourceAgreed, Index: 12, Author: "bob@host", Time: now.Time, Classes: 1},
		Members: []node.MemberStatus{
			{Agent: "a1", RaftID: "aa", Voter: true, Here: true}, {Agent: "a2", RaftID: "bb", Voter: true, Leader: true}, {Agent: "a3", RaftID: "cc"},
		},
		Cordons: []node.CordonStatus{{Engine: "a1/g0", Reason: "upgrade", Author: "ann@host", Since: at, Expiry: at.Add(time.Hour), Local: true}},
		Revoked: []node.RevokedStatus{{Serial: "0a", Reason: "stolen"}},
	}
	mux := http.NewServeMux()
	answer := func(pattern string, value func() any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if r.Method == http.MethodPost {
				q := r.URL.Query()
				if !strings.Contains(q.Get("author"), "@") {
					t.Errorf("%s has the author %q", r.URL, q.Get("author"))
				}
				q.Del("author")
				asked.add(fmt.Sprintf("%s?%s %s", r.URL.Path, q.Encode(), body))
			}
			_ = json.NewEncoder(w).Encode(value())
		})
	}
	answer("GET /debug/policy", func() any {
		return node.PolicyAnswer{PolicyStatus: status.Agreed.Policy, Text: now.Text, History: []node.AgreedPolicy{now, old}}
	})
	answer("POST /debug/policy", func() any { return node.ChangeAnswer{Index: 20} })
	answer("POST /debug/policy/rollback", func() any { return node.ChangeAnswer{Index: 21} })
	answer("POST /debug/policy/try", func() any {
		return node.TryAnswer{Decisions: 9, Unsure: 1, Changes: []node.TriedChange{
			{Time: at, ID: "r1", Model: "m", Was: forward.Route{Class: "default", Strategy: "auto", Engine: "a/e"}, Would: forward.Route{Class: "a", Strategy: "auto", Engine: "b/e"}},
			{Time: at, ID: "r2", Model: "m", Was: forward.Route{Class: "a", Strategy: "auto", Engine: "a/e"}, Would: forward.Route{Class: "a", Strategy: "session"}},
		}}
	})
	answer("POST /debug/cordon", func() any { return node.CordonAnswer{Local: true, Note: "only this agent knows"} })
	answer("POST /debug/uncordon", func() any { return node.CordonAnswer{Index: 22} })
	answer("POST /debug/revoke", func() any { return node.ChangeAnswer{Index: 23} })
	answer("GET /debug/mesh.json", func() any { return status })
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func TestCommandsForTheAgreedState(t *testing.T) {
	var asked changes
	addr := "--addr=" + agreedServer(t, &asked)
	plain := file(t, "p.yaml", "classes:\n  - name: b\n")
	edited := file(t, "e.yaml", "# kvmesh policy of index 7, by ann@host at 2026-01-02T03:04:05Z\nclasses:\n  - name: b\n")
	empty := file(t, "empty.yaml", "")
	for _, tt := range []struct {
		args []string
		want []string // in what is printed
		ask  string   // "" for nothing that changes
	}{
		{[]string{"policy", "get", addr}, []string{"# kvmesh policy of index 12, by bob@host at 2026-01-02T04:04:05Z\nclasses:\n  - name: a\n"}, ""},
		{[]string{"policy", "history", addr}, []string{"12     2026-01-02T04:04:05Z  bob@host  2      in force\n", "\n7      2026-01-02T03:04:05Z  ann@host  1      \n"}, ""},
		{[]string{"policy", "diff", addr, edited}, []string{"@@ line 1 @@\n classes:\n-  - name: a\n+  - name: b\n"}, ""},
		{[]string{"policy", "validate", plain}, []string{"a good policy with 1 classes"}, ""},
		{[]string{"policy", "apply", addr, plain}, []string{"policy of index 20"}, "/debug/policy?based_on=12 classes:\n  - name: b\n"},
		{[]string{"policy", "apply", addr, edited}, []string{"policy of index 20"}, "/debug/policy?based_on=7 classes:\n  - name: b\n"},
		{[]string{"policy", "apply", addr, "--force", empty}, []string{"policy of index 20"}, "/debug/policy? {}\n"},
		{
			[]string{"policy", "apply", addr, "--dry-run", plain},
			[]string{
				"2 of the last 9 decisions of this agent would have been others (of 1 it cannot be said",
				"r1       m      default -> a  auto             a/e -> b/e\n", "r2       m      a             auto -> session  a/e -> ?\n",
			},
			"/debug/policy/try? classes:\n  - name: b\n",
		},
		{[]string{"policy", "rollback", addr}, []string{"policy of index 21"}, "/debug/policy/rollback? "},
		{[]string{"policy", "rollback", addr, "7"}, []string{"policy of index 21"}, "/debug/policy/rollback?to=7 "},
		{[]string{"cordon", addr, "a1", "--reason=new disk", "--for=1h"}, []string{"a1 is cordoned, for 1h0m0s\nonly this agent knows\n"}, "/debug/cordon?for=1h0m0s&reason=new+disk&target=a1 "},
		{[]string{"uncordon", addr, "a1"}, []string{"a1 is cordoned no more"}, "/debug/uncordon?target=a1 "},
		{[]string{"revoke", addr, "0A", "--reason=stolen"}, []string{"revoked 0A on every agent"}, "/debug/revoke?reason=stolen&serial=0A "},
		{
			[]string{"raft", "members", addr},
			[]string{
				"agreed state: index 14, this agent is a voter, leader a2\npolicy: agreed, 1 classes, index 12, by bob@host",
				"cordoned: a1/g0, upgrade, by ann@host since 2026-01-02T03:04:05Z until 2026-01-02T04:04:05Z (this agent's own)\nrevoked: 0a stolen\n",
				"a1      voter   true     aa\na2      leader  false    bb\na3      joins   false    cc\n",
			},
			"",
		},
	} {
		r := kvmesh(t, nil, tt.args...)
		if r.code != 0 {
			t.Errorf("%q: exit code %d, %s", tt.args, r.code, r.errout)
		}
		contains(t, r.out, tt.want...)
		if got := asked.take(); got != tt.ask {
			t.Errorf("%q asked %q, want %q", tt.args, got, tt.ask)
		}
	}
	if r := kvmesh(t, nil, "policy", "validate", file(t, "bad.yaml", "classes:\n  - name: a\n    probes: 99\n")); r.code != 1 || !strings.Contains(r.errout, "bad.yaml: line 3, column 13: policy class 1") {
		t.Errorf("a bad policy: %d %s", r.code, r.errout)
	}
	if r := kvmesh(t, nil, "raft", "recover", "--data", t.TempDir(), "--name", "a"); r.code != 1 || !strings.Contains(r.errout, "there is no agreed state in") {
		t.Errorf("recovery of nothing: %d %s", r.code, r.errout)
	}
}

func TestDrainShowsProgressUntilNothingRuns(t *testing.T) {
	s := exampleStatus()
	for _, tt := range []struct {
		target, state string
		inFlight      int
		want          string
		done          bool
	}{
		{"a1/g0", "own", 4, "a1/g0 is own, 4 requests run", false},
		{"a1/g0", "cordoned", 0, "a1/g0 is cordoned, 0 requests run", false},
		{"a1", "draining", 4, "a1/g0 is draining, 4 requests run", false},
		{"a1", "draining", 0, "a1/g0 is draining, 0 requests run: drained", true},
		{"a1", "unreachable", 4, "a1/g0 is unreachable, 4 requests run: drained", true},
		{"a9", "", 0, "no engine of a9 is known: drained", true},
	} {
		s.Engines[0].State, s.Engines[0].InFlight = tt.state, tt.inFlight
		if words, done := drainProgress(s, tt.target); words != tt.want || done != tt.done {
			t.Errorf("%+v: %q, %t", tt, words, done)
		}
	}
}
