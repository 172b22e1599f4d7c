package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
)

func simulated(t *testing.T, c Config) []Result {
	t.Helper()
	results, err := Run(t.Context(), c, func(string, float64) {})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func TestEqualSeedsGiveEqualResults(t *testing.T) {
	c := smallConfig(Policies()...)
	c.HeartbeatLoss, c.ProbeLoss, c.DigestLoss, c.Jitter = 0.2, 0.05, 0.1, 0.5
	c.SlowShare, c.FailRate, c.FailFor = 0.5, 60, 5*time.Second
	text := func(seed uint64) string {
		c.Seed = seed
		results := simulated(t, c)
		for i := range results {
			results[i].Wall = 0
		}
		b, err := json.Marshal(results)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := text(1)
	if again := text(1); again != first {
		t.Errorf("one seed, two results:\n%s\n%s", first, again)
	}
	if text(2) == first {
		t.Error("two seeds, one result")
	}
}

func TestEveryRequestIsServed(t *testing.T) {
	for _, workload := range []string{"conversation", "mixture", "sessions"} {
		c := smallConfig(Policies()...)
		c.Workload, c.WarmUp, c.Span = workload, time.Nanosecond, 20*time.Second
		c.CacheBlocks = 0
		results := simulated(t, c)
		for _, r := range results {
			// Of sessions, how many turns there are depends on how fast the ones before were answered.
			if few := results[0].Requests * 19 / 20; r.Requests < max(few, 50) || r.Failed > 0 || r.TTFTMean <= 0 {
				t.Errorf("%s: %s served %d requests of %d, %d failed, mean %v s", workload, r.Policy, r.Requests, results[0].Requests, r.Failed, r.TTFTMean)
			}
		}
	}
}

func TestKvmeshFindsWhatRoundRobinDoesNot(t *testing.T) {
	r := simulated(t, smallConfig("kvmesh", "round-robin", "oracle"))
	if r[0].HitRatio < 1.1*r[1].HitRatio || r[0].HitRatio < 0.9*r[2].HitRatio {
		t.Errorf("hit ratios: kvmesh %.3f, round robin %.3f, oracle %.3f", r[0].HitRatio, r[1].HitRatio, r[2].HitRatio)
	}
	if r[0].Probes == 0 || r[0].BytesIn == 0 {
		t.Errorf("%v probes a request, %v bytes a second", r[0].Probes, r[0].BytesIn)
	}
}

func TestDyingEnginesCostRequestsOnlyWhatHadBegun(t *testing.T) {
	c := smallConfig("kvmesh", "oracle", "session")
	c.Failures = []Failure{{Engine: 1, From: 20 * time.Second, To: 60 * time.Second}, {Engine: 2, From: 30 * time.Second, To: 50 * time.Second}}
	for _, r := range simulated(t, c) {
		if r.Failed > 10 || r.Requests < 200 {
			t.Errorf("%s: %d served, %d failed", r.Policy, r.Requests, r.Failed)
		}
	}
}

func TestLossesAreBorne(t *testing.T) {
	c := smallConfig("kvmesh")
	calm := simulated(t, c)[0]
	c.HeartbeatLoss, c.ProbeLoss, c.DigestLoss, c.Jitter = 0.3, 0.3, 0.3, 1
	rough := simulated(t, c)[0]
	if rough.Requests != calm.Requests || rough.TTFTMean > 2*calm.TTFTMean || rough.HitRatio < 0.8*calm.HitRatio {
		t.Errorf("with losses: %d requests, mean %.3f s, hits %.3f; without: %d, %.3f, %.3f",
			rough.Requests, rough.TTFTMean, rough.HitRatio, calm.Requests, calm.TTFTMean, calm.HitRatio)
	}
}

// The digest of each engine, with all that came and went, must be that of what is resident at the end, and the index what
// was published last.
func TestDigestsAreOfWhatIsResident(t *testing.T) {
	for _, name := range []string{"conversation", "sessions"} {
		c := smallConfig("kvmesh")
		c.Workload, c.CacheBlocks = name, 120
		if name == "sessions" {
			c.Span, c.WarmUp, c.CacheBlocks = 20*time.Second, time.Second, 2000
		}
		tr, err := trafficOf(&c)
		if err != nil {
			t.Fatal(err)
		}
		spec, _ := specOf("kvmesh")
		w := newWorld(&c, tr, spec)
		if err := w.run(context.Background(), func(float64) {}); err != nil {
			t.Fatal(err)
		}
		for _, n := range w.nodes {
			plain := cachestate.NewDigest(n.id, cachestate.TierGPU, n.life, c.Geometry)
			for b, i := range n.cache.at {
				for _, key := range w.keys.lying(b)[:n.cache.entries[i].advertised] {
					plain.Add(key)
				}
			}
			if len(n.cache.at) > 0 {
				plain.Add(w.root)
			}
			n.digest.Publish(w.clock())
			plain.Publish(w.clock())
			if got, want := n.digest.Version().Checksum, plain.Version().Checksum; got != want || len(n.cache.at) == 0 {
				t.Errorf("%s: engine %d: checksum %x with %d blocks; want %x", name, n.index, got, len(n.cache.at), want)
			}
		}
	}
}

func TestRunEndsWhenToldTo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, smallConfig("kvmesh"), func(string, float64) {}); err == nil {
		t.Error("a cancelled run ended without an error")
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		want string
		set  func(*Config)
	}{
		{"Engines (0)", func(c *Config) { c.Engines = 0 }},
		{"Ingresses (-1)", func(c *Config) { c.Ingresses = -1 }},
		{"Load (0)", func(c *Config) { c.Load = 0 }},
		{"HeartbeatLoss (1)", func(c *Config) { c.HeartbeatLoss = 1 }},
		{"SlowFactor (0)", func(c *Config) { c.SlowFactor = 0 }},
		{"failure of engine 9", func(c *Config) { c.Failures = []Failure{{Engine: 9, To: time.Second}} }},
		{`no policy "best"`, func(c *Config) { c.Policies = []string{"best"} }},
		{"Policies must name", func(c *Config) { c.Policies = nil }},
		{`no workload "chess"`, func(c *Config) { c.Workload = "chess" }},
		{`no shape "ten"`, func(c *Config) { c.Workload, c.Shape = "sessions", "ten" }},
		{"needs its trace", func(c *Config) { c.Workload, c.Trace = "synthetic", nil }},
		{"no recorded session", func(c *Config) { c.Workload = "coding-agent" }},
	} {
		config := smallConfig("oracle")
		c.set(&config)
		if _, err := Run(t.Context(), config, func(string, float64) {}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v; want one with %q", err, c.want)
		}
	}
}

func TestPlotNamesEveryPolicy(t *testing.T) {
	var out bytes.Buffer
	if err := WritePlot(&out, simulated(t, smallConfig("oracle", "kvmesh", "round-robin"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"<svg", "kvmesh", "round-robin", "prompt tokens from cache"} {
		if !strings.Contains(out.String(), name) {
			t.Errorf("the drawing has no %q", name)
		}
	}
}
