package book

import "github.com/kvmesh/kvmesh/internal/engine"

// curve is how long prefill takes: of n tokens in a context of ctx, fixed + n·perToken + bend·n·(ctx − n/2) seconds. The
// last term is attention, where each new token looks at those before it.
type curve struct {
	fixed    float64 // seconds a prompt
	perToken float64 // seconds a token
	bend     float64 // seconds per token squared
}

// defaultCurve stands until something is learned.
func defaultCurve() curve { return curve{perToken: 1 / engine.DefaultPrefillRate} }

// seconds returns how long an amount of prefill takes, one prompt after the other.
func (c curve) seconds(a amount) float64 {
	return float64(a.prompts)*c.fixed + float64(a.tokens)*c.perToken + a.bend*c.bend
}

// The bounds of a curve: a small model on a laptop, a hundred times the fastest engine known, and what a load can tell.
const (
	minPrefillRate = 10
	maxPrefillRate = 1e7
	maxFixed       = 10
	maxBend        = 1e-4
)

// bounded returns c within the bounds.
func (c curve) bounded() curve {
	return curve{
		fixed:    min(c.fixed, maxFixed),
		perToken: min(max(c.perToken, 1.0/maxPrefillRate), 1.0/minPrefillRate),
		bend:     min(c.bend, maxBend),
	}
}
