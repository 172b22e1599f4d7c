package engineagent

import (
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Load returns a new reading of what delays the next request.
func (a *Agent) Load() engine.Load {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.loadLocked(a.cfg.Now())
}

// Booked returns the number of requests that are booked and not finished: 0 when nothing runs.
func (a *Agent) Booked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.inFlight()
}

func (a *Agent) loadLocked(now time.Time) engine.Load {
	a.meters.advance(len(a.ledger.waiting) > 0, now)
	a.seq++
	return engine.Load{
		Seq:           a.seq,
		QueuedSeconds: a.queuedSecondsLocked(now),
		InFlight:      a.inFlightLocked(),
		Waiting:       a.waitingLocked(),
		KVUsage:       a.report.kvUsage,
		PrefillRate:   a.speeds.learnedRate(),
		BytesPerToken: a.speeds.learnedSize(),
		AcceptRate:    a.meters.accept,
		BusyShare:     a.meters.busy,
		Flags:         a.flagsLocked(),
	}
}

func (a *Agent) queuedSecondsLocked(now time.Time) float64 {
	rate := a.speeds.prefillRate()
	foreign := float64(a.report.tokens) / rate
	return min(a.ledger.queuedSeconds(rate, now)+foreign, maxQueuedSeconds) + a.penalty.seconds(now)
}

func (a *Agent) inFlightLocked() int { return a.ledger.inFlight() + a.report.inFlight() }
func (a *Agent) waitingLocked() int  { return len(a.ledger.waiting) + a.report.waiting }

// fullUsage is the KV usage from which a waiting request waits for memory and not for its turn. Only the engine knows
// which requests wait: a booking without content may be decoding an answer that is no stream.
const fullUsage = 0.95

func (a *Agent) flagsLocked() (f engine.Flags) {
	if !a.life.up {
		f |= engine.Down
	}
	if a.cordoned {
		f |= engine.Draining
	}
	noMemory := a.report.queued > 0 && a.report.kvUsage >= fullUsage
	if noMemory || a.inFlightLocked() >= a.maxRunningLocked() {
		f |= engine.Full
	}
	return f
}

func (a *Agent) maxRunningLocked() int {
	if a.engine.MaxRunning > 0 {
		return a.engine.MaxRunning
	}
	return DefaultMaxRunning
}

// capacityLocked is the capacity that the mirror may use: the engine's, as far as evidence bears it out.
func (a *Agent) capacityLocked() int64 {
	if !a.reuses {
		return 0
	}
	return int64(float64(a.sizeLocked()) * a.evidence.scale)
}

// sizeLocked is the size of the engine's KV cache in tokens.
func (a *Agent) sizeLocked() int64 {
	if a.engine.CapacityTokens > 0 {
		return a.engine.CapacityTokens
	}
	return DefaultCapacityTokens
}
