package forward

import "github.com/kvmesh/kvmesh/internal/engine"

// Learned is what the engines of a model have learned on the mean: the reference that single ones are measured by. An engine
// that has not learned yet counts as one of them: a default taken for a measurement would starve it, or all others, for ever.
type Learned struct {
	PrefillFixed  float64 // seconds; 0 while no engine has learned it, as the next four
	PrefillRate   float64 // tokens/s
	PrefillBend   float64 // seconds per token squared
	BytesPerToken float64
	RequestCost   float64 // seconds

	AcceptRate float64 // requests a second and engine, over those that can be chosen
	BusyShare  float64 // likewise, 0 to 1
	InFlight   float64 // requests, likewise
}

// LearnedBy returns the means over all engines of a model.
func LearnedBy(all []Candidate) Learned {
	var fixed, rate, bend, size, cost, accepts, busy, inFlight mean
	for i := range all {
		l := &all[i].Load
		fixed.addAbove0(l.PrefillFixed)
		rate.addAbove0(l.PrefillRate)
		bend.addAbove0(l.PrefillBend)
		size.addAbove0(l.BytesPerToken)
		cost.addAbove0(l.RequestCost)
		if all[i].Known && all[i].Eligible() {
			accepts.add(l.AcceptRate)
			busy.add(l.BusyShare)
			inFlight.add(float64(l.InFlight))
		}
	}
	return Learned{
		PrefillFixed: fixed.value(), PrefillRate: rate.value(), PrefillBend: bend.value(), BytesPerToken: size.value(),
		RequestCost: cost.value(), AcceptRate: accepts.value(), BusyShare: busy.value(), InFlight: inFlight.value(),
	}
}

// mean is a running mean; that of nothing is 0.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v float64) {
	m.sum += v
	m.n++
}

// addAbove0 adds what was learned: 0 is not.
func (m *mean) addAbove0(v float64) {
	if v > 0 {
		m.add(v)
	}
}

func (m *mean) value() float64 { return m.sum / float64(max(m.n, 1)) }

// prefill is what an engine, or the mean of a model's, needs for a prompt.
type prefill struct {
	fixed, rate, bend float64
}

// seconds is a + n/rate + d·n·(ctx - n/2) for n new tokens at the end of ctx: each of them attends to all before it.
func (p prefill) seconds(n, ctx float64) float64 { return p.fixed + n/p.rate + p.bend*n*(ctx-n/2) }

// reference is the prefill of the model's engines on the mean.
func (l *Learned) reference() prefill {
	return prefill{l.PrefillFixed, firstAbove0(l.PrefillRate, engine.DefaultPrefillRate), l.PrefillBend}
}

func firstAbove0(values ...float64) float64 {
	for _, v := range values {
		if v > 0 {
			return v
		}
	}
	return 0
}
