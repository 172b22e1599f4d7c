package simulate

import "slices"

// cacheAware is the cache_aware policy of SGLang's router, smg: a tree of the prompts that this router has sent to each
// engine, and requests in flight by its own count. When the counts are out of balance the least loaded engine gets the
// request; else the one that shares most of the prompt, if that is more than a threshold; else the one with the smallest
// tree. Thresholds are smg's published defaults (docs/getting-started/load-balancing.md): 0.3, 64, 1.5. Its trees are
// emptied after 2^26 characters, which no run here reaches.
type cacheAware struct {
	w       *world
	routers []cacheAwareRouter
}

type cacheAwareRouter struct {
	counts
	seen  map[block][]uint16 // engines that the block was sent to
	size  []int              // blocks of each engine's tree
	depth []int              // scratch: blocks that each engine shares
}

const (
	cacheThreshold = 0.3
	balanceAbove   = 64
	balanceFactor  = 1.5
)

func newSGLang(routers func(c *Config) int) func(w *world) picker {
	return func(w *world) picker {
		p := &cacheAware{w: w}
		for range routers(w.cfg) {
			p.routers = append(p.routers, cacheAwareRouter{
				counts: newCounts(w), seen: map[block][]uint16{}, size: make([]int, w.cfg.Engines), depth: make([]int, w.cfg.Engines),
			})
		}
		return p
	}
}

func (p *cacheAware) router(r *request) *cacheAwareRouter {
	return &p.routers[r.ingress%len(p.routers)]
}

func (p *cacheAware) pick(r *request) int {
	t := p.router(r)
	least, most := -1, 0
	for i, n := range p.w.nodes {
		if n.up {
			most = max(most, t.of[i])
			if least < 0 || t.of[i] < least {
				least = t.of[i]
			}
		}
	}
	if most-least > balanceAbove && float64(most) > balanceFactor*float64(least) {
		return p.w.least(func(e int) float64 { return float64(t.of[e]) })
	}
	t.match(r.chain)
	best := p.w.least(func(e int) float64 { return -float64(t.depth[e]) })
	if best != none && float64(t.depth[best]*p.w.blockTokens) > cacheThreshold*float64(r.input) {
		return best
	}
	return p.w.least(func(e int) float64 { return float64(t.size[e]) })
}

// match fills in how much of the chain each engine was sent before.
func (t *cacheAwareRouter) match(chain []block) {
	clear(t.depth)
	for i, b := range chain {
		engines := t.seen[b]
		if len(engines) == 0 {
			return
		}
		for _, e := range engines {
			if t.depth[e] == i {
				t.depth[e] = i + 1
			}
		}
	}
}

func (p *cacheAware) sent(r *request, engine int) {
	t := p.router(r)
	t.of[engine]++
	for _, b := range r.chain {
		if !slices.Contains(t.seen[b], uint16(engine)) {
			t.seen[b] = append(t.seen[b], uint16(engine))
			t.size[engine]++
		}
	}
}

func (p *cacheAware) first(*request, int)         {}
func (p *cacheAware) done(r *request, engine int) { p.router(r).of[engine]-- }
