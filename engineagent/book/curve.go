package book

// curve is how long prefill takes: of n tokens in a context of ctx, fixed + n·perToken + bend·n·(ctx − n/2) seconds. The
// last term is attention, where each new token looks at those before it.
type curve struct {
	fixed    float64 // seconds a prompt
	perToken float64 // seconds a token
	bend     float64 // seconds per token squared
}

// seconds returns how long an amount of prefill takes, one prompt after the other.
func (c curve) seconds(a amount) float64 {
	return float64(a.prompts)*c.fixed + float64(a.tokens)*c.perToken + a.bend*c.bend
}
