package forward

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Candidate is one engine as a decision sees it.
type Candidate struct {
	ID         engine.ID
	Generation engine.Generation // of the digest that the overlap is from; 0 without overlap
	State      State
	Load       engine.Load
	Away       bool    // its agent is unreachable, but its connection stands: it may be heard again any moment
	Known      bool    // a load was heard; an engine without one competes as empty, and by probe
	Unverified bool    // nothing checks what its digests claim
	Scale      float64 // share of a claimed overlap that turns out true, above 0 and at most 1
	Zone       string  // where it stands; "" when nobody said
	Overlap    float64 // canonical bytes of the prompt that it saves: what its digests hold, by tier, times Scale
	ForOverlap bool    // it is on the short list for its overlap, and not by chance
	Asked      bool    // it is among the best, those that are probed for this decision
	Probed     bool    // Load is the answer to that probe, or an own engine's load read for it
	Forced     bool    // it may be chosen though it is ejected: see Overrule
	Score      float64 // seconds; set by Rank

	slots cachestate.Held // its slots in the indexes of the tiers, or -1
}

// Question is what a decision is about.
type Question struct {
	Rule     Rule
	Strategy Strategy
	Bytes    float64 // canonical bytes of the prompt
	Locality bool    // whether overlap counts: false below the locality minimum and for prompts without keys
	Pin      Pin     // what strategies that hash go by
	Learned  Learned // by the model's engines
	Zone     string  // of the agent that decides; "" when nobody said
}

// Eligible reports whether c may be chosen at all.
func (c *Candidate) Eligible() bool {
	return c.State != Unreachable && c.Load.Usable() && (c.Forced || c.Load.Flags&engine.Ejected == 0)
}

// OverlapTokens is the overlap in tokens, as this engine's answers have taught to count them.
func (c *Candidate) OverlapTokens(q *Question) float64 {
	return c.Overlap / firstAbove0(c.Load.BytesPerToken, q.Learned.BytesPerToken, engine.DefaultBytesPerToken)
}

// NewSeconds is the time that the engine needs for the part of the prompt that it does not hold.
func (c *Candidate) NewSeconds(q *Question) float64 {
	_, own := c.work(q, c.Overlap)
	return own
}

// expected is the time until the engine's first content: its queue, and the part of the prompt that it does not hold.
func (c *Candidate) expected(q *Question) time.Duration {
	return time.Duration((c.Load.QueuedSeconds + c.NewSeconds(q)) * float64(time.Second))
}

// WholeSeconds is the time that the engine would need for the whole prompt.
func (c *Candidate) WholeSeconds(q *Question) float64 {
	_, own := c.work(q, 0)
	return own
}

// maxSlowness bounds how much slower or faster than the others an engine can be: beyond it a measurement is wrong.
const maxSlowness = 8

// work returns x, the reference seconds of the prompt less an overlap, and what they are at this engine: x·s. The size of a
// token is the model's: what one engine learned of its own traffic must not make it look faster than the others.
func (c *Candidate) work(q *Question, overlap float64) (reference, own float64) {
	perToken := firstAbove0(q.Learned.BytesPerToken, c.Load.BytesPerToken, engine.DefaultBytesPerToken)
	n, ctx := max(q.Bytes-overlap, 0)/perToken, q.Bytes/perToken
	mean := q.Learned.reference()
	reference = mean.seconds(n, ctx)
	if c.Load.PrefillRate == 0 {
		return reference, reference
	}
	mine := prefill{firstAbove0(c.Load.PrefillFixed, mean.fixed), c.Load.PrefillRate, firstAbove0(c.Load.PrefillBend, mean.bend)}
	return reference, min(max(mine.seconds(n, ctx), reference/maxSlowness), reference*maxSlowness)
}

// score is u + x·s + (W0-1)·x + g·x·(u + x/2) + c·r + e: the request's own delay in the engine's seconds, what it costs
// others in reference seconds, and for a candidate that has not answered the time of finding out.
func (c *Candidate) score(q *Question) float64 {
	u := c.Load.QueuedSeconds
	x, own := c.work(q, min(c.Overlap*q.Rule.LocalityWeight, q.Bytes))
	score := u + own + (q.Rule.WaitWeight-1)*x + q.Rule.step(&q.Learned)*x*(u+x/2) +
		q.Rule.requestCost(&q.Learned)*float64(c.Load.InFlight)
	if c.unanswered() {
		score += unheard
	}
	return score
}

// unheard is the price in seconds of a candidate that has not answered: the least time until it is known not to accept. A
// suspect has mostly lost a heartbeat, so that a prompt whose prefill takes seconds is worth a try there; of one that is
// fresh the heartbeat may be a second old.
const unheard = float64(acceptFloor) / float64(time.Second)

// unanswered reports whether a decision goes by numbers for c that it meant to have confirmed: c is suspect, or among the
// best, and no answer is here.
func (c *Candidate) unanswered() bool { return !c.Probed && (c.Asked || c.State == Suspect) }

// ProbeSet returns the indices in short of the candidates to ask for their load: the best by score, at least one of which is
// not there for its overlap, because a set made by overlap alone collapses onto few engines. Of a question with a pin they
// are the first in its order. Own engines are among them; their load is read directly.
func ProbeSet(q *Question, short []Candidate) []int {
	order := make([]int, len(short))
	for i := range order {
		order[i] = i
	}
	if q.Pin != 0 {
		return order[:min(q.Rule.Probes, len(order))]
	}
	scores := make([]float64, len(short))
	for i := range short {
		scores[i] = short[i].score(q)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[a], scores[b]) })
	set := order[:min(q.Rule.Probes, len(order))]
	byChance := func(i int) bool { return !short[i].ForOverlap }
	if len(set) > 0 && !slices.ContainsFunc(set, byChance) {
		if i := slices.IndexFunc(order, byChance); i >= 0 {
			set[len(set)-1] = order[i]
		}
	}
	return set
}

// Rank scores the candidates and sorts them: those that were asked first, then by score, lowest first. Of ties for the first
// place those in the question's zone come first, and then chance decides. One that has not answered competes with what heartbeats told, at the price of a wrong try: a holder is
// worth more than a fresh number. Of a question with a pin it is behind the others. Candidates that are not eligible are
// left out.
func Rank(q *Question, short []Candidate, rng *rand.Rand) []Candidate {
	ranked := slices.DeleteFunc(slices.Clone(short), func(c Candidate) bool { return !c.Eligible() })
	for i := range ranked {
		ranked[i].Score = ranked[i].score(q)
	}
	if q.Pin != 0 {
		q.rankPinned(ranked)
		return ranked
	}
	slices.SortFunc(ranked, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(flag(b.Asked), flag(a.Asked)), cmp.Compare(a.Score, b.Score), cmp.Compare(a.ID, b.ID))
	})
	equal := q.ties(ranked)
	rng.Shuffle(len(equal), func(i, j int) { equal[i], equal[j] = equal[j], equal[i] })
	if q.Zone != "" {
		slices.SortStableFunc(equal, func(a, b Candidate) int { return cmp.Compare(flag(q.near(&b)), flag(q.near(&a))) })
	}
	return ranked
}

// ties returns the candidates that share the first place of a ranked list.
func (q *Question) ties(ranked []Candidate) []Candidate {
	best, n := math.Inf(1), 0
	for n < len(ranked) && ranked[n].Asked == ranked[0].Asked {
		best = min(best, ranked[n].Score)
		n++
	}
	for n > 0 && ranked[n-1].Score > best+q.Rule.Tie {
		n--
	}
	return ranked[:n]
}

// near reports whether c is in the zone of the agent that decides.
func (q *Question) near(c *Candidate) bool { return q.Zone != "" && c.Zone == q.Zone }

// TieBreak says why the first of ranked was taken before others that are as good: "same zone", or "" when chance did it or
// there are none.
func TieBreak(q *Question, ranked []Candidate) string {
	if q.Pin != 0 || len(ranked) == 0 || !q.near(&ranked[0]) {
		return ""
	}
	if slices.ContainsFunc(q.ties(ranked), func(c Candidate) bool { return !q.near(&c) }) {
		return "same zone"
	}
	return ""
}

// Reason says in one word why the first of ranked was chosen.
func Reason(q *Question, ranked []Candidate) string {
	best := 0.0
	for i := range ranked {
		best = max(best, ranked[i].Overlap)
	}
	switch {
	case len(ranked) == 1:
		return "only"
	case q.Pin != 0 && q.within(&ranked[0]):
		return "hash"
	case q.Pin != 0 || q.Strategy == StrategyLoad:
		return "load"
	case !q.Locality:
		return "short"
	case best == 0:
		return "cold"
	case ranked[0].Overlap == best:
		return "prefix"
	default:
		return "load"
	}
}
