package engineagent

import (
	"slices"

	"github.com/kvmesh/kvmesh/cachestate"
)

// mostKeys is how many keys each digest takes, whichever geometry it has.
func mostKeys(geometries []cachestate.Geometry) int {
	most := geometries[0].MaxKeys()
	for _, g := range geometries[1:] {
		most = min(most, g.MaxKeys())
	}
	return most
}

// SetGeometries makes the engine's digests be published in these geometries, one or two, which must be valid. Digests of a
// new one are made at once of what the engine holds now; those of one that is gone are dropped. It takes a millisecond for
// ten thousand keys.
func (a *Agent) SetGeometries(geometries []cachestate.Geometry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(geometries) == 0 || slices.Equal(geometries, a.geometries) {
		return
	}
	a.geometries = slices.Clone(geometries)
	a.cache.use(a.geometries)
	if a.blocks != nil {
		a.blocks.SetMaxKeys(keysPerDigest * mostKeys(a.geometries))
	}
}

// use makes the digests be of these geometries.
func (c *cache) use(geometries []cachestate.Geometry) {
	c.digests.Use(geometries, func(tell func(cachestate.Tier, cachestate.Key)) {
		for k := range c.mirrored {
			tell(cachestate.TierGPU, k)
		}
		if c.blocks != nil {
			c.blocks.Each(func(t cachestate.Tier, k cachestate.Key, _ bool) { tell(t, k) })
		}
	})
	c.maxKeys = mostKeys(geometries)
	c.mirror.SetMaxKeys(c.maxKeys)
}
