package engineagent

import (
	"net/url"
	"strings"
	"testing"

	"github.com/kvmesh/kvmesh/cachestate"
)

func TestEveryFaultOfAConfigIsReported(t *testing.T) {
	_, err := New(Config{
		ID: "e", URL: &url.URL{Scheme: "ftp"}, Kind: "tgi", CapacityTokens: -1, MaxRunning: -1, PrefillStep: -1, PollPeriod: -1,
		Geometry: cachestate.Geometry{Bits: 3, Hashes: 1},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"ID", "URL", "Kind", "CapacityTokens", "MaxRunning", "PrefillStep", "PollPeriod", "Geometry"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not in %q", field, err)
		}
	}
}
