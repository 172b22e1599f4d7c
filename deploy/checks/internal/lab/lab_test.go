package lab

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

func TestMeshSaysWhatAgentsLack(t *testing.T) {
	tests := []struct {
		name, page string
		want       string // empty when the agent lacks nothing
	}{
		{"whole", `{"ready":true,"engines":[{"engine":"a/sim","state":"own","models":["m"],"load_age_s":0.2}]}`, ""},
		{"not ready", `{"engines":[{"engine":"a/sim","state":"fresh","models":["m"]}]}`, "agent a: is not ready"},
		{"nothing known", `{"ready":true}`, "agent a: does not know a/sim"},
		{
			"no load", `{"ready":true,"engines":[{"engine":"a/sim","state":"fresh","models":["m"],"load_age_s":-1}]}`,
			`agent a: sees a/sim as "fresh", of models [m], its load -1.0 s old`,
		},
		{
			"down", `{"engines":[{"engine":"a/sim","state":"down","models":["m"]}]}`,
			`agent a: is not ready, sees a/sim as "down", of models [m], its load 0.0 s old`,
		},
		{
			"too many", `{"ready":true,"engines":[{"engine":"a/sim","state":"own","models":["m"]},{"engine":"x/sim"}]}`,
			"agent a: knows 2 engines of 1",
		},
		{"no page", `{`, "agent a does not answer: read 127.0.0.1:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(tt.page)) }))
			defer s.Close()
			m := &Mesh{ctx: t.Context(), Agents: []*Agent{{Name: "a", Debug: s.Listener.Addr().String()}}}
			got := strings.Join(m.lacking(), "; ")
			if (tt.want == "") != (got == "") || !strings.HasPrefix(got, tt.want) {
				t.Errorf("lacking = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestMeshDoesNotWaitForWhatHasEnded(t *testing.T) {
	h := &check.Harness{Bin: "sh"}
	a := &Agent{Name: "a"}
	m := &Mesh{h: h, ctx: t.Context(), Agents: []*Agent{a}}
	for _, p := range []struct {
		process **check.Process
		name    string
		script  string
	}{{&a.EngineProcess, "engine-a", "sleep 60"}, {&a.Process, "agent-a", "echo address already in use >&2; exit 1"}} {
		var err error
		if *p.process, err = h.Start(t.Context(), t.TempDir(), p.name, "-c", p.script); err != nil {
			t.Fatal(err)
		}
		defer (*p.process).Kill()
	}
	err := m.AwaitWhole(time.Minute)
	if want := `agent-a has ended, its log with "address already in use"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("AwaitWhole = %v, want %s", err, want)
	}
}
