package book

import (
	"math"
	"time"
)

// meterWindow is how far back accepts and business are remembered: long enough for a rate of one request in a few
// seconds, short enough to follow a changing load.
const meterWindow = 30 * time.Second

// meters are exponential means over meterWindow.
type meters struct {
	at     time.Time
	accept float64 // accepted requests a second
	busy   float64 // share of time with prefill work; Invariant: 0 <= busy <= 1
	ran    float64 // integral of the running requests over time, in seconds
	worked float64 // seconds with prefill work, ever
}

// advance brings the meters to now. busy says whether there was prefill work since the last call, running how many requests
// ran since then.
func (m *meters) advance(busy bool, running int, now time.Time) {
	dt := now.Sub(m.at)
	if dt <= 0 {
		return
	}
	keep := math.Exp(-dt.Seconds() / meterWindow.Seconds())
	m.at = now
	m.ran += float64(running) * dt.Seconds()
	m.accept *= keep
	m.busy *= keep
	if busy {
		m.worked += dt.Seconds()
		m.busy += 1 - keep
	}
}

// accepted counts one request at the time of the last advance.
func (m *meters) accepted() { m.accept += 1 / meterWindow.Seconds() }
