package simulate

// roundRobin takes the engines in turn.
type roundRobin struct {
	blind
	w    *world
	next int
}

func newRoundRobin(w *world) picker { return &roundRobin{w: w} }

func (p *roundRobin) pick(*request) int {
	for range p.w.nodes {
		i := p.next % len(p.w.nodes)
		p.next++
		if p.w.nodes[i].up {
			return i
		}
	}
	return none
}

// uniformly takes any engine.
type uniformly struct {
	blind
	w *world
}

func newRandom(w *world) picker { return &uniformly{w: w} }

func (p *uniformly) pick(*request) int { return p.w.least(func(int) float64 { return 0 }) }

// leastLoad takes the engine with the fewest requests in flight: what most load balancers offer, here with one router that
// counts all of them.
type leastLoad struct {
	counts
	w *world
}

func newLeastLoad(w *world) picker { return &leastLoad{newCounts(w), w} }

func (p *leastLoad) pick(*request) int {
	return p.w.least(func(e int) float64 { return float64(p.of[e]) })
}
