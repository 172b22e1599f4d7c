package book

import "math"

// decode learns what one more running request costs the others: how much longer each of their tokens takes, times the
// tokens that they have. It is the slope of the seconds per token of each finished stream over the mean number of requests
// that ran with it. Samples fade. Its zero value has none.
type decode struct {
	samples      float64
	meanX, meanY float64 // running requests, seconds per token
	xx, xy, yy   float64 // sums of products of what lies off the means
	output       float64 // mean tokens of an answer
	answers      float64
	cost         float64 // seconds; 0 until known
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

// add takes a stream that took so many seconds for each token, while so many requests ran.
func (d *decode) add(running, perToken float64) {
	if d.samples >= minDecode {
		perToken = min(perToken, maxOutlier*d.meanY) // a client that does not read holds up its stream
	}
	d.samples = d.samples*keepDecode + 1
	dx, dy := running-d.meanX, perToken-d.meanY
	d.meanX += dx / d.samples
	d.meanY += dy / d.samples
	d.xx = d.xx*keepDecode + dx*(running-d.meanX)
	d.xy = d.xy*keepDecode + dx*(perToken-d.meanY)
	d.yy = d.yy*keepDecode + dy*(perToken-d.meanY)
	d.judge()
}

// judge takes the slope for the cost when it is certain enough. Else the last one stands: while the number of running
// requests does not change, nothing is learned, and nothing need be forgotten.
func (d *decode) judge() {
	if d.samples < minDecode || d.xx < minSpread*d.samples {
		return
	}
	slope := d.xy / d.xx
	rest := max(d.yy-slope*d.xy, 0)
	deviation := math.Sqrt(rest / (d.samples - 2) / d.xx)
	cost := slope * d.output
	if deviation*d.output <= max(maxCostShare*cost, maxCostError) {
		d.cost = min(max(cost, minRequestCost), maxRequestCost)
	}
}
