package simulate

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/kvmesh/kvmesh/internal/workload"
)

// stream is generated traffic below one system prompt that all its requests share, as agents with tools send it: ROUTING.md
// part C, workload "hot". Sizes are chosen so that round robin finds 29.6 % of the tokens cached, as there.
type stream struct {
	rate   float64 // of requests, as a factor on the mean rate of the trace
	blocks int     // of the shared prompt
	rest   lengths // tokens behind it
	brief  float64 // share of answers that are calls of a tool: 3 to 30 tokens
	answer lengths // the others
}

var streams = []stream{
	{rate: 0.67, blocks: 12, rest: lengths{median: 470, sigma: 0.8, most: 8000}, brief: 0.9, answer: lengths{median: 250, sigma: 0.8, most: 2000}},
	{rate: 0.25, blocks: 5, rest: lengths{median: 950, sigma: 0.8, most: 16000}, brief: 0.9, answer: lengths{median: 250, sigma: 0.8, most: 2000}},
}

// lengths is a lognormal distribution of tokens.
type lengths struct {
	median int
	sigma  float64 // of the logarithm
	most   int     // longer draws are cut to it
}

func (l lengths) draw(rng *rand.Rand) int {
	n := math.Round(float64(l.median) * math.Exp(l.sigma*rng.NormFloat64()))
	return int(min(max(n, 1), float64(l.most)))
}

// mixIn adds the generated streams to a replay, at random times over the run's span.
func (p *replay) mixIn(t *workload.Trace, c *Config) {
	rng := newRand(c.Seed, streamMixture)
	whole := t.Requests[len(t.Requests)-1].At.Seconds()
	recorded := float64(len(t.Requests)*copiesFor(c)) / whole * c.Span.Seconds() * c.Load
	for _, s := range streams {
		system := p.made
		p.made += s.blocks
		for range int(s.rate * recorded) {
			k := template{output: s.answer.draw(rng), generated: true}
			if rng.Float64() < s.brief {
				k.output = 3 + rng.IntN(28)
			}
			rest := s.rest.draw(rng)
			own := (rest + traceBlockTokens - 1) / traceBlockTokens
			k.input = s.blocks*traceBlockTokens + rest
			k.runs = []workload.BlockRun{{First: uint64(system), Count: s.blocks}, {First: uint64(p.made), Count: own}}
			p.made += own
			p.kinds = append(p.kinds, k)
			at := time.Duration(rng.Float64() * float64(c.Span))
			p.arrivals = append(p.arrivals, arrival{at: at, kind: int32(len(p.kinds) - 1)})
		}
	}
	p.sort()
}
