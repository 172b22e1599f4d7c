package book

import (
	"math"
	"time"
)

// penalty is the time that an engine which fails its requests is said to be busy: one that fails at once would else look
// like the least loaded and draw what the others could serve.
type penalty struct {
	streak int       // failures since the last answer
	until  time.Time // when it is to be tried as any other again
}

// The first failure costs 0.5 s, each further one in a row twice that, up to 5 s: a single one hardly matters, and an
// engine that is broken gets a dozen requests a minute that show whether it is mended. More of them cost more clients a
// second try, fewer leave a mended engine idle for longer.
const (
	penaltyStep = 500 * time.Millisecond
	maxPenalty  = 5 * time.Second
)

func (p *penalty) failed(now time.Time) {
	p.streak++
	step := time.Duration(float64(penaltyStep) * math.Pow(2, float64(min(p.streak-1, 10))))
	p.until = now.Add(min(step, maxPenalty))
}

func (p *penalty) answered() { *p = penalty{} }

// seconds is what is left of it.
func (p *penalty) seconds(now time.Time) float64 { return max(p.until.Sub(now).Seconds(), 0) }
