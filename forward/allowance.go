package forward

import (
	"math"
	"time"
)

// allowanceTime is how long requests and what was done beside them count. An engine that dies fails at once all that wait there
// for their first token, some seconds of its requests: the shorter the time, the fewer of them can be tried elsewhere; the
// longer, the more can be tried at once when all engines fail.
const allowanceTime = 30 * time.Second

// allowance bounds what is done beside the requests of a class: to a share of them, and a floor. Both are sums that decay with
// allowanceTime, so that over any span of time with n requests at most
//
//	share·(n + r) + floor·(span + allowanceTime)
//
// is done, where r is what is left of the requests before.
type allowance struct {
	requests, spent float64 // decayed to at
	at              time.Time
}

func (a *allowance) decay(now time.Time) {
	if d := now.Sub(a.at); d > 0 {
		f := decayOver(d)
		a.requests, a.spent, a.at = a.requests*f, a.spent*f, now
	}
}

func decayOver(d time.Duration) float64 { return math.Exp(-d.Seconds() / allowanceTime.Seconds()) }

// request counts one request.
func (a *allowance) request(now time.Time) {
	a.decay(now)
	a.requests++
}

// take reports whether one thing more may be done, and counts it if so. Floor is a rate, in things a second.
func (a *allowance) take(now time.Time, share, floor float64) bool {
	a.decay(now)
	if a.spent+1 > share*a.requests+floor*allowanceTime.Seconds() {
		return false
	}
	a.spent++
	return true
}

// give takes back what was not done after all.
func (a *allowance) give() { a.spent = max(a.spent-1, 0) }
