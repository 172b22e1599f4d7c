package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/forward"
)

func TestExplanationIsWritten(t *testing.T) {
	for _, tt := range []struct {
		e    forward.Explanation
		want string
	}{
		{forward.Explanation{Refused: "404: no such route"}, "refused  404: no such route\n"},
		{
			forward.Explanation{
				Route: "chat", Model: "m", Class: "default", Strategy: forward.StrategyAuto, PromptBytes: 4096, Keys: 9,
				Queued: "no: an engine can take it", Hedged: "no: there is no second candidate", Continued: "yes", Reason: "prefix", TieBreak: "same zone",
				Candidates: []forward.CandidateInfo{
					{Engine: "a/g0", State: "own", Score: 0.25, OverlapTokens: 900, NewSeconds: 0.125, QueuedSeconds: 0.0625, InFlight: 3},
				},
			},
			`model      m, by chat
class      default, strategy auto
prompt     4096 bytes, 9 keys
queued     no: an engine can take it
hedged     no: there is no second candidate
continued  yes
decision   a/g0, for prefix, same zone

ENGINE  STATE  SCORE    OVERLAP     NEW      QUEUED   IN FLIGHT
a/g0    own    0.250 s  900 tokens  0.125 s  0.062 s  3
`,
		},
	} {
		var b bytes.Buffer
		if err := writeExplanation(&b, &tt.e); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, b.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestRouteIsGuessed(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[]}`: "/v1/chat/completions", `{"prompt":"a"}`: "/v1/completions", `{"input":"a"}`: "/v1/responses",
		`{"messages":[],"prompt":"a"}`: "/v1/chat/completions", `nonsense`: "/v1/chat/completions",
	} {
		if got := guessRoute([]byte(body)); got != want {
			t.Errorf("%s: %s", body, got)
		}
	}
}
