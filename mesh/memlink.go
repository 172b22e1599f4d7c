package mesh

import (
	"math/rand/v2"
	"time"
)

// MemLink is what packets meet on their way from one host of a MemNetwork to another. The zero value carries all of them at
// once.
type MemLink struct {
	Delay, Jitter time.Duration // under way for Delay and up to Jitter more, so that packets may overtake
	Loss          float64       // share that is lost, 0 to 1
	Repeat        float64       // share that arrives twice, each copy at its own time, 0 to 1
	Rate          int           // bytes a second with all headers; 0 for no bound
	MTU           int           // bytes of the largest packet with all headers, larger ones vanish; 0 for no bound
}

// linkQueue is how long a packet waits at most for those before it on a link with a rate; what would wait longer is lost.
// More would be a buffer that hides from the senders that they send too much.
const linkQueue = 50 * time.Millisecond

// memLink is one direction of a pair of hosts.
type memLink struct {
	set  *MemLink  // nil: as all
	free time.Time // when it will have sent what it has taken
}

// carry returns when the copies of a packet of size bytes arrive that begins its way now: none when it is lost.
func (l *memLink) carry(as *MemLink, size int, now time.Time, rng *rand.Rand) []time.Duration {
	if as.MTU > 0 && size > as.MTU || as.Loss > 0 && rng.Float64() < as.Loss {
		return nil
	}
	queued := time.Duration(0)
	if as.Rate > 0 {
		if queued = max(0, l.free.Sub(now)); queued > linkQueue {
			return nil
		}
		queued += time.Duration(size) * time.Second / time.Duration(as.Rate)
		l.free = now.Add(queued)
	}
	arrive := func() time.Duration {
		d := queued + as.Delay
		if as.Jitter > 0 {
			d += time.Duration(rng.Int64N(int64(as.Jitter)))
		}
		return d
	}
	copies := []time.Duration{arrive()}
	if as.Repeat > 0 && rng.Float64() < as.Repeat {
		copies = append(copies, arrive())
	}
	return copies
}
