package book

import "math"

// decode learns what one more running request costs the others: how much longer each of their tokens takes, times the
// tokens that they have. It is the slope of the seconds per token of each finished stream over the mean number of requests
// that ran with it, at an equal share of time with prefill work: engines that prefill decode slower, and they prefill the
// more the more requests they have, which those that run are not to blame for. Samples fade. Its zero value has none.
type decode struct {
	samples float64
	mean    decoded // of the samples
	// Sums of products of what lies off the means.
	xx, xz, zz, xy, zy, yy float64
	output                 float64 // mean tokens of an answer
	answers                float64
	cost                   float64 // seconds; 0 until known
}

// decoded is what one stream met.
type decoded struct {
	running  float64 // requests, on the mean: x
	prefill  float64 // share of its time with prefill work, 0 to 1: z
	perToken float64 // seconds: y
}

const (
	// keepDecode remembers two hundred streams: the load must have changed meanwhile, or there is no slope to see.
	keepDecode = 0.995
	// keepOutput remembers a hundred answers.
	keepOutput = 0.99
	// minDecode is how many samples must be remembered before their slope is believed.
	minDecode = 30
	// minSpread is the least variance of the running requests over which a slope is looked for.
	minSpread = 0.1
	// minShareSpread is the least variance of the share of prefill that is taken into account: less cannot matter.
	minShareSpread = 1e-4
	// minTokens is how long an answer must be: the time of a short one is that of the steps it happened to meet.
	minTokens = 16
	// The slope is believed when the standard error of the cost is below either: a cost of nothing is never known to a share.
	maxCostShare = 0.1
	maxCostError = 0.002
	// The bounds of a cost, in seconds, as in simulation: without it a shared prompt draws all work to few engines, and with
	// too much of it no cached prompt is worth a walk.
	minRequestCost = 0.01
	maxRequestCost = 0.1
)

// answered takes the length of an answer.
func (d *decode) answered(tokens int) {
	d.answers = d.answers*keepOutput + 1
	d.output += (float64(tokens) - d.output) / d.answers
}

// add takes a stream.
func (d *decode) add(s decoded) {
	if d.samples >= minDecode {
		s.perToken = min(s.perToken, maxOutlier*d.mean.perToken) // a client that does not read holds up its stream
	}
	d.samples = d.samples*keepDecode + 1
	dx, dz, dy := s.running-d.mean.running, s.prefill-d.mean.prefill, s.perToken-d.mean.perToken
	d.mean.running += dx / d.samples
	d.mean.prefill += dz / d.samples
	d.mean.perToken += dy / d.samples
	rx, rz, ry := s.running-d.mean.running, s.prefill-d.mean.prefill, s.perToken-d.mean.perToken
	d.xx = d.xx*keepDecode + dx*rx
	d.xz = d.xz*keepDecode + dx*rz
	d.zz = d.zz*keepDecode + dz*rz
	d.xy = d.xy*keepDecode + dx*ry
	d.zy = d.zy*keepDecode + dz*ry
	d.yy = d.yy*keepDecode + dy*ry
	d.judge()
}

// judge takes the slope for the cost when it is certain enough. Else the last one stands: while the number of running
// requests does not change, nothing is learned, and nothing need be forgotten.
func (d *decode) judge() {
	xx, xy, yy := d.xx, d.xy, d.yy
	if d.zz > minShareSpread*d.samples { // what prefill explains is taken out of both
		xx -= d.xz * d.xz / d.zz
		xy -= d.xz * d.zy / d.zz
		yy -= d.zy * d.zy / d.zz
	}
	if d.samples < minDecode || xx < minSpread*d.samples {
		return
	}
	slope := xy / xx
	rest := max(yy-slope*xy, 0)
	deviation := math.Sqrt(rest / (d.samples - 3) / xx)
	cost := slope * d.output
	if deviation*d.output <= max(maxCostShare*cost, maxCostError) {
		d.cost = min(max(cost, minRequestCost), maxRequestCost)
	}
}
