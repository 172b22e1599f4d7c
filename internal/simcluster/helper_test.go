package simcluster

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// lan is a network like that of one rack.
const lan = 200 * time.Microsecond

// wholeWithin is how long agents on one network may take to find each other.
const wholeWithin = 10 * time.Second

// chat asks agent i and fails the test unless the answer is whole and good.
func chat(t *testing.T, c *Cluster, i int, body string) *Answer {
	t.Helper()
	a, err := c.Chat(t.Context(), i, body)
	if err != nil {
		t.Fatalf("chat with %s: %v", Name(i), err)
	}
	if fault := faultOf(a); fault != "" {
		t.Fatalf("chat with %s: %s", Name(i), fault)
	}
	return a
}

// overlap is the overlap in tokens that the answer's header states.
func overlap(t *testing.T, a *Answer) int {
	t.Helper()
	n, err := strconv.Atoi(a.Header.Get("X-Kvmesh-Overlap"))
	if err != nil {
		t.Fatalf("x-kvmesh-overlap: %v", err)
	}
	return n
}

// cached is the number of cached tokens that the engine reports in a stream's usage.
func cached(t *testing.T, a *Answer) int {
	t.Helper()
	for line := range strings.Lines(string(a.Body)) {
		var chunk struct {
			Usage *struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if ok && json.Unmarshal([]byte(data), &chunk) == nil && chunk.Usage != nil {
			return chunk.Usage.Details.Cached
		}
	}
	t.Fatalf("no usage in %.2000s", a.Body)
	return 0
}

// holder returns the number of the agent whose engine answered.
func holder(t *testing.T, c *Cluster, a *Answer) int {
	t.Helper()
	for i := range c.config.Agents {
		if a.Engine() == EngineID(i) {
			return i
		}
	}
	t.Fatalf("answered by %q", a.Engine())
	return -1
}

// served is how many requests each engine has taken.
func served(c *Cluster) []int64 {
	var out []int64
	for i := range c.config.Agents {
		out = append(out, c.Engine(i).Stats().Requests)
	}
	return out
}

// engineWith returns an engine func that changes the default.
func engineWith(change func(i int, c *simengine.Config)) func(int) simengine.Config {
	return func(i int) simengine.Config {
		c := DefaultEngine(i)
		change(i, &c)
		return c
	}
}

// attempted fails the test for every request that agent i took in between from and to, and for which it tried the engine
// beside agent j.
func attempted(t *testing.T, c *Cluster, i, j int, from, to time.Time) {
	t.Helper()
	events, err := c.Decisions(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, e := range events {
		if e.Time.Before(from) || e.Time.After(to) {
			continue
		}
		seen++
		for _, a := range e.Attempts {
			if string(a.Engine) == EngineID(j) {
				t.Errorf("%s tried %s %v after it should not: %+v", Name(i), a.Engine, e.Time.Sub(from), e.Attempts)
			}
		}
	}
	if seen == 0 {
		t.Errorf("%s took in no request between %v and %v", Name(i), from, to)
	}
}
