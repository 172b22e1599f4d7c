package simcluster

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
)

// churnTier is a tier that the simulated engines of a cluster do not have: what churns there disturbs no decision.
const churnTier = cachestate.TierCPU

// churnKeys is how many keys a churning digest settles at: those of a busy engine.
const churnKeys = 6000

// churn makes the residency of every engine of a cluster change.
type churn struct {
	perSecond atomic.Int64 // keys that come or go at each engine
}

// churning is an engine agent with one more tier, whose residency changes at a steady rate: random keys come, and later the
// oldest go. It is safe for concurrent use.
type churning struct {
	spread.Source
	churn *churn
	rng   *rand.Rand

	mu     sync.Mutex
	gen    engine.Generation
	digest *cachestate.Digest
	keys   []cachestate.Key // in the digest, the oldest first
	last   time.Time        // of the changes so far
	rate   int64            // since then
}

func (c *churn) source(agent spread.Source) spread.Source {
	s := &churning{Source: agent, churn: c, rng: rand.New(rand.NewPCG(xxhash.Sum64String(string(agent.Engine().ID)), 0))}
	s.restartLocked(agent.Engine())
	return s
}

func (s *churning) restartLocked(e engine.Engine) {
	s.gen, s.keys, s.last = e.Generation, nil, time.Now()
	s.digest = cachestate.NewDigest(e.ID, churnTier, e.Generation, cachestate.DefaultGeometry())
}

// Publish implements spread.Source.
func (s *churning) Publish() []cachestate.Delta {
	s.mu.Lock()
	defer s.mu.Unlock()
	published := s.Source.Publish()
	if e := s.Engine(); e.Generation != s.gen {
		s.restartLocked(e)
	}
	now := time.Now()
	for range int64(now.Sub(s.last).Seconds() * float64(s.rate)) {
		s.changeLocked()
	}
	s.last, s.rate = now, s.churn.perSecond.Load()
	return append(published, s.digest.Publish(now))
}

func (s *churning) changeLocked() {
	if s.rng.IntN(2*churnKeys) < len(s.keys) { // about as many go as come when half of that is there
		s.digest.Remove(s.keys[0])
		s.keys = s.keys[1:]
		return
	}
	k := cachestate.Key(s.rng.Uint64())
	s.digest.Add(k)
	s.keys = append(s.keys, k)
}

// Digests implements spread.Source.
func (s *churning) Digests() []cachestate.Delta {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(s.Source.Digests(), s.digest.Full())
}

// DeltasSince implements spread.Source.
func (s *churning) DeltasSince(g cachestate.Geometry, t cachestate.Tier, version uint64) (cachestate.Delta, bool) {
	if t != churnTier {
		return s.Source.DeltasSince(g, t, version)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.digest.Since(version)
}
