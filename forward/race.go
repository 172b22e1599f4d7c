package forward

import (
	"math/rand/v2"
	"time"
)

// race keeps the agents apart that hear of a free slot at the same moment: each lets a random part of its spread pass first.
// Who was too early waits for longer the next time, who was too late for less. A winner waits a little longer too, since who
// wins hears of no others: without that the first to win would win for ever. Where nobody else was seen lately a winner waits
// only now and then, to see. Of eight agents that hear of each slot at once two to four try for it, and all get as many.
//
// The zero value is ready for use.
type race struct {
	spread time.Duration
	others int // races until it is taken to be alone
}

const (
	earlyStep  = 2 * time.Millisecond // as long as it takes to see that a slot is gone
	wonStep    = time.Millisecond
	maxSpread  = 16 * time.Millisecond // above that slots stay free for long when there are few agents
	lookSpread = 8 * time.Millisecond
	lookEvery  = 16
	aloneAfter = 64
)

// delay draws what is to pass before a slot is tried for.
func (r *race) delay() time.Duration {
	if r.spread < time.Microsecond {
		return 0
	}
	return rand.N(r.spread)
}

// lost notes that a slot was gone when it was tried for.
func (r *race) lost() {
	r.others = aloneAfter
	r.spread = min(r.spread+earlyStep, maxSpread)
}

// late notes that a slot was gone before it was tried for.
func (r *race) late() {
	r.others = aloneAfter
	r.spread -= r.spread / 5
}

func (r *race) won() {
	switch {
	case r.others > 0:
		r.others--
		r.spread = min(r.spread+wonStep, maxSpread)
	case rand.IntN(lookEvery) == 0:
		r.spread = lookSpread
	default:
		r.spread = 0
	}
}
