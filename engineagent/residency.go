package engineagent

import (
	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Residency is what is believed of the engine's KV cache during one life of it. cachestate's Mirror imitates an engine
// that tells nothing; whatever follows an engine's KV events takes its place here. It reports every key that becomes
// resident or ceases to be to the digest of the same life, and is called under the Agent's lock only.
type Residency interface {
	// Overlap returns how many leading keys are resident.
	Overlap(keys []cachestate.Key) int
	// Start says that the engine was given p. It keeps no reference to p.
	Start(p *cachestate.Prompt, bytesPerToken float64) Lease
	// SetCapacity bounds what may be believed resident.
	SetCapacity(tokens int64)
}

// Lease is one running request in a Residency. It ends with one call of Finish or Abandon, or with its Residency.
type Lease interface {
	// Prefilled says that the first content came, so the whole prompt is in the cache.
	Prefilled()
	// Generated says how many tokens of output the request holds by now.
	Generated(outputTokens int)
	// Finish says that the request ended, with its sizes in tokens.
	Finish(promptTokens, outputTokens int)
	// Abandon says that the request ended without content.
	Abandon()
}

// cache is one life of an engine's cache. A restart makes another: leases of the old one end in the old one, where
// nobody looks any more, so that nothing of a past life can be advertised in the next.
type cache struct {
	residency   Residency
	digest      *cachestate.Digest
	blockTokens int
	maxKeys     int  // what the digest takes
	used        bool // a request was started in it
}

func newCache(e *engine.Engine, g cachestate.Geometry, capacityTokens int64) *cache {
	digest := cachestate.NewDigest(e.ID, cachestate.TierGPU, e.Generation, g)
	return &cache{
		residency: newMirror(capacityTokens, e.BlockTokens, g.MaxKeys(), digest), digest: digest,
		blockTokens: e.BlockTokens, maxKeys: g.MaxKeys(),
	}
}

func (c *cache) start(p *cachestate.Prompt, bytesPerToken float64) Lease {
	c.used = true
	return c.residency.Start(p, bytesPerToken)
}

// fit takes what became known of the cache's size. A mirror's block size is for life, so it waits for the next life
// once a request was started.
func (c *cache) fit(capacityTokens int64, blockTokens int) {
	if blockTokens != c.blockTokens && !c.used {
		c.residency, c.blockTokens = newMirror(capacityTokens, blockTokens, c.maxKeys, c.digest), blockTokens
	}
	c.residency.SetCapacity(capacityTokens)
}

// mirror makes cachestate's Mirror a Residency.
type mirror struct{ *cachestate.Mirror }

func newMirror(capacityTokens int64, blockTokens, maxKeys int, d *cachestate.Digest) mirror {
	return mirror{cachestate.NewMirror(capacityTokens, blockTokens, maxKeys, func(k cachestate.Key, resident bool) {
		if resident {
			d.Add(k)
		} else {
			d.Remove(k)
		}
	})}
}

// Start implements Residency.
func (m mirror) Start(p *cachestate.Prompt, bytesPerToken float64) Lease {
	return m.Mirror.Start(p, bytesPerToken)
}
