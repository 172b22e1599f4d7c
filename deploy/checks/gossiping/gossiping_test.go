package main

import (
	"errors"
	"testing"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
)

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
	got := r.failedWithout([]*host{{hosts: &hosts{}, number: 3}})
	if len(got) != 2 || got[0].engine != "" || got[1].engine != "h1/engine0" {
		t.Errorf("left are %v, want the two that did not begin at h3", got)
	}
}
