package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/simulate"
)

func TestFailuresAreReadFromTheCommandLine(t *testing.T) {
	got, err := parseFailure("3@400s-7m40s")
	if want := (simulate.Failure{Engine: 3, From: 400 * time.Second, To: 460 * time.Second}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "3", "3@", "3@4s", "x@1s-2s", "3@1-2", "3@1s-"} {
		if _, err := parseFailure(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestSimulationTableHasRatiosToTheFirst(t *testing.T) {
	var out bytes.Buffer
	printSimulation(&out, []simulate.Result{
		{Policy: "oracle", Workload: "conversation", HitRatio: 0.4, TTFTMean: 2, FollowUpRatio: 0.9},
		{Policy: "kvmesh", HitRatio: 0.3, TTFTMean: 3, FollowUpRatio: 0.8},
	})
	for _, want := range []string{"40.0 %", "× 0.750", "3.000 s", "× 1.500", "kvmesh 0.800"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestSimulateReadsNoTraceForGeneratedTraffic(t *testing.T) {
	c := simulateCmd{Workload: "sessions", Trace: "/nowhere"}
	if _, err := c.config(); err != nil {
		t.Error(err)
	}
	c.Workload = "synthetic"
	if _, err := c.config(); err == nil {
		t.Error("a trace that is not there was read")
	}
}
