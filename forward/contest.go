package forward

import (
	"math/rand/v2"
	"time"
)

// contest keeps the agents apart that hear of a free slot at the same moment: each lets a random part of its spread pass first.
// Who was too early waits for longer the next time, who was too late for less. A winner waits a little longer too, since who
// wins hears of no others: without that the first to win would win for ever. Where nobody else was seen lately a winner waits
// only now and then, to see. Of eight agents that hear of each slot at once two to four try for it, and all get as many.
//
// The zero value is ready for use.
type contest struct {
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
func (c *contest) delay() time.Duration {
	if c.spread < time.Microsecond {
		return 0
	}
	return rand.N(c.spread)
}

// lost notes that a slot was gone when it was tried for.
func (c *contest) lost() {
	c.others = aloneAfter
	c.spread = min(c.spread+earlyStep, maxSpread)
}

// late notes that a slot was gone before it was tried for.
func (c *contest) late() {
	c.others = aloneAfter
	c.spread -= c.spread / 5
}

func (c *contest) won() {
	switch {
	case c.others > 0:
		c.others--
		c.spread = min(c.spread+wonStep, maxSpread)
	case rand.IntN(lookEvery) == 0:
		c.spread = lookSpread
	default:
		c.spread = 0
	}
}
