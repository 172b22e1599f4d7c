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
	keys  moves
}

// moves are the keys that came and went, in any order and some more than once. Where they are too many to be worth telling
// none are kept.
type moves struct {
	came, went []Key
	many       bool
}

func (m *moves) add(came, went []Key, limit int) {
	m.many = m.many || len(m.came)+len(came) > limit || len(m.went)+len(went) > limit
	if m.many {
		m.came, m.went = nil, nil
		return
	}
	m.came, m.went = append(m.came, came...), append(m.went, went...)
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

// movesSince returns the keys that came and went after version from, which since knows.
func (h *history) movesSince(from, current uint64, limit int) (all moves) {
	for _, s := range h.steps[len(h.steps)-int(current-from):] {
		if all.many = all.many || s.keys.many; !all.many {
			all.add(s.keys.came, s.keys.went, limit)
		}
	}
	return all
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
