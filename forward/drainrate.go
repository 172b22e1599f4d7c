package forward

import (
	"math"
	"time"
)

// What a drain rate is the mean of: the last seconds in which somebody waited, or the last requests where that is longer. A
// shorter mean follows answers that end in a bunch, a longer one an engine that is gone.
const (
	drainMemory   = 2 * time.Second
	drainRequests = 16
	drainForgets  = time.Minute // at most so long a memory, and after so long without waiting none
	drainKnown    = time.Second // of waiting until it is known
)

// drainRate is how fast a queue is worked off: the requests that left it for an engine, per second in which some waited. It is
// not safe for concurrent use.
type drainRate struct {
	left   float64 // requests, the older ones for less
	waited float64 // seconds, likewise
	at     time.Time
}

// advance takes in the time since the last call; waiting says whether somebody waited in it.
func (d *drainRate) advance(now time.Time, waiting bool) {
	passed := now.Sub(d.at)
	switch {
	case waiting:
		memory := drainMemory.Seconds()
		if d.left > 0 {
			memory = max(memory, min(drainRequests*d.waited/d.left, drainForgets.Seconds()))
		}
		keep := math.Exp(-passed.Seconds() / memory)
		d.left *= keep
		d.waited = d.waited*keep + passed.Seconds()
	case passed > drainForgets:
		d.left, d.waited = 0, 0
	}
	d.at = now
}

// note counts a request that left for an engine.
func (d *drainRate) note() { d.left++ }

// perSecond returns the rate; false while it is not known. It counts one request more than have left, so that a queue that
// has just begun is not taken for one that stands.
func (d *drainRate) perSecond() (float64, bool) {
	if d.waited < drainKnown.Seconds() {
		return 0, false
	}
	return (d.left + 1) / d.waited, true
}
