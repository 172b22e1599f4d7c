package simcluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
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

var lexicon = strings.Fields("the of and to in is that for it was on are as with his they at be this from have or by one " +
	"had not but what all were when we there can an your which their said if do will each about how up out them then she " +
	"many some so these would other into has more her two like him see time could no make than first been its who now")

// text returns n bytes of words that no other seed gives.
func text(seed uint64, n int) string {
	rng := rand.New(rand.NewPCG(seed, 7))
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(lexicon[rng.IntN(len(lexicon))])
		b.WriteByte(' ')
	}
	return b.String()[:n]
}

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

// faultOf says what is wrong with an answer; "" when it is whole.
func faultOf(a *Answer) string {
	if a.Status != http.StatusOK {
		return fmt.Sprintf("status %d: %s", a.Status, a.Body)
	}
	if !bytes.HasSuffix(a.Body, []byte("data: [DONE]\n\n")) || bytes.Contains(a.Body, []byte(`{"error":`)) {
		return fmt.Sprintf("by %s (%s), not whole, ends in: %s", a.Engine(), a.Header.Get("X-Kvmesh-Reason"), a.Body[max(0, len(a.Body)-300):])
	}
	return ""
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
