package node

import (
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

func TestResizerSteps(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	both := agreed.GeometryChange{Next: &agreed.Geometry{Bits: 1 << 18, Hashes: 5}, Phase: agreed.PhaseBoth, Since: start}
	switched := both
	switched.Phase = agreed.PhaseSwitched
	rested := agreed.GeometryChange{Since: start.Add(-restFor)}
	missing := []engine.ID{"a/e"}
	always := func(s digestsSeen) func(time.Duration) digestsSeen {
		return func(time.Duration) digestsSeen { return s }
	}
	for _, tt := range []struct {
		name   string
		change agreed.GeometryChange
		seen   func(after time.Duration) digestsSeen
		want   agreed.Kind
		after  time.Duration // 0: never
	}{
		{"digests have room", agreed.GeometryChange{}, always(digestsSeen{fill: 0.39}), "", 0},
		{"one is full", agreed.GeometryChange{}, always(digestsSeen{fill: 0.41}), agreed.KindGeometry, time.Minute},
		{"one is full now and then", agreed.GeometryChange{}, func(after time.Duration) digestsSeen {
			return digestsSeen{fill: 0.5 - 0.2*float64(after/(20*time.Second)%2)}
		}, "", 0},
		{"one is full long after a change", rested, always(digestsSeen{fill: 0.5}), agreed.KindGeometry, time.Minute},
		{"one is full soon after a change", agreed.GeometryChange{Since: start}, always(digestsSeen{fill: 0.5}), agreed.KindGeometry, restFor},
		{"nothing can be larger", agreed.GeometryChange{Current: agreed.Geometry{Bits: cachestate.MaxBits, Hashes: 5}}, always(digestsSeen{fill: 0.5}), "", 0},
		{"a geometry of a newer version", agreed.GeometryChange{Current: agreed.Geometry{Bits: 1 << 40, Hashes: 5}}, always(digestsSeen{fill: 0.5}), "", 0},
		{"all have the next", both, always(digestsSeen{fill: 0.5}), agreed.KindGeometrySwitch, completeFor},
		{"all have it after a minute", both, func(after time.Duration) digestsSeen {
			if after < time.Minute {
				return digestsSeen{missing: missing}
			}
			return digestsSeen{}
		}, agreed.KindGeometrySwitch, time.Minute + completeFor},
		{"one comes and goes", both, func(after time.Duration) digestsSeen {
			return digestsSeen{missing: missing[:after/(5*time.Second)%2]}
		}, agreed.KindGeometryRollback, 2*time.Minute + 5*time.Second},
		{"one never has it", both, always(digestsSeen{missing: missing}), agreed.KindGeometryRollback, incompleteFor},
		{"the next is too small", both, always(digestsSeen{nextFill: 0.5}), agreed.KindGeometryRollback, time.Nanosecond},
		{"reading has moved", switched, always(digestsSeen{}), agreed.KindGeometryFinish, keepFor},
	} {
		var r resizer
		got, at := agreed.Kind(""), time.Duration(0)
		for after := time.Duration(0); after < 20*time.Minute; after += time.Second {
			seen := tt.seen(after)
			if c, ok := r.step(tt.change, &seen, start.Add(after)); ok {
				c.ID = "x"
				if err := c.Validate(); err != nil {
					t.Errorf("%s: %v", tt.name, err)
				}
				got, at = c.Kind, after
				break
			}
		}
		if got != tt.want || at != tt.after.Truncate(time.Second) {
			t.Errorf("%s: %q after %v, want %q after %v", tt.name, got, at, tt.want, tt.after)
		}
	}
}

func TestEnlarge(t *testing.T) {
	for _, tt := range []struct {
		log     int
		fill    float64
		engines int
		want    int
	}{
		{17, 0.41, 64, 18},
		{17, 0.6, 64, 18},   // 24,000 keys
		{17, 0.7, 64, 19},   // 31,600 keys
		{17, 1, 64, 21},     // nobody knows
		{17, 1, 4096, 19},   // 256 MiB an index
		{20, 0.5, 4096, 20}, // more than that already
		{23, 1, 64, 24},     // all that a digest can have
	} {
		g := cachestate.Geometry{Bits: 1 << tt.log, Hashes: 5}
		if got := enlarge(g, &digestsSeen{fill: tt.fill, engines: tt.engines}); got.Bits != 1<<tt.want || got.Hashes != 5 {
			t.Errorf("from 2^%d at %.2f with %d engines: %v, want 2^%d", tt.log, tt.fill, tt.engines, got, tt.want)
		}
	}
}
