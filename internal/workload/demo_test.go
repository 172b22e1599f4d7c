package workload

import "testing"

// TestDemoRewardsPrefixRouting is the claim of DemoWorkload's comment: at the KV size it suggests, overlap routing
// serves at least twice round robin's share of prompt tokens from cache, in a model of the engines.
func TestDemoRewardsPrefixRouting(t *testing.T) {
	for seed := range uint64(3) {
		w, err := DemoWorkload(seed, 1)
		if err != nil {
			t.Fatal(err)
		}
		ideal := simulate(&w, 1, 0, inTurn)
		robin := simulate(&w, 4, DemoKVTokens, inTurn)
		mesh := simulate(&w, 4, DemoKVTokens, byOverlap)
		t.Logf("seed %d: %d requests, mean %d B: ideal %.3f; round robin %.3f, TTFT %.2f s, %.0f s; overlap %.3f, %.2f s, %.0f s",
			seed, w.Requests(), ideal.bytes/w.Requests(), ideal.reuse(),
			robin.reuse(), summarize(robin.ttft).Mean, robin.now.Seconds(),
			mesh.reuse(), summarize(mesh.ttft).Mean, mesh.now.Seconds())
		if mesh.reuse() < 2*robin.reuse() {
			t.Errorf("seed %d: overlap routing reuses %.3f, round robin %.3f: less than twice", seed, mesh.reuse(), robin.reuse())
		}
		if robin.now.Seconds() > 36 {
			t.Errorf("seed %d: round robin takes %v, more than a demo's viewer waits", seed, robin.now)
		}
		if n := w.Requests(); n < 300 || n > 450 {
			t.Errorf("seed %d: %d requests, want 300 to 450", seed, n)
		}
		if ideal.longest > 48<<10 {
			t.Errorf("seed %d: longest prompt has %d bytes", seed, ideal.longest)
		}
	}
}

func TestDemoScaleMultipliesRequestsNotTime(t *testing.T) {
	one, err := DemoWorkload(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	half, err := DemoWorkload(1, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := half.Requests(), one.Requests()/2; got < want-30 || got > want+30 {
		t.Errorf("scale 0.5 has %d requests, want about %d", got, want)
	}
	last := half.Sessions[len(half.Sessions)-1].Start
	if last < demoSpan/2 || last > demoSpan {
		t.Errorf("scale 0.5 starts its last session at %v, want within %v", last, demoSpan)
	}
}

func TestDemoRejectsScaleOutOfRange(t *testing.T) {
	for _, scale := range []float64{0, -1, 1e9} {
		if _, err := DemoWorkload(1, scale); err == nil {
			t.Errorf("DemoWorkload(1, %v) has no error", scale)
		}
	}
}
