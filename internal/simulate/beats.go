package simulate

import (
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// remembered is how many heartbeats of an agent are kept for those that have not read them: who has heard none of
// the last two holds the agent for suspect, and a load so old tells nothing, so older ones change nothing.
const remembered = 8

// beats are the last heartbeats that an agent sent. Readers fetch them when they decide, which gives what pushing each to
// all would, without a thousand events a beat.
type beats struct {
	sent uint64 // heartbeats ever sent
	ring [remembered]beat
}

type beat struct {
	at   time.Duration
	load engine.Load
}

func (b *beats) add(at time.Duration, l engine.Load) {
	b.ring[b.sent%remembered] = beat{at, l}
	b.sent++
}

// newest returns the number of the newest heartbeat above known that has come through to a reader, as arrived tells; false
// when there is none.
func (b *beats) newest(known uint64, arrived func(number uint64, sent time.Duration) bool) (uint64, bool) {
	oldest := known
	if b.sent > remembered {
		oldest = max(known, b.sent-remembered)
	}
	for n := b.sent; n > oldest; n-- {
		if arrived(n, b.ring[(n-1)%remembered].at) {
			return n, true
		}
	}
	return 0, false
}

// number returns the heartbeat of that number, which newest has returned.
func (b *beats) number(n uint64) *beat { return &b.ring[(n-1)%remembered] }

// last returns when the last heartbeat was sent; 0 before the first.
func (b *beats) last() time.Duration {
	if b.sent == 0 {
		return 0
	}
	return b.number(b.sent).at
}

// clear forgets what was sent, but not how much: numbers go on.
func (b *beats) clear() { b.ring = [remembered]beat{} }
