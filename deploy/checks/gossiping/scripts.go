package main

import (
	"context"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// script is a script of internal/simcluster in its long form, and what bounds its figures. Each fails by itself when what it
// expects does not come true: a client error, a ghost, a stale digest that was used.
type script struct {
	name   string
	bounds map[string]float64 // at most, by figure
}

func scripts() []script {
	return []script{
		{"loss", map[string]float64{"loss_digests_equal": 10, "loss_client_errors": 0}},
		{"halves", map[string]float64{"halves_healed_views_equal": 15, "halves_client_errors": 0}},
		{"lost", map[string]float64{"lost_back_views_equal": 15, "lost_client_errors": 0}},
		{"restarts", map[string]float64{
			"restarts_client_errors": 0, "restarts_overclaimed": 256, "restarts_goroutines_more": 16, "restarts_heap_more": 4,
		}},
		{"flapping", map[string]float64{"flapping_steady_views_equal": 5, "flapping_client_errors": 0}},
		{"joining", map[string]float64{"joining_seeded_views_equal": 20, "joining_moved_views_equal": 5, "joining_newcomer_views_equal": 60}},
		{"twin", map[string]float64{"twin_twins_refused": 15, "twin_client_errors": 0}},
		{"upgrade", map[string]float64{"upgrade_upgraded_views_equal": 5, "upgrade_client_errors": 0}},
		{"bulk", map[string]float64{"bulk_beside_first_bytes_p95": 600, "bulk_client_errors": 0}},
	}
}

// checkScripts plays whole clusters in fake time.
func checkScripts(ctx context.Context, h *check.Harness) error {
	for _, s := range scripts() {
		tests := check.Tests{
			Package: "./internal/simcluster", Run: "^TestScripts$/^" + s.name + "$", Long: true, Prefix: s.name + "_", Most: s.bounds,
		}
		if err := tests.Measure(ctx, h); err != nil {
			h.Figures.Broken("script_"+s.name, err)
		}
	}
	return nil
}
