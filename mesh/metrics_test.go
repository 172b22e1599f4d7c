package mesh

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func mustMetrics(t *testing.T) *metrics {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// counter returns the value of the series of that metric with one label.
func counter(t *testing.T, reg *prometheus.Registry, name, label, value string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			for _, l := range s.GetLabel() {
				if f.GetName() == name && l.GetName() == label && l.GetValue() == value {
					return s.GetCounter().GetValue() + s.GetGauge().GetValue()
				}
			}
		}
	}
	return 0
}

func TestMetricsAreWellNamedAndCount(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		problems, err := testutil.GatherAndLint(a.reg)
		if err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		if n := counter(t, a.reg, "kvmesh_mesh_peers", "state", "alive"); n != 2 {
			t.Errorf("%v peers alive, want 2", n)
		}
		for _, channel := range []string{"packet", "gossip"} {
			if n := counter(t, a.reg, "kvmesh_mesh_bytes_total", "channel", channel); n == 0 {
				t.Errorf("no bytes on %s", channel)
			}
		}
	})
}
