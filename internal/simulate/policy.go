package simulate

import (
	"fmt"
	"slices"
)

// policy decides where requests go. Its methods are called in virtual time, by one goroutine.
type policy interface {
	begin()
	arrive(r *request)         // a client's request is at its ingress
	first(r *request, n *node) // its first token is out
	done(r *request, n *node)  // its last one is
	lost(r *request)           // the engine died before its first token
	born(n *node)              // an engine is back, empty
	play(e *event)             // events of its own
}

// policySpec is how one policy is made.
type policySpec struct {
	name    string
	exact   bool // it reads the exact index
	digests bool // it reads digests and loads that travel
	queue   bool // the owner keeps a queue
	make    func(w *world) policy
}

// Policies returns the names of all policies, in the order of their table.
func Policies() []string {
	var names []string
	for _, s := range specs() {
		names = append(names, s.name)
	}
	return names
}

func specOf(name string) (policySpec, error) {
	all := specs()
	i := slices.IndexFunc(all, func(s policySpec) bool { return s.name == name })
	if i < 0 {
		return policySpec{}, fmt.Errorf("there is no policy %q; there are %v", name, Policies())
	}
	return all[i], nil
}

func routed(p func(w *world) picker) func(w *world) policy {
	return func(w *world) policy { return &router{w: w, picker: p(w)} }
}

func specs() []policySpec {
	one := func(*Config) int { return 1 }
	each := func(c *Config) int { return c.Ingresses }
	return []policySpec{
		{name: "oracle", exact: true, make: routed(newOracle)},
		{name: "best-exact", exact: true, queue: true, make: routed(newBestExact)},
		{name: "kvmesh", digests: true, queue: true, make: newMesh},
		{name: "round-robin", make: routed(newRoundRobin)},
		{name: "random", make: routed(newRandom)},
		{name: "least-load", make: routed(newLeastLoad)},
		{name: "session", make: routed(newSession)},
		{name: "prefix-hash", make: routed(newPrefixHash)},
		{name: "kubeai", make: routed(newKubeAI)},
		{name: "sglang", make: routed(newSGLang(one))},
		{name: "sglang-each", make: routed(newSGLang(each))},
		{name: "dynamo", exact: true, make: routed(newDynamo)},
		{name: "llm-d", exact: true, make: routed(newLLMD)},
	}
}

// picker is the rule of a router that stands before all engines.
type picker interface {
	// pick returns the engine for r, or none when none is up.
	pick(r *request) int
	sent(r *request, engine int)
	first(r *request, engine int)
	done(r *request, engine int) // also of a request that was lost
}

// router is one router, or several with common knowledge, and engines without agents: no digests, no probes, no queue but
// the engines' own. It knows at once when an engine dies or is back.
type router struct {
	w *world
	picker
}

func (p *router) begin()     {}
func (p *router) born(*node) {}

func (p *router) arrive(r *request) {
	engine := p.pick(r)
	if engine == none {
		p.w.drop(r)
		return
	}
	r.engine = engine
	p.sent(r, engine)
	p.w.forRequest(p.w.now+p.w.cfg.HopDelay, r, event{kind: onLand, a: int32(engine)})
}

func (p *router) first(r *request, n *node) { p.picker.first(r, n.index) }
func (p *router) done(r *request, n *node)  { p.picker.done(r, n.index) }

func (p *router) lost(r *request) {
	p.picker.done(r, r.engine)
	p.arrive(r)
}

func (p *router) play(e *event) {
	r, ok := p.w.about(e)
	if !ok || e.kind != onLand {
		return
	}
	if n := p.w.nodes[e.a]; n.up {
		n.accept(r)
	} else {
		p.lost(r)
	}
}

// blind is what pickers need that count nothing.
type blind struct{}

func (blind) sent(*request, int)  {}
func (blind) first(*request, int) {}
func (blind) done(*request, int)  {}

// counts is the number of requests that a router has sent to each engine and that have not ended.
type counts struct{ of []int }

func newCounts(w *world) counts { return counts{make([]int, w.cfg.Engines)} }

func (c counts) sent(_ *request, e int) { c.of[e]++ }
func (c counts) first(*request, int)    {}
func (c counts) done(_ *request, e int) { c.of[e]-- }

// least returns the engine that is up with the lowest value, ties at random, or none.
func (w *world) least(value func(engine int) float64) int {
	best, lowest, ties := none, 0.0, 0
	for i, n := range w.nodes {
		if !n.up {
			continue
		}
		switch v := value(i); {
		case best == none || v < lowest:
			best, lowest, ties = i, v, 1
		case v == lowest:
			if ties++; w.rng.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}
