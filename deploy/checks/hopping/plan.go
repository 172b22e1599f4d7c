package main

import (
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"
)

const (
	// mostBroken is how many hosts are broken at once at most: the rest has room for all clients.
	mostBroken = 3
	// mending is how long after a fault its host is spared, so that it is whole again at the next.
	mending = 4 * time.Second
	// faultPause is the mean time from the begin of one fault to that of the next.
	faultPause = 1500 * time.Millisecond
)

// planned is one fault to come.
type planned struct {
	at, lasts time.Duration // from the begin of the run
	kind      *faultKind
	hosts     []int // one, or the two ends of a link; from 1
}

func (p *planned) end() time.Duration { return p.at + p.lasts }

// plan returns faults by chance for a time, in order, of the kinds whose names match. Agents of the first chaosIngresses hosts
// are spared: a client whose own connection is lost has lost its answer, and no mesh can help it.
func plan(rng *rand.Rand, length time.Duration, names *regexp.Regexp) []planned {
	var out []planned
	spared := make([]time.Duration, chaosHosts+1) // until when, by host
	for at := faultPause; at < length; at += time.Duration((0.5 + rng.Float64()) * float64(faultPause)) {
		kind := &faultKinds[rng.IntN(len(faultKinds))]
		if !names.MatchString(kind.name) {
			continue
		}
		share := math.Pow(rng.Float64(), 2) // short ones more often
		p := planned{at: at, kind: kind, lasts: kind.shortest + time.Duration(share*float64(kind.longest-kind.shortest))}
		p.lasts = max(min(p.lasts, length-at), blink)
		broken := 0
		var free []int
		for x := 1; x <= chaosHosts; x++ {
			switch {
			case at < spared[x]:
				broken++
			case x > chaosIngresses || !kind.takesAgent:
				free = append(free, x)
			}
		}
		need := 1
		if kind.link {
			need = 2
		}
		if len(free) < need || broken+need > mostBroken {
			continue
		}
		rng.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
		p.hosts = slices.Sorted(slices.Values(free[:need]))
		for _, x := range p.hosts {
			spared[x] = p.end() + mending
		}
		out = append(out, p)
	}
	return out
}
