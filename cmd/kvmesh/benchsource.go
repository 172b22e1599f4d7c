package main

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
)

// benchKeys is how many prompt keys a busy engine's digest stands for: two million tokens of KV cache, prompts that share
// their beginnings.
const benchKeys = 6000

// benchSource is an engine whose residency changes at a steady rate: random keys come, and the oldest go. Changes are made
// when they can be told, at the times at which they were due, so that they cost no timers. It is safe for concurrent use.
type benchSource struct {
	agent spread.Source // the engine agent in whose place this is

	mu     sync.Mutex
	engine engine.Engine
	digest *cachestate.Digest
	rand   *rand.Rand
	keys   []cachestate.Key // a ring
	oldest int

	rate  float64 // changes a second
	since time.Time
	made  int // changes since then
	told  []benchVersion
}

var _ spread.Source = (*benchSource)(nil)

// benchVersion is one version of a digest that was published. Lacks is when the first change came that is not in it.
type benchVersion struct {
	Version uint64 `json:"version"`
	Lacks   int64  `json:"lacks"` // Unix time in nanoseconds; never for none
}

// never is later than every time.
const never = math.MaxInt64

func newBenchSource(id engine.ID, seed uint64, now time.Time) *benchSource {
	gen := engine.Generation(now.UnixMilli())
	s := &benchSource{
		engine: engine.Engine{
			ID: id, Kind: engine.KindVLLM, Generation: gen, Models: []engine.Model{{Name: "bench", MaxContext: 1 << 17}},
			BlockTokens: 16, CapacityTokens: 1 << 21, MaxRunning: 256, Residency: engine.ResidencyEvents, Evidence: engine.EvidenceUsage, Scale: 1,
		},
		digest: cachestate.NewDigest(id, cachestate.TierGPU, gen, cachestate.DefaultGeometry()),
		rand:   rand.New(rand.NewPCG(seed, 0)), since: now,
	}
	for range benchKeys {
		s.keys = append(s.keys, s.newKey())
	}
	s.told = []benchVersion{{Version: 0, Lacks: now.UnixNano()}}
	return s
}

func (s *benchSource) newKey() cachestate.Key {
	k := cachestate.Key(s.rand.Uint64())
	s.digest.Add(k)
	return k
}

// setRate changes how many changes a second there are from now on.
func (s *benchSource) setRate(rate float64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUpLocked(now)
	s.rate, s.since, s.made = rate, now, 0
	if last := &s.told[len(s.told)-1]; last.Lacks > now.UnixNano() {
		last.Lacks = s.nextLocked()
	}
}

// catchUpLocked makes the changes that are due: a key comes, the oldest goes, in turn.
func (s *benchSource) catchUpLocked(now time.Time) {
	for due := int(now.Sub(s.since).Seconds() * s.rate); s.made < due; s.made++ {
		if s.made%2 == 0 {
			s.keys = append(s.keys, s.newKey())
			continue
		}
		s.digest.Remove(s.keys[s.oldest])
		s.oldest++
	}
	if s.oldest > benchKeys {
		s.keys, s.oldest = append(s.keys[:0], s.keys[s.oldest:]...), 0
	}
}

// nextLocked returns when the next change is due.
func (s *benchSource) nextLocked() int64 {
	if s.rate == 0 {
		return never
	}
	return s.since.Add(time.Duration(float64(s.made+1) / s.rate * float64(time.Second))).UnixNano()
}

// takeVersions returns the versions that were told since the last call, and the one that stands.
func (s *benchSource) takeVersions() []benchVersion {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.told
	s.told = []benchVersion{told[len(told)-1]}
	return told
}

// Engine implements spread.Source.
func (s *benchSource) Engine() engine.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine
}

// Load implements spread.Source: that of an engine in the midst of work, since an idle one's is shorter on the wire.
func (s *benchSource) Load() engine.Load {
	return engine.Load{
		Seq: s.agent.Load().Seq, QueuedSeconds: 0.7, InFlight: 24, Waiting: 2, KVUsage: 0.7, PrefillRate: 15_800, BytesPerToken: 3.9,
		AcceptRate: 1.3, BusyShare: 0.6, PrefillFixed: 0.01, PrefillBend: 1e-9, RequestCost: 0.04,
	}
}

// Publish implements spread.Source.
func (s *benchSource) Publish() []cachestate.Delta {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.catchUpLocked(now)
	d := s.digest.Publish(now)
	told := benchVersion{Version: d.To, Lacks: s.nextLocked()}
	if last := &s.told[len(s.told)-1]; last.Version == d.To {
		*last = told
	} else {
		s.told = append(s.told, told)
	}
	return []cachestate.Delta{d}
}

// Digests implements spread.Source.
func (s *benchSource) Digests() []cachestate.Delta {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []cachestate.Delta{s.digest.Full()}
}

// DeltasSince implements spread.Source.
func (s *benchSource) DeltasSince(g cachestate.Geometry, t cachestate.Tier, version uint64) (cachestate.Delta, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t != cachestate.TierGPU || g != cachestate.DefaultGeometry() {
		return cachestate.Delta{}, false
	}
	return s.digest.Since(version)
}
