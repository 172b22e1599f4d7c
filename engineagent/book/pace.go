package book

import "time"

// pace compares the last prefills with what the engine's own past makes expect. It is a sum over several: prompts that share
// a step have their first tokens together, and the time of one is that of all.
type pace struct {
	ring [paceSamples]*Entry
	next int // place of the next
	n    int // in the ring
}

const (
	// paceSamples is how many first contents are looked at: fewer take chance for a change, more find it later. Of a prompt of
	// 10,000 tokens each takes six seconds where it should take 0.6.
	paceSamples = 5
	// paceSlow is how many of them must have been slow by themselves: one is a stall.
	paceSlow = 2
	// paceWindow is how old they may be.
	paceWindow = 2 * time.Minute
	// slowFactor is how much slower than expected an engine must be to be an outlier. Twice is decode beside prefill, or a
	// cache that does not hold what was thought.
	slowFactor = 4
	// paceFloor is added to what a prefill should take, in seconds: that of a short prompt takes a step of those that run.
	paceFloor = 0.05
)

func (p *pace) add(e *Entry) {
	p.ring[p.next] = e
	p.next = (p.next + 1) % paceSamples
	p.n = min(p.n+1, paceSamples)
}

func (p *pace) clear() { *p = pace{} }

// slow reports whether the last prefills took slowFactor times as long as they should have.
func (p *pace) slow(now time.Time) bool {
	if p.n < paceSamples || now.Sub(p.ring[p.next].heard) > paceWindow {
		return false
	}
	var took, due float64
	n := 0
	for _, e := range p.ring {
		took += e.took
		due += e.due + paceFloor
		if e.slow() {
			n++
		}
	}
	return n >= paceSlow && took > slowFactor*due
}

// slow reports whether the prefill of e alone took too long.
func (e *Entry) slow() bool { return e.took > slowFactor*(e.due+paceFloor) }
