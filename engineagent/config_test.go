package engineagent

import (
	"net/url"
	"strings"
	"testing"

	"github.com/kvmesh/kvmesh/cachestate"
)

func TestEveryFaultOfAConfigIsReported(t *testing.T) {
	_, err := New(Config{
		ID: "e", URL: &url.URL{Scheme: "ftp"}, Kind: "tgi", CapacityTokens: -1, MaxRunning: -1, PollPeriod: -1,
		Geometry: cachestate.Geometry{Bits: 3, Hashes: 1},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"ID", "URL", "Kind", "CapacityTokens", "MaxRunning", "PollPeriod", "Geometry"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not in %q", field, err)
		}
	}
}

func TestEnginesOwnNameIsFound(t *testing.T) {
	a := upAgent(t, nil)
	cards, _ := parseModels([]byte(vllmModels))
	a.noteDescription("", newCatalogue(cards, map[string]string{"Qwen/Qwen3-32B": "qwen3"}), serverInfo{})
	for name, want := range map[string]string{"qwen3": "qwen", "default": "default", "other": "other"} {
		if got := a.OwnName(name); got != want {
			t.Errorf("own name of %q is %q, want %q", name, got, want)
		}
	}
}
