package spread

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// source is an engine whose cache the test fills. Its lock may be held by a test, to change several things at once.
type source struct {
	mu      sync.Mutex
	engine  engine.Engine
	load    engine.Load
	digests []*cachestate.Digest
	key     cachestate.Key // the last one added
}

func newSource(id engine.ID, tiers ...cachestate.Tier) *source {
	s := &source{engine: engine.Engine{ID: id, Models: []engine.Model{{Name: "m"}}}}
	s.restart(1, tiers...)
	return s
}

// restart begins another life of the engine's cache, in the GPU tier where none is named.
func (s *source) restart(gen engine.Generation, tiers ...cachestate.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(tiers) == 0 {
		tiers = []cachestate.Tier{cachestate.TierGPU}
	}
	s.engine.Generation, s.digests = gen, nil
	for _, t := range tiers {
		s.digests = append(s.digests, cachestate.NewDigest(s.engine.ID, t, gen, cachestate.DefaultGeometry()))
	}
}

// add puts n new keys into each tier.
func (s *source) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.key += 0x9e3779b97f4a7c15
		for _, d := range s.digests {
			d.Add(s.key)
		}
	}
}

func (s *source) Engine() engine.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine
}

func (s *source) Load() engine.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load.Seq++
	return s.load
}

func (s *source) each(get func(*cachestate.Digest) cachestate.Delta) (out []cachestate.Delta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.digests {
		out = append(out, get(d))
	}
	return out
}

func (s *source) Publish() []cachestate.Delta {
	return s.each(func(d *cachestate.Digest) cachestate.Delta { return d.Publish(time.Now()) })
}

func (s *source) Digests() []cachestate.Delta { return s.each((*cachestate.Digest).Full) }

func (s *source) DeltasSince(t cachestate.Tier, version uint64) (cachestate.Delta, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range s.digests {
		if d.Full().Tier == t {
			return s.digests[i].Since(version)
		}
	}
	return cachestate.Delta{}, false
}

// nowhere is a Carrier of an agent that is alone.
type nowhere struct{}

func (nowhere) Agents() int                                      { return 1 }
func (nowhere) Broadcast(context.Context, []byte) error          { return nil }
func (nowhere) Send(context.Context, string, []byte) error       { return errors.New("alone") }
func (nowhere) OpenPull(context.Context, string) (Stream, error) { return nil, errors.New("alone") }
func (nowhere) SendDatagram(string, []byte) error                { return errors.New("alone") }
func (nowhere) BroadcastDatagram([]byte)                         {}

// newHearer returns a listener that can reach nobody.
func newHearer(t testing.TB) *Listener {
	t.Helper()
	index := cachestate.NewTiers(cachestate.DefaultGeometry())
	l := NewListener(ListenerConfig{
		Self: "hearer", Carrier: nowhere{}, View: forward.NewView("hearer", index), Index: index, Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(l.Close)
	return l
}

// newSender returns a teller of the sources that can reach nobody.
func newSender(sources ...Source) *Teller {
	return NewTeller(TellerConfig{Self: "sender", Instance: 7, Sources: sources, Carrier: nowhere{}, Logger: slog.New(slog.DiscardHandler)})
}
