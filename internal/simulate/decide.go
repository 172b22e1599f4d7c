package simulate

import (
	"slices"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
)

// This file holds the calls of forward's decision, in the order in which forward's Ingress makes them.

// class is the traffic class that all requests are of.
var class = forward.Class{Strategy: forward.StrategyAuto}

// exchange is what an ingress keeps of one request.
type exchange struct {
	prompt  cachestate.Prompt
	q       forward.Question
	short   []forward.Candidate
	ranked  []forward.Candidate
	place   int // in ranked
	asking  bool
	waits   int          // for so many answers
	failed  map[int]bool // engines not to try again
	retries int          // decisions that found no engine
}

// shortlist makes the candidates of a decision.
func (p *mesh) shortlist(g *ingress, x *exchange) {
	p.all = g.view.Candidates(p.all[:0], modelName, p.w.clock())
	p.all = slices.DeleteFunc(p.all, func(c forward.Candidate) bool { return len(x.failed) > 0 && x.failed[p.numbers[c.ID]] })
	for i := range p.all {
		if c := &p.all[i]; c.State == forward.Own {
			c.Load, c.Known = p.w.nodes[g.index].load(), true
		}
	}
	x.q = class.Question(&x.prompt, "")
	if x.q.Locality {
		g.view.Overlaps(&x.prompt, p.all)
	}
	x.q.Learned = forward.LearnedBy(p.all)
	x.short = forward.Shortlist(&x.q, p.all, p.w.rng)
	g.view.Generations(x.short)
}

// toProbe marks the candidates that are asked, and returns those to whom a probe goes: suspects, since an answer takes their
// price away, and the best, unless there is no other.
func (p *mesh) toProbe(x *exchange) []int {
	var ask []int
	for i := range x.short {
		if c := &x.short[i]; c.State == forward.Suspect {
			c.Asked = true
			ask = append(ask, i)
		}
	}
	if len(x.short) < 2 || !p.w.cfg.Probes {
		return ask
	}
	for _, i := range forward.ProbeSet(&x.q, x.short) {
		c := &x.short[i]
		c.Asked = true
		switch {
		case c.State == forward.Own:
			c.Probed = true
		case c.State == forward.Fresh && p.w.cfg.rtt().Seconds() > c.WholeSeconds(&x.q):
			// The round trip costs more than any choice can save.
		case !slices.Contains(ask, i):
			ask = append(ask, i)
		}
	}
	return ask
}

// bestExact is one decider that knows exactly and freshly what every engine holds and has queued, and takes the lowest by
// kvmesh's own score. Its engines have kvmesh's owners, with their queue.
type bestExact struct {
	blind
	w   *world
	all []forward.Candidate
}

func newBestExact(w *world) picker { return &bestExact{w: w} }

func (b *bestExact) pick(r *request) int {
	held := b.w.holders.overlap(r.chain)
	b.all = b.all[:0]
	for i, n := range b.w.nodes {
		if !n.up {
			continue
		}
		overlap := min(int(held[i])*b.w.blockTokens, r.input-1) * bytesPerToken
		b.all = append(b.all, forward.Candidate{
			ID: n.id, State: forward.Fresh, Known: true, Asked: true, Probed: true,
			Load: n.load(), Scale: 1, Overlap: float64(overlap),
		})
	}
	prompt := cachestate.Prompt{Bytes: int64(r.input * bytesPerToken)}
	q := class.Question(&prompt, "")
	q.Locality = true
	q.Learned = forward.LearnedBy(b.all)
	ranked := forward.Rank(&q, b.all, b.w.rng)
	if len(ranked) == 0 {
		return none
	}
	return b.w.numbers[ranked[0].ID]
}
