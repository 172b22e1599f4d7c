package book

import "math"

// fit finds the curve that prefills lie on: least squares over the seconds per token, which for n tokens in a context of
// ctx are fixed/n + perToken + bend·(ctx − n/2). Seconds per token and not seconds, so that one long prompt does not weigh
// as much as a hundred short ones. Samples fade. Its zero value has none.
type fit struct {
	samples float64
	xx      [terms][terms]float64 // sums of products, in the units of termUnits
	xy      [terms]float64
	yy      float64
}

// The terms of a curve.
const (
	termToken = iota
	termFixed
	termBend
	terms
)

// termUnits bring the terms of usual prompts to about one, so that sums of their products lose nothing: a prompt of 1,000
// tokens, and the mean distance at which its last ones look.
var termUnits = [terms]float64{termToken: 1, termFixed: 1000, termBend: 1e-4}

const (
	// keepFit remembers fifty prefills: more than the mean rate, since three terms need more than one.
	keepFit = 0.98
	// minFit is how many samples must be remembered before more than a rate is believed.
	minFit = 16
	// fitNoise is the relative error that samples have at least: what fits better fits by chance.
	fitNoise = 0.01
	// maxOutlier is how far a sample may lie from what is expected, once something is: a stall of the whole engine is no
	// property of the prompt in it.
	maxOutlier = 4
)

// add takes a prefill of a that took so many seconds, where the curve c was expected.
func (f *fit) add(a amount, took float64, c curve) {
	if expected := c.seconds(a); f.samples >= minFit {
		took = min(max(took, expected/maxOutlier), expected*maxOutlier)
	}
	n := float64(a.tokens)
	x := [terms]float64{termToken: 1, termFixed: 1 / n, termBend: a.bend / n}
	y := took / n
	f.samples = f.samples*keepFit + 1
	f.yy = f.yy*keepFit + y*y
	for i := range terms {
		x[i] *= termUnits[i]
		f.xy[i] = f.xy[i]*keepFit + x[i]*y
		for j := range i + 1 {
			f.xx[i][j] = f.xx[i][j]*keepFit + x[i]*x[j]
			f.xx[j][i] = f.xx[i][j]
		}
	}
}

// best returns the curve with the terms that the samples bear out, none of them negative. ok is false when those say no more
// than a rate. A further term must lessen the error by more than chance would (Schwarz's criterion): samples of one size
// tell nothing of a fixed part or of a bend, and noise is not to look like either.
func (f *fit) best() (c curve, ok bool) {
	if f.samples < minFit {
		return curve{}, false
	}
	candidates := [][]int{{termToken}, {termToken, termFixed}, {termToken, termBend}, {termToken, termFixed, termBend}}
	lowest := math.Inf(1)
	for _, with := range candidates {
		theta, solved := f.solve(with)
		if !solved {
			continue
		}
		if s := f.score(theta, len(with)); s < lowest {
			lowest, ok = s, len(with) > 1
			c = curve{
				perToken: theta[termToken] * termUnits[termToken],
				fixed:    theta[termFixed] * termUnits[termFixed],
				bend:     theta[termBend] * termUnits[termBend],
			}
		}
	}
	return c.bounded(), ok
}

// score is the criterion: the lower, the better.
func (f *fit) score(theta [terms]float64, parameters int) float64 {
	rest := f.yy
	for i := range terms {
		rest -= 2 * theta[i] * f.xy[i]
		for j := range terms {
			rest += theta[i] * theta[j] * f.xx[i][j]
		}
	}
	rest = max(rest, fitNoise*fitNoise*f.yy)
	return f.samples*math.Log(rest) + float64(parameters)*math.Log(f.samples)
}

// solve returns the least squares of some terms, the others being 0. It is false when the samples do not tell them apart,
// or when one would be negative.
func (f *fit) solve(with []int) (theta [terms]float64, ok bool) {
	var m [terms][terms + 1]float64
	k := len(with)
	for i := range k {
		for j := range k {
			m[i][j] = f.xx[with[i]][with[j]]
		}
		m[i][k] = f.xy[with[i]]
	}
	for i := range k { // by Cholesky's order: what is left of a diagonal is what the terms before it do not explain
		if m[i][i] <= 1e-6*f.xx[with[i]][with[i]] {
			return theta, false
		}
		for row := i + 1; row < k; row++ {
			by := m[row][i] / m[i][i]
			for j := i; j <= k; j++ {
				m[row][j] -= by * m[i][j]
			}
		}
	}
	for i := k - 1; i >= 0; i-- {
		v := m[i][k]
		for j := i + 1; j < k; j++ {
			v -= m[i][j] * theta[with[j]]
		}
		if v /= m[i][i]; v < 0 {
			return theta, false
		}
		theta[with[i]] = v
	}
	return theta, theta[termToken] > 0
}
