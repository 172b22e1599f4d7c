package simulate

import (
	"strings"
	"testing"
	"time"
)

// TestRecordedIsWhatIsPlayed: a real mesh that is sent these requests gets the simulator's, block by block.
func TestRecordedIsWhatIsPlayed(t *testing.T) {
	c := DefaultConfig()
	c.Engines, c.Span, c.WarmUp = 8, 100*time.Second, time.Second
	trace, err := Recorded(c)
	if err != nil {
		t.Fatal(err)
	}
	traffic, err := trafficOf(&c)
	if err != nil {
		t.Fatal(err)
	}
	p := traffic.recorded
	if len(trace.Requests) != len(p.arrivals) || len(p.arrivals) < 100 {
		t.Fatalf("%d requests of %d", len(trace.Requests), len(p.arrivals))
	}
	copies := map[int32]bool{}
	for i := range trace.Requests {
		r, a := &trace.Requests[i], p.arrivals[i]
		k := &p.kinds[a.kind]
		copies[a.copy] = true
		if r.At != a.at || r.InputTokens != k.input || r.OutputTokens != k.output {
			t.Fatalf("request %d: %+v, arrival %+v of %+v", i, r, a, k)
		}
		var want []uint64
		for _, run := range k.runs {
			for id := range uint64(run.Count) {
				n, _ := p.block(k, run.First+id, a.copy)
				want = append(want, n)
			}
		}
		for id := range r.BlockIDs() {
			if len(want) == 0 || id != want[0] {
				t.Fatalf("request %d has block %d where %v are left", i, id, want)
			}
			want = want[1:]
		}
	}
	if len(copies) != 2 {
		t.Errorf("%d copies of the trace for 8 engines, want 2", len(copies))
	}
}

func TestOnlyRecordedTrafficIsWrittenOut(t *testing.T) {
	c := DefaultConfig()
	c.Workload = "sessions"
	if _, err := Recorded(c); err == nil || !strings.Contains(err.Error(), "no recorded traffic") {
		t.Errorf("got %v", err)
	}
}
