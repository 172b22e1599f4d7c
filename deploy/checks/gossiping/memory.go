package main

import (
	"context"
	"errors"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// growthBound is how much more memory an agent may have at the end of the hour than after its first third, as a share: what a
// collector leaves lying around differs from minute to minute.
const growthBound = 0.10

// checkMemory lets an agent hear all others for an hour, whose engines' keys change all the time.
func checkMemory(ctx context.Context, h *check.Harness) error {
	for _, x := range []struct {
		agents, changes string
		bound           float64 // MiB
	}{{"64", "100", 128}, {"1024", traceChanges, 512}} {
		r, err := bench(ctx, h, "--simulated", "--hour", "--agents", x.agents, "--changes", x.changes)
		if err != nil {
			return err
		}
		if len(r.Memory) < 6 {
			return errors.New("too few looks at the memory of the model")
		}
		third, last, most := r.Memory[len(r.Memory)/3].RSS, r.Memory[len(r.Memory)-1].RSS, 0.0
		for _, m := range r.Memory {
			most = max(most, m.RSS)
		}
		h.Figures.AtMost("rss_mib_"+x.agents+"_engines", (most+r.Connections)/mega, x.bound,
			"the most in an hour of %s key changes a second at each engine, simulated: %.1f, and %.1f for connections, which the model has not; %d looks", x.changes, most/mega, r.Connections/mega, len(r.Memory))
		h.Figures.AtMost("rss_growth_share_"+x.agents+"_engines", last/third-1, growthBound, "%.1f MiB after a third of the hour, %.1f at its end", third/mega, last/mega)
	}
	return nil
}
