package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/simscale"
)

func TestMadeUpChangesComeAtTheirRateAndVersionsKnowWhatTheyLack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := newBenchSource(engine.MakeID("a", "e"), 1, start)
		first := s.Publish()[0]
		time.Sleep(time.Second)
		s.setRate(10, time.Now())
		time.Sleep(999 * time.Millisecond)
		second := s.Publish()[0]
		time.Sleep(2 * time.Second)
		s.setRate(0, time.Now())
		third := s.Publish()[0]
		if first.Keys != benchKeys || second.Keys != benchKeys+1 || third.Keys != benchKeys+1 {
			t.Errorf("%d, %d and %d keys, want %d and one more while the number of changes is odd", first.Keys, second.Keys, third.Keys, benchKeys)
		}
		if n := len(third.Set) + len(third.Clear); n < 70 || n > 100 {
			t.Errorf("20 changes flip %d bits, want about four each", n)
		}
		at := func(d time.Duration) int64 { return start.Add(d).UnixNano() }
		want := []benchVersion{
			{Version: 0, Lacks: at(0)},
			{Version: first.To, Lacks: at(1100 * time.Millisecond)},
			{Version: second.To, Lacks: at(2 * time.Second)},
			{Version: third.To, Lacks: never},
		}
		if diff := cmp.Diff(want, s.takeVersions()); diff != "" {
			t.Errorf("versions (-want +got):\n%s", diff)
		}
		if got := s.takeVersions(); !cmp.Equal(got, want[3:]) {
			t.Errorf("versions taken again = %v, want the one that stands", got)
		}
	})
}

func TestMadeUpKeysDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBenchSource(engine.MakeID("a", "e"), 1, time.Now())
		s.setRate(1000, time.Now())
		for range 100 {
			time.Sleep(time.Second)
			s.Publish()
		}
		if len(s.keys) > 2*benchKeys+1000 || s.digest.Fill() > 0.25 {
			t.Errorf("%d keys are kept, fill %.2f", len(s.keys), s.digest.Fill())
		}
	})
}

func TestStalenessIsTheAgeOfTheOldestChangeThatIsMissing(t *testing.T) {
	at := func(d time.Duration) int64 { return int64(d) }
	r := benchRun{
		versions: map[string][]benchVersion{"a": {{Version: 1, Lacks: never}, {Version: 1, Lacks: at(time.Second)}, {Version: 2, Lacks: at(4 * time.Second)}}},
		end: []benchMark{{Samples: []benchSample{
			{Time: at(3 * time.Second), Agent: "a", Version: 1, LoadAge: 1},
			{Time: at(3 * time.Second), Agent: "a", Version: 2, LoadAge: 3},
			{Time: at(3 * time.Second), Agent: "a", Version: 0},
		}}},
	}
	stale, loads, unknown := r.ages()
	if stale != (benchSpread{Mean: 1, P50: 2, P99: 2, Max: 2}) {
		t.Errorf("staleness = %+v, want 2 s and 0", stale)
	}
	if loads.Max != 3 || unknown != 1 {
		t.Errorf("oldest load %v, %d unknown; want 3 and 1", loads.Max, unknown)
	}
}

func TestCostsAreRatesOfEachAgent(t *testing.T) {
	mark := func(seconds, cpu, quic, gossip, feed float64) benchMark {
		return benchMark{Time: int64(seconds * 1e9), Counters: map[string]float64{
			"cpu": cpu, "wire quic in": quic, "wire gossip in": gossip, "payload feed in": feed, "packets quic in": 7 * seconds,
		}}
	}
	rest := benchRun{
		begin: []benchMark{mark(0, 1, 0, 0, 0), mark(0, 1, 0, 0, 0)},
		end:   []benchMark{mark(2, 1.2, 200, 20, 100), mark(4, 2.2, 400, 40, 0)},
	}
	c := rest.cost()
	if got := c.CPU; got.Max < 0.299 || got.Max > 0.301 {
		t.Errorf("CPU = %+v, want at most 0.3", got)
	}
	if c.BytesIn["wire"].Mean != 110 || c.BytesIn["payload feed"].Max != 50 || c.PacketsIn.Mean != 7 {
		t.Errorf("bytes in = %+v, packets in = %+v", c.BytesIn, c.PacketsIn)
	}
	for name := range c.BytesIn {
		if strings.HasPrefix(name, "packets") {
			t.Errorf("%s stands among the bytes", name)
		}
	}
	probed := benchRun{
		begin: []benchMark{mark(4, 1.2, 0, 0, 0), mark(4, 2.2, 0, 0, 0)},
		end:   []benchMark{mark(5, 1.4, 0, 0, 0), mark(5, 2.6, 0, 0, 0)},
	}
	probed.end[0].Probes, probed.end[1].Missed = []float64{0.001, 0.003, 0.002, 0.004}, 1
	p := probed.probes(rest)
	if p.Probes != 4 || p.Missed != 1 || p.RoundTrip.P50 != 0.003 || p.CPU < 0.0499 || p.CPU > 0.0501 {
		t.Errorf("probes = %+v, want 4 and one missed, 0.2 s of CPU in all", p)
	}
}

func TestTableOfAModelHasNoCPU(t *testing.T) {
	m := simscale.Result{
		BytesIn: map[string]float64{"wire": 55_000, "feed": 41_000}, PacketsIn: 256, Memory: []simscale.Memory{{After: 300, RSS: 50 << 20}},
	}
	r := benchResult{Agents: 64, Simulated: true, Changing: modelCost(&m), Memory: m.Memory, Connections: 3 << 20}
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{"64 simulated agents", "55.00", "in: feed", "256.00", "after   300 s:   50.0 MiB, and 3.0 MiB"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "CPU") || strings.Contains(out.String(), "at rest") {
		t.Errorf("what was not measured is shown:\n%s", &out)
	}
}

func TestBenchBoundsAreAllReported(t *testing.T) {
	c := benchMeshCmd{Agents: 1, Changes: -1, Probes: 1001, Hour: true}
	err := c.validate()
	for _, want := range []string{"agents", "changes", "probes", "for", "idle", "hour"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported: %v", want, err)
		}
	}
	c = benchMeshCmd{Agents: 1000, Changes: 5000, For: time.Second, Idle: time.Second}
	for simulated, want := range map[bool]string{false: "agents (1000)", true: "Changes (5000)"} {
		c.Simulated = simulated
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("simulated %t: %s is not reported: %v", simulated, want, err)
		}
	}
}
