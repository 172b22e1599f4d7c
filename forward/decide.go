package forward

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// Candidate is one engine as a decision sees it.
type Candidate struct {
	ID         engine.ID
	Generation engine.Generation // of the digest that the overlap is from; 0 without overlap
	State      State
	Load       engine.Load
	Away       bool    // its agent is suspect or silent, but its connection stands: it may be heard again any moment
	Known      bool    // a load was heard; an engine without one competes as empty, and by probe
	Unverified bool    // nothing checks what its digests claim
	Scale      float64 // share of a claimed overlap that turns out true, above 0 and at most 1
	Overlap    float64 // canonical bytes of the prompt that it saves: what its digests hold, by tier, times Scale
	Asked      bool    // it is among the best, those that are probed for this decision
	Probed     bool    // Load is the answer to that probe, or an own engine's load read for it
	Score      float64 // seconds; set by Rank

	held cachestate.Held // leading keys that its digests hold
}

// Question is what a decision is about.
type Question struct {
	Bytes    float64 // canonical bytes of the prompt
	Locality bool    // whether overlap counts: false below the locality minimum and for prompts without keys
	Learned  Learned // of the model's engines
}

// Learned is what engines of a model have learned on the mean. An engine that has not learned yet counts as one of them: a
// default taken for a measurement would starve it, or all others, for ever.
type Learned struct {
	PrefillRate   float64 // tokens/s; 0 while no engine has learned it
	BytesPerToken float64 // likewise
}

func learnedBy(all []Candidate) Learned {
	mean := func(value func(engine.Load) float64) float64 {
		sum, n := 0.0, 0
		for i := range all {
			if v := value(all[i].Load); v > 0 {
				sum += v
				n++
			}
		}
		return sum / float64(max(n, 1))
	}
	return Learned{
		PrefillRate:   mean(func(l engine.Load) float64 { return l.PrefillRate }),
		BytesPerToken: mean(func(l engine.Load) float64 { return l.BytesPerToken }),
	}
}

// Parameters of the decision; DESIGN.md section 9 of the architecture has the measurements behind them.
const (
	byOverlap       = 3     // candidates taken for their overlap
	byChance        = 4     // candidates taken at random: fewer herd, more cost nothing but time
	probes          = 3     // candidates asked for their load before one is chosen
	workWeight      = 3.0   // price of a second of new work: its own delay and what it delays behind it, at 65 % utilisation
	perRequest      = 0.050 // seconds that one more running request costs the others until learned
	tie             = 0.010 // seconds by which scores may differ and still be equal: what engines of one kind learn differs by
	localityMinimum = 200   // tokens below which a prompt is not worth a look at digests or a probe
)

// Eligible reports whether c may be chosen at all, given that it answers a probe first where it must.
func (c *Candidate) Eligible() bool { return c.State != Unreachable && c.Load.Usable() }

// OverlapTokens is the overlap in tokens, as this engine's answers have taught to count them.
func (c *Candidate) OverlapTokens(q Question) float64 {
	return c.Overlap / firstAbove0(c.Load.BytesPerToken, q.Learned.BytesPerToken, engine.DefaultBytesPerToken)
}

// NewSeconds is the time that the engine needs for the part of the prompt that it does not hold. The size of a token is
// the model's: what one engine learned of its own traffic must not make it look faster than the others.
func (c *Candidate) NewSeconds(q Question) float64 {
	rate := firstAbove0(c.Load.PrefillRate, q.Learned.PrefillRate, engine.DefaultPrefillRate)
	perToken := firstAbove0(q.Learned.BytesPerToken, c.Load.BytesPerToken, engine.DefaultBytesPerToken)
	return max(q.Bytes-c.Overlap, 0) / perToken / rate
}

func firstAbove0(values ...float64) float64 {
	for _, v := range values {
		if v > 0 {
			return v
		}
	}
	return 0
}

// WholeSeconds is the time that the engine would need for the whole prompt.
func (c *Candidate) WholeSeconds(q Question) float64 {
	cold := *c
	cold.Overlap = 0
	return cold.NewSeconds(q)
}

// score is u + 3x + 50 ms × r: the seconds queued, thrice the new work, and what one more running request costs.
func (c *Candidate) score(q Question) float64 {
	return c.Load.QueuedSeconds + workWeight*c.NewSeconds(q) + perRequest*float64(c.Load.InFlight)
}

// Shortlist picks the candidates of a decision among all engines of the model: up to 3 with the most overlap (at least
// half of the best, and above the median), 4 at random, and the agent's own. It never takes the minimum over all: with
// many agents that herds even with a perfect index. The result is a fresh slice; all is reordered.
func Shortlist(q Question, all []Candidate, rng *rand.Rand) []Candidate {
	all = slices.DeleteFunc(all, func(c Candidate) bool { return !c.Eligible() })
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	short := make([]Candidate, 0, byOverlap+byChance+2)
	taken := 0
	if q.Locality {
		taken = bestOverlaps(all)
	}
	short = append(short, all[:taken]...)
	rest := all[taken:]
	chance := min(byChance, len(rest))
	short = append(short, rest[:chance]...)
	for _, c := range rest[chance:] {
		if c.State == Own {
			short = append(short, c)
		}
	}
	return short
}

// bestOverlaps moves the candidates that are taken for their overlap to the front of all and returns their number.
func bestOverlaps(all []Candidate) int {
	if len(all) == 0 {
		return 0
	}
	overlaps := make([]float64, len(all))
	for i := range all {
		overlaps[i] = all[i].Overlap
	}
	slices.Sort(overlaps)
	median, best := overlaps[(len(overlaps)-1)/2], overlaps[len(overlaps)-1]
	n := 0
	for n < min(byOverlap, len(all)) {
		i := n
		for j := n + 1; j < len(all); j++ {
			if all[j].Overlap > all[i].Overlap {
				i = j
			}
		}
		if o := all[i].Overlap; o == 0 || o < best/2 || (o <= median && len(all) > 2) {
			break
		}
		all[n], all[i] = all[i], all[n]
		n++
	}
	return n
}

// ProbeSet returns the indices in short of the candidates to ask for their load: the 3 best by score, at least one of
// which was not taken for its overlap, because a set made by overlap alone collapses onto few engines. Own engines are
// never asked: their load is read directly. A suspect is asked whenever it would be among the best.
func ProbeSet(q Question, short []Candidate) []int {
	order := make([]int, 0, len(short))
	best := 0.0
	for i := range short {
		best = max(best, short[i].Overlap)
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(short[a].score(q), short[b].score(q)) })
	set, chance := make([]int, 0, probes), 0
	for _, i := range order {
		byChance := short[i].Overlap == 0 || short[i].Overlap < best/2
		if len(set) == probes-1 && chance == 0 && !byChance && hasChance(order, short, best) {
			continue
		}
		if byChance {
			chance++
		}
		if set = append(set, i); len(set) == probes {
			break
		}
	}
	return set
}

func hasChance(order []int, short []Candidate, best float64) bool {
	return slices.ContainsFunc(order, func(i int) bool { return short[i].Overlap == 0 || short[i].Overlap < best/2 })
}

// Rank scores the candidates and sorts them: those that were asked first, then by score, lowest first, ties for the first
// place at random. One whose answer is late competes with what heartbeats told: a holder is worth more than a fresh
// number. Candidates that are not eligible, or are suspect and did not answer a probe, are left out.
func Rank(q Question, short []Candidate, rng *rand.Rand) []Candidate {
	ranked := slices.DeleteFunc(slices.Clone(short), func(c Candidate) bool {
		return !c.Eligible() || (c.State == Suspect && !c.Probed)
	})
	for i := range ranked {
		ranked[i].Score = ranked[i].score(q)
	}
	slices.SortFunc(ranked, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(flag(b.Asked), flag(a.Asked)), cmp.Compare(a.Score, b.Score))
	})
	equal := 0
	for equal < len(ranked) && ranked[equal].Asked == ranked[0].Asked && ranked[equal].Score <= ranked[0].Score+tie {
		equal++
	}
	rng.Shuffle(equal, func(i, j int) { ranked[i], ranked[j] = ranked[j], ranked[i] })
	return ranked
}

// Reason says in one word why the first of ranked was chosen.
func Reason(q Question, ranked []Candidate) string {
	switch best := slices.MaxFunc(ranked, func(a, b Candidate) int { return cmp.Compare(a.Overlap, b.Overlap) }); {
	case len(ranked) == 1:
		return "only"
	case !q.Locality:
		return "short"
	case best.Overlap == 0:
		return "cold"
	case ranked[0].Overlap == best.Overlap:
		return "prefix"
	default:
		return "load"
	}
}
