package engineagent

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// direct carries requests to a handler without a network.
type direct struct{ http.Handler }

// RoundTrip implements http.RoundTripper.
func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	d.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// simAgent returns an agent whose engine is a simulated one, without polls.
func simAgent(t *testing.T, change func(*simengine.Config)) *Agent {
	t.Helper()
	cfg := simengine.DefaultConfig()
	cfg.Seed = 1
	change(&cfg)
	e, err := simengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := testConfig(newFakeEngine())
	c.Transport = direct{e.Handler()}
	return newAgent(t, c)
}
