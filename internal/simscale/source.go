package simscale

import (
	"sync/atomic"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
)

// generation is the one life of every engine, as long on the wire as those that are made from clocks.
const generation engine.Generation = 1_700_000_000_000

// firstBeat is the Seq of a load as long as those that owners begin with, which they make from clocks.
const firstBeat = uint64(generation) * 1000 << 8

// engineOf returns the engine of an agent.
func engineOf(agent string) engine.ID { return engine.MakeID(agent, "gpu0") }

// source is an engine that holds what a churn says.
type source struct {
	*churn
	engine engine.Engine
	beats  atomic.Uint64
	told   uint64 // version that was published last; guarded by churn.mu
}

var _ spread.Source = (*source)(nil)

func newSource(agent string, x *churn) *source {
	return &source{churn: x, engine: engine.Engine{
		ID: engineOf(agent), Kind: engine.KindVLLM, Generation: generation,
		Models:      []engine.Model{{Name: "meta-llama/Llama-3.3-70B-Instruct", MaxContext: 1 << 17}},
		BlockTokens: 16, CapacityTokens: 1 << 21, MaxRunning: 256, Residency: engine.ResidencyEvents, Evidence: engine.EvidenceUsage, Scale: 1,
	}}
}

// Engine implements spread.Source.
func (s *source) Engine() engine.Engine { return s.engine }

// Load implements spread.Source: that of an engine in the midst of work, since an idle one's is shorter on the wire.
func (s *source) Load() engine.Load {
	return engine.Load{
		Seq: firstBeat + s.beats.Add(1), QueuedSeconds: 0.7, InFlight: 24, Waiting: 2, KVUsage: 0.7, PrefillRate: 15_800, BytesPerToken: 3.9,
		AcceptRate: 1.3, BusyShare: 0.6, PrefillFixed: 0.01, PrefillBend: 1e-9, RequestCost: 0.04,
	}
}

// Publish implements spread.Source.
func (s *source) Publish() []cachestate.Delta {
	s.publish()
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.digest.Since(s.told)
	if !ok {
		d = s.digest.Full()
	}
	s.told = d.To
	return []cachestate.Delta{s.own(d)}
}

// own makes a delta of the churn one of this engine.
func (s *source) own(d cachestate.Delta) cachestate.Delta {
	d.Engine = s.engine.ID
	return d
}

// Digests implements spread.Source.
func (s *source) Digests() []cachestate.Delta {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []cachestate.Delta{s.own(s.digest.Full())}
}

// DeltasSince implements spread.Source.
func (s *source) DeltasSince(g cachestate.Geometry, t cachestate.Tier, version uint64) (cachestate.Delta, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t != cachestate.TierGPU || g != cachestate.DefaultGeometry() {
		return cachestate.Delta{}, false
	}
	d, ok := s.digest.Since(version)
	return s.own(d), ok
}
