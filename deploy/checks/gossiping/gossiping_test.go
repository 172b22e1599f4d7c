package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
)

func TestFiguresOfAScriptAreBounded(t *testing.T) {
	s := script{"loss", map[string]float64{"loss_equal": 10, "loss_errors": 0}}
	tests := []struct {
		name, out string
		failed    []string
		broken    bool
	}{
		{"kept", "    play.go:28: figure loss_equal 9.5 s\n    play.go:28: figure loss_errors 0 times\nok\n", nil, false},
		{"too late", "figure loss_equal 10.5 s\nfigure loss_errors 0 times\n", []string{"loss_equal"}, false},
		{"one is missing", "figure loss_equal 9 s\n", nil, true},
		{"no number", "figure loss_equal soon s\n", nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			h := &check.Harness{Figures: check.NewFigures(&out)}
			if err := s.report(h, tt.out); (err != nil) != tt.broken {
				t.Errorf("error %v, want one: %v", err, tt.broken)
			}
			if diff := cmp.Diff(tt.failed, h.Figures.Failed()); diff != "" {
				t.Errorf("failed (-want +got):\n%s%s", diff, out.String())
			}
		})
	}
}

func TestNoteMustSayEveryWord(t *testing.T) {
	s := meshStatus{node.Status{Notes: []string{"peer h2 fails at 10.77.0.2:7081/udp", "peer h3 is slow"}}}
	if !s.notes("h2", "7081") || s.notes("h3", "7081") || s.notes("h2", "7082") {
		t.Errorf("wrong notes were found in %q", s.Notes)
	}
}

func TestEngineIsNamedWhereverItStands(t *testing.T) {
	for name, e := range map[string]forward.Event{
		"chosen":    {Engine: "h1/engine0"},
		"tried":     {Engine: "h2/engine0", Attempts: []forward.Attempt{{Engine: "h1/engine0"}}},
		"candidate": {Engine: "h2/engine0", Candidates: []forward.CandidateInfo{{Engine: "h1/engine0", State: "suspect"}}},
	} {
		chosen, weighed := names(&e, "h1/engine0")
		if chosen != (name != "candidate") || (weighed == "suspect") != (name == "candidate") {
			t.Errorf("%s: chosen %v, weighed %q", name, chosen, weighed)
		}
		if chosen, weighed := names(&e, "h3/engine0"); chosen || weighed != "" {
			t.Errorf("%s: another was found", name)
		}
	}
}

func TestFailuresAreExcusedWhereTheAnswerHadBegunAtALostAgent(t *testing.T) {
	broke := errors.New("broke")
	r := trafficResult{failed: []failedRequest{{"h3/engine0", broke}, {"", broke}, {"h1/engine0", broke}}}
	got := r.failedWithout([]*host{{number: 3}})
	if len(got) != 2 || got[0].engine != "" || got[1].engine != "h1/engine0" {
		t.Errorf("left are %v, want the two that did not begin at h3", got)
	}
}
