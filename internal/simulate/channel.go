package simulate

import (
	"math"
	"time"

	"github.com/kvmesh/kvmesh/internal/spread"
)

// in is what a message costs an agent that gets it and sends as many: the message, and the acknowledgement of its own.
func in(c spread.Cost) float64 { return float64(c.Bytes + c.AckBytes) }

// delay draws how long a message takes: base, and an exponential part of it on the average.
func (w *world) delay(base time.Duration) time.Duration {
	if w.cfg.Jitter == 0 {
		return base
	}
	return base + time.Duration(float64(base)*w.cfg.Jitter*w.rng.ExpFloat64())
}

// drawnDelay is delay by a hash of what the message is, for messages that nobody sees until they are looked for.
func (w *world) drawnDelay(base time.Duration, parts ...uint64) time.Duration {
	if w.cfg.Jitter == 0 {
		return base
	}
	return base + time.Duration(float64(base)*w.cfg.Jitter*-math.Log(1-uniform(w.cfg.Seed, parts...)))
}

// lost draws whether a message of a request is lost.
func (w *world) lost(share float64) bool { return share > 0 && w.rng.Float64() < share }
