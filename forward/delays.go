package forward

import (
	"slices"
	"time"
)

const (
	// delaysKept is of how many requests a class remembers how late they were: a quantile of fewer is noise, of more is of the past.
	delaysKept = 256
	// delaysNeeded is how many are enough for the 95th percentile: some three were later.
	delaysNeeded = 64
)

// delays are how much later than expected the first content of recent requests came. It is not safe for concurrent use.
type delays struct {
	kept []time.Duration // a ring
	next int
}

func (d *delays) note(late time.Duration) {
	if len(d.kept) < delaysKept {
		d.kept = append(d.kept, late)
		return
	}
	d.kept[d.next] = late
	d.next = (d.next + 1) % delaysKept
}

// p95 returns what 19 of 20 did not exceed; false while too few are known.
func (d *delays) p95() (time.Duration, bool) {
	if len(d.kept) < delaysNeeded {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(d.kept))
	return sorted[len(sorted)*19/20], true
}
