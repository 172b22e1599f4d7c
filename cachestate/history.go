package cachestate

import (
	"slices"
	"time"
)

// The bounds of a digest's memory. A replica that is further behind pulls the whole digest.
const (
	historyAge   = 30 * time.Second // six of the longest period, 5 s
	historySteps = 64               // 30 s of the shortest period, 0.5 s, and some more
	flipsPerFull = 10               // a flip in a long delta takes 6 to 10 bits, and a whole digest at most one a bit
)

// step is one published version: the bits that flipped on the way to it from the version before.
type step struct {
	to    uint64
	at    time.Time
	flips []uint32 // ascending
}

// history remembers the last versions of a digest. Invariant: steps lead to consecutive versions.
type history struct {
	steps []step
	flips int // in all steps
}

// add remembers s and forgets steps that are too old, too many, or together longer than a whole digest.
func (h *history) add(s step, maxFlips int) {
	h.steps = append(h.steps, s)
	h.flips += len(s.flips)
	drop := 0
	for _, old := range h.steps {
		if len(h.steps)-drop <= historySteps && h.flips <= maxFlips && s.at.Sub(old.at) <= historyAge {
			break
		}
		h.flips -= len(old.flips)
		drop++
	}
	h.steps = slices.Delete(h.steps, 0, drop)
}

// since returns the bits that flipped at any version after from, ascending, or false when that is not known. current
// is the version of the last step.
func (h *history) since(from, current uint64) ([]uint32, bool) {
	if from > current || current-from > uint64(len(h.steps)) {
		return nil, false
	}
	steps := h.steps[len(h.steps)-int(current-from):]
	if len(steps) == 1 {
		return steps[0].flips, true
	}
	var all []uint32
	for _, s := range steps {
		all = append(all, s.flips...)
	}
	slices.Sort(all)
	return slices.Compact(all), true
}
