package simulate

import (
	"cmp"
	"math"
	"slices"
)

// boundedLoad is how far above the mean an engine's requests in flight may be before a hash passes it over: the factor of
// consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018) that HAProxy, smg and KubeAI have in common.
const boundedLoad = 1.25

// bound is the most requests that an engine may have, the new one included.
func (c counts) bound(w *world) int {
	total, up := 1, 0
	for i, n := range w.nodes {
		total += c.of[i]
		if n.up {
			up++
		}
	}
	return int(math.Ceil(boundedLoad * float64(total) / float64(max(up, 1))))
}

// rendezvous keeps what has one name on one engine: highest random weight (Thaler, Ravishankar 1998) with bounded load,
// next in the order of the name beyond it. One router counts all requests.
type rendezvous struct {
	counts
	w    *world
	name func(r *request) uint64
}

// newSession hashes the session: a client that names it keeps its engine.
func newSession(w *world) picker {
	return &rendezvous{newCounts(w), w, func(r *request) uint64 { return r.user }}
}

// prefixTokens is where the prompt is cut that prefix-hash goes by. smg cuts at 256 tokens, which in most traffic is still
// the system prompt that all share, so that the hash says nothing; behind it is kinder.
const prefixTokens = 1024

// newPrefixHash hashes the beginning of the prompt.
func newPrefixHash(w *world) picker {
	return &rendezvous{newCounts(w), w, func(r *request) uint64 {
		i := min(prefixTokens/w.blockTokens, len(r.chain)) - 1
		if i < 0 {
			return r.user
		}
		return mix(uint64(r.chain[i]))
	}}
}

func (p *rendezvous) pick(r *request) int {
	name, bound := p.name(r), p.bound(p.w)
	best, highest := none, uint64(0)
	for i, n := range p.w.nodes {
		if weight := mix(name ^ mix(uint64(i))); n.up && p.of[i] < bound && (best == none || weight > highest) {
			best, highest = i, weight
		}
	}
	return best
}

// ring is KubeAI's PrefixHash strategy: consistent hashing with bounded loads over the first 100 characters of the first
// user message, 256 places an engine, load factor 125 % (kubeai.org, "Load balancing"). What comes behind the system
// prompt tells conversations apart, so here the name is that of the conversation.
type ring struct {
	counts
	w      *world
	places []ringPlace // ascending
}

type ringPlace struct {
	at     uint64
	engine int
}

const ringReplicas = 256

func newKubeAI(w *world) picker {
	p := &ring{counts: newCounts(w), w: w}
	for i := range w.cfg.Engines {
		for n := range ringReplicas {
			p.places = append(p.places, ringPlace{mix(uint64(i)<<16 | uint64(n)), i})
		}
	}
	slices.SortFunc(p.places, func(a, b ringPlace) int { return cmp.Compare(a.at, b.at) })
	return p
}

func (p *ring) pick(r *request) int {
	bound := p.bound(p.w)
	start, _ := slices.BinarySearchFunc(p.places, mix(r.user), func(a ringPlace, at uint64) int { return cmp.Compare(a.at, at) })
	for i := range p.places {
		e := p.places[(start+i)%len(p.places)].engine
		if p.w.nodes[e].up && p.of[e] < bound {
			return e
		}
	}
	return none
}
