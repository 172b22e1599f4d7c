package book

import "github.com/kvmesh/kvmesh/internal/engine"

// ratio is a running mean of a quotient: both sums fade with each sample, so that a large sample weighs more than a
// small one and none weighs for ever.
type ratio struct {
	num, den float64
	keep     float64 // share of the past that a sample leaves; 1/(1-keep) samples are remembered
}

func (r *ratio) add(num, den float64) { r.num, r.den = r.num*r.keep+num, r.den*r.keep+den }

// within returns the quotient, held between low and high.
func (r *ratio) within(low, high float64) float64 { return min(max(r.num/r.den, low), high) }

// speeds are what answers teach about an engine's pace.
type speeds struct {
	prefill ratio // new tokens ÷ seconds from becoming head of the queue to the first content
	fit     fit   // of the same prefills
	curve   curve // what prefill takes
	bytes   ratio // canonical bytes ÷ prompt tokens

	measured, sized bool // a prefill was, a prompt was
}

// newSpeeds starts from the defaults, which weigh as much as one second of prefill and one prompt of 100 tokens: the size
// of a token is a sum over a whole prompt, so the first long one knows it within a percent.
// Twenty prefills are remembered, because speed changes with what else runs; a hundred prompts for the size of a token,
// which changes with the language of the traffic.
func newSpeeds() speeds {
	return speeds{
		prefill: ratio{num: engine.DefaultPrefillRate, den: 1, keep: 0.95},
		curve:   defaultCurve(),
		bytes:   ratio{num: 100 * engine.DefaultBytesPerToken, den: 100, keep: 0.99},
	}
}

// learned is the curve, or zero while no prefill was measured: peers then take the engine for as fast as the others of its
// model. A default announced as if measured would starve an engine beside faster ones that have been.
func (s *speeds) learned() (rate, fixed, bend float64) {
	if !s.measured {
		return 0, 0, 0
	}
	return 1 / s.curve.perToken, s.curve.fixed, s.curve.bend
}

// learnedSize is bytesPerToken, or 0 while no prompt was counted.
func (s *speeds) learnedSize() float64 {
	if !s.sized {
		return 0
	}
	return s.bytesPerToken()
}

// bytesPerToken is bounded by a tokenizer of less than bytes (tags that are not counted as content) and one of words.
func (s *speeds) bytesPerToken() float64 { return s.bytes.within(0.5, 64) }

// minPrefillSample is the least new tokens that say something about speed: below it the step of the running requests,
// not the prompt, sets the time to the first content.
const minPrefillSample = 512

// learnPrefill takes the seconds of one prompt that had the engine's prefill to itself. Until the samples bear out more, the
// curve is their mean rate.
func (s *speeds) learnPrefill(a amount, took float64) {
	if a.tokens < minPrefillSample || !(took > 0) {
		return
	}
	if s.fit.samples >= minFit { // as in the fit: an engine that has become slow is to be seen as such before that is its speed
		took = min(took, maxOutlier*s.curve.seconds(a))
	}
	s.prefill.add(float64(a.tokens), took)
	s.fit.add(a, took, s.curve)
	s.measured = true
	var ok bool
	if s.curve, ok = s.fit.best(); !ok {
		s.curve = curve{perToken: 1 / s.prefill.within(minPrefillRate, maxPrefillRate)}
	}
}

// minSizeSample is the least bytes of a prompt that say something about the size of a token: the chat template adds some
// ten tokens of its own, as many as a short question has.
const minSizeSample = 1024

func (s *speeds) learnSize(bytes int64, tokens int) {
	if bytes >= minSizeSample && tokens > 0 {
		s.bytes.add(float64(bytes), float64(tokens))
		s.sized = true
	}
}
