package main

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"
)

var all = regexp.MustCompile("")

func TestPlansLeaveEnoughHostsAndAllIngresses(t *testing.T) {
	const length = 10 * time.Minute
	seen := map[string]bool{}
	for seed := range uint64(20) {
		p := plan(rand.New(rand.NewPCG(seed, 0)), length, all)
		if len(p) < 100 {
			t.Errorf("seed %d: %d faults in %v", seed, len(p), length)
		}
		for i, f := range p {
			seen[f.kind.name] = true
			if f.kind.takesAgent && f.hosts[0] <= chaosIngresses {
				t.Errorf("seed %d: %s at ingress %v", seed, f.kind.name, f.hosts)
			}
			if f.at > length || f.end() > length+blink {
				t.Errorf("seed %d: a fault from %v to %v of %v", seed, f.at, f.end(), length)
			}
			broken := slices.Clone(f.hosts)
			for _, before := range p[:i] {
				if before.end() > f.at {
					broken = append(broken, before.hosts...)
				}
			}
			slices.Sort(broken)
			if len(broken) > mostBroken || len(slices.Compact(slices.Clone(broken))) != len(broken) {
				t.Errorf("seed %d: broken at %v: %v", seed, f.at, broken)
			}
		}
	}
	if len(seen) != len(faultKinds) {
		t.Errorf("%d kinds of faults of %d", len(seen), len(faultKinds))
	}
}

func TestPlansHaveTheFaultsThatWereAskedFor(t *testing.T) {
	p := plan(rand.New(rand.NewPCG(7, 0)), 10*time.Minute, regexp.MustCompile("^engine (killed|hung)$"))
	for _, f := range p {
		if f.kind.name != "engine killed" && f.kind.name != "engine hung" {
			t.Errorf("%s was not asked for", f.kind.name)
		}
	}
	if len(p) == 0 {
		t.Error("no faults")
	}
}

func TestPlansAreTheSameForOneSeed(t *testing.T) {
	one := plan(rand.New(rand.NewPCG(7, 0)), time.Minute, all)
	other := plan(rand.New(rand.NewPCG(7, 0)), time.Minute, all)
	same := func(a, b planned) bool {
		return a.at == b.at && a.lasts == b.lasts && a.kind == b.kind && slices.Equal(a.hosts, b.hosts)
	}
	if !slices.EqualFunc(one, other, same) {
		t.Error("they differ")
	}
}
