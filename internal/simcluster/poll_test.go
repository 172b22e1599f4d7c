package simcluster

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
)

// withoutMetrics answers 500 for the metrics page while broken is set.
type withoutMetrics struct {
	http.RoundTripper
	broken *atomic.Bool
}

func (w withoutMetrics) RoundTrip(r *http.Request) (*http.Response, error) {
	if !w.broken.Load() || !strings.HasSuffix(r.URL.Path, "/metrics") {
		return w.RoundTripper.RoundTrip(r)
	}
	return &http.Response{
		StatusCode: http.StatusInternalServerError, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader("no metrics")), Request: r,
	}, nil
}

func TestMissingMetricsAreNoOutage(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	config := Config{Agents: 2, Delay: lan, Agent: func(_ int, n *node.Config) {
		n.PollEngines = withoutMetrics{n.PollEngines, &broken}
	}}
	Test(t, config, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin) // from the start without
		serve := func(when string) {
			for range 60 {
				time.Sleep(100 * time.Millisecond)
				for i := range 2 {
					if e, _ := c.EngineOf(0, i); e.State != "own" && e.State != "fresh" {
						t.Fatalf("%s: engine %d is %s", when, i, e.State)
					}
				}
			}
			f := &traffic{c: c}
			f.every(t, 50*time.Millisecond, time.Second, 500, 0, 1)
			whole(t, f.wait())
		}
		was, _ := c.EngineOf(0, 1)
		serve("without metrics")
		broken.Store(false)
		serve("with metrics")
		broken.Store(true)
		serve("without metrics again")
		if now, _ := c.EngineOf(0, 1); now.Generation != was.Generation {
			t.Errorf("generation %d became %d", was.Generation, now.Generation)
		}
		for i := range 2 {
			if n := served(c)[i]; n == 0 {
				t.Errorf("engine %d served nothing", i)
			}
		}
	})
}
