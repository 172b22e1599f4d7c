package engineagent

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

func TestMetricsOfTwoEnginesShareARegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := newClock()
	var agents []*Agent
	for _, id := range []engine.ID{"a/e0", "a/e1"} {
		agents = append(agents, upAgent(t, func(cfg *Config) { cfg.ID, cfg.Registerer, cfg.Now = id, reg, c.Now }))
	}
	serve(t, agents[0], c, Admission{Prompt: prompt(1, 5, 0, 5)}, time.Second,
		openai.Usage{PromptTokens: 5000, CachedTokens: 100, HasCached: true})
	agents[1].hear(answerRefused)
	_, _, _ = agents[1].Admit(Admission{})

	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	want := `
# HELP kvmesh_engineagent_up Whether the engine answers. Worry at 0.
# TYPE kvmesh_engineagent_up gauge
kvmesh_engineagent_up{engine="a/e0"} 1
kvmesh_engineagent_up{engine="a/e1"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kvmesh_engineagent_up"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"inflight", "waiting", "kv_usage_ratio", "prefill_tokens_per_second"} {
		if n, err := testutil.GatherAndCount(reg, "kvmesh_engineagent_"+name); n != 2 || err != nil {
			t.Errorf("%d samples of %s, error %v", n, name, err)
		}
	}
	for _, name := range []string{"requests_total", "overlap_error_tokens", "refusals_total"} {
		if n, err := testutil.GatherAndCount(reg, "kvmesh_engineagent_"+name); n != 1 || err != nil {
			t.Errorf("%d samples of %s, error %v", n, name, err)
		}
	}
}

func TestOneEngineCannotBeFollowedTwice(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := testConfig(newFakeEngine())
	c.Registerer = reg
	newAgent(t, c)
	if _, err := New(c); err == nil {
		t.Error("the second agent of one engine has no error")
	}
}
