package simscale

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
)

// churn is a digest whose keys come and go at a steady rate. Changes are made when they can be told, in the order and with
// the times at which they were due: they cost no timers. It is safe for concurrent use.
type churn struct {
	rate  float64
	begin time.Time
	apart time.Duration // between two versions at least

	mu     sync.Mutex
	rand   *rand.Rand
	digest *cachestate.Digest
	keys   []cachestate.Key // a ring
	next   int              // to go
	made   int              // changes
	at     time.Time        // when the last version was made
	lacks  map[uint64]time.Time
}

// keptVersions is how many versions are remembered of when they became stale: more than any listener is behind.
const keptVersions = 256

func newChurn(c *Config, seed uint64, apart time.Duration) *churn {
	now := time.Now()
	x := &churn{
		rate: c.Changes, begin: now, apart: apart, rand: rand.New(rand.NewPCG(c.Seed, seed)),
		digest: cachestate.NewDigest(engineOf("any"), cachestate.TierGPU, generation, cachestate.DefaultGeometry()),
		keys:   make([]cachestate.Key, c.Keys), lacks: map[uint64]time.Time{0: now},
	}
	x.begin = now.Add(-time.Duration(x.rand.Float64() / max(x.rate, 1) * float64(time.Second))) // so that not all engines change at once
	for i := range x.keys {
		x.keys[i] = x.come()
	}
	return x
}

func (x *churn) come() cachestate.Key {
	k := cachestate.Key(x.rand.Uint64())
	x.digest.Add(k)
	return k
}

// publish makes the changes that are due and a version of them, unless the last one is recent.
func (x *churn) publish() {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	if version := x.digest.Version(); version.Number > 0 && now.Sub(x.at) < x.apart {
		return
	}
	x.at = now
	for due := int(now.Sub(x.begin).Seconds() * x.rate); x.made < due; x.made++ {
		x.change()
	}
	x.digest.Publish(now)
	number := x.digest.Version().Number
	x.lacks[number] = x.nextChange()
	delete(x.lacks, number-keptVersions)
}

// change lets a key come or go, in turn.
func (x *churn) change() {
	switch {
	case len(x.keys) == 0:
	case x.made%2 == 0:
		x.digest.Remove(x.keys[x.next])
	default:
		x.keys[x.next] = x.come()
		x.next = (x.next + 1) % len(x.keys)
	}
}

// nextChange returns when the first change comes that is not made yet.
func (x *churn) nextChange() time.Time {
	if x.rate == 0 {
		return x.begin.Add(math.MaxInt64)
	}
	return x.begin.Add(time.Duration(float64(x.made+1) / x.rate * float64(time.Second)))
}

// staleness returns how long ago the first change was that a version lacks; 0 when there is none.
func (x *churn) staleness(number uint64, now time.Time) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	lacks, kept := x.lacks[number]
	if !kept {
		return now.Sub(x.begin)
	}
	return max(now.Sub(lacks), 0)
}
