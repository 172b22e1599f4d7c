package simcluster

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestThreeAgentsFindEachOtherAndAreReady(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		took := c.Whole(wholeWithin)
		t.Logf("whole after %v", took)
		for i := range 3 {
			for j := range 3 {
				want := "fresh"
				if i == j {
					want = "own"
				}
				if got := c.StateOf(i, j); got != want {
					t.Errorf("%s sees %s as %q, want %q", Name(i), Name(j), got, want)
				}
			}
			for _, path := range []string{"/kvmesh/readyz", "/kvmesh/readyz?engine=1", "/kvmesh/healthz"} {
				if status, body, err := c.Get(t.Context(), i, path); err != nil || status != http.StatusOK {
					t.Errorf("GET %s of %s = %d %q, %v", path, Name(i), status, body, err)
				}
			}
			for _, note := range c.Status(i).Notes {
				if !strings.Contains(note, "tells no KV events") { // these engines were started without
					t.Errorf("note of %s: %q", Name(i), note)
				}
			}
		}
	})
}

func TestMeshRestsWithoutMissingAnything(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			for i := range 3 {
				for j := range 3 {
					if got := c.StateOf(i, j); i != j && got != "fresh" {
						t.Fatalf("%s sees %s as %q", Name(i), Name(j), got)
					}
				}
			}
		}
	})
}
