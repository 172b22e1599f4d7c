package cachestate

// habits are what was learned of how an engine's model renders conversations as they go on. All are running means.
type habits struct {
	stay   [numTurns]float64 // share of the fickle keys whose rendering stayed, by the kind of turn that brought them
	repeat [numTurns]float64 // share of an answer that the next prompt repeats token by token
	shared [numGaps]float64  // share of the text up to the next key that a prompt still shares when it parts before it
	even   float64           // share of a prompt that the next one through the same keys repeats: 1 for a stable template
	pairs  int               // comparisons that even rests on, up to evenPairs
}

const (
	// staysAbove is how often fickle keys must have stayed to be believed: a false hit costs a prefill elsewhere, a
	// missed one a prefill here.
	staysAbove = 0.7
	// stayFirst is believed at first, and after two disappointments not any more.
	stayFirst = 0.8
	stayRate  = 1.0 / 16

	repeatRate = 1.0 / 8
	sharedRate = 1.0 / 32

	// evenBelow marks a layout as unstable: half of what two prompts have in common is rendered in another way.
	evenBelow = 0.5
	evenRate  = 1.0 / 16
	evenPairs = 8
)

func newHabits() habits {
	h := habits{even: 1}
	for t := range numTurns {
		h.stay[t] = stayFirst
	}
	return h
}

// stays reports whether fickle keys of such a turn are believed.
func (h *habits) stays(t Turn) bool { return h.stay[t] >= staysAbove }

// stayed takes whether a fickle key's rendering stayed.
func (h *habits) stayed(t Turn, did bool) {
	sample := 0.0
	if did {
		sample = 1
	}
	h.stay[t] += (sample - h.stay[t]) * stayRate
}

// repeated takes which share of an answer the next prompt repeated.
func (h *habits) repeated(t Turn, share float64) {
	h.repeat[t] += (min(max(share, 0), 1) - h.repeat[t]) * repeatRate
}

// parted takes which share of the text up to the next key two prompts had in common.
func (h *habits) parted(k gapKind, share float64) {
	h.shared[k] += (min(max(share, 0), 1) - h.shared[k]) * sharedRate
}

// compared takes which share of what two prompts have in common was rendered alike.
func (h *habits) compared(share float64) {
	h.pairs = min(h.pairs+1, evenPairs)
	h.even += (min(max(share, 0), 1) - h.even) * max(evenRate, 1/float64(h.pairs+1))
}

// unstable reports whether the model's layout makes residency useless.
func (h *habits) unstable() bool { return h.pairs == evenPairs && h.even < evenBelow }
