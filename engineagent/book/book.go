package book

import (
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Config says what an engine can take.
type Config struct {
	// MaxRunning is how many requests may be in flight before the engine is full. At least 1.
	MaxRunning int
	// Window is how many tokens of prefill may be with the engine before the owner hands it another request: one prefill
	// step. 0 hands all over at once.
	Window int
	// ShortestFirst orders what waits with the owner by its prefill, less a tenth of the time that it has waited; else the
	// order is that of arrival.
	ShortestFirst bool
	// Judge finds out that the engine fails, is stuck or has become slow, and ejects it. A simulator whose engines do none of that
	// leaves it out.
	Judge bool
}

// Book counts the requests of one engine. Its zero value is of no use: see New.
type Book struct {
	cfg        Config
	began      time.Time
	seq        uint64 // of the last Load
	states     engine.Flags
	generation engine.Generation

	ledger  ledger
	foreign foreign
	speeds  speeds
	decode  decode
	meters  meters

	silence  silence
	pace     pace
	slowed   pace // those for which the engine was ejected as slow
	answers  answers
	standing standing
	given    []*Entry // given up, until Judge tells
	wasUp    bool
}

// New returns the book of an engine that is up and idle.
func New(c Config, now time.Time) *Book {
	return &Book{
		cfg:   c,
		began: now,
		// The shift leaves room for 256 readings a microsecond, more than can be made, so that the readings of a
		// restarted owner are above those of the one before.
		seq:    uint64(now.UnixMicro()) << 8,
		speeds: newSpeeds(),
		meters: meters{at: now},
	}
}

// SetMaxRunning takes what became known of the most requests in flight. At least 1.
func (b *Book) SetMaxRunning(n int) { b.cfg.MaxRunning = n }

// SetWindow takes what became known of the engine's prefill step; 0 for no queue. Next may return more than before.
func (b *Book) SetWindow(tokens int) { b.cfg.Window = tokens }

// SetDown says whether the engine is down: nothing is accepted then. One that was up before has Returned when it is up again.
func (b *Book) SetDown(on bool, now time.Time) {
	if was := b.states&engine.Down != 0; was && !on && b.wasUp {
		b.Returned(now)
	}
	b.wasUp = b.wasUp || !on
	b.set(engine.Down, on)
}

// SetDraining says whether the engine is cordoned: nothing is accepted then, and what runs goes on.
func (b *Book) SetDraining(on bool) { b.set(engine.Draining, on) }

func (b *Book) set(f engine.Flags, on bool) {
	b.states &^= f
	if on {
		b.states |= f
	}
}

// SetGeneration names the life of the engine's cache. A decision for another one is refused.
func (b *Book) SetGeneration(g engine.Generation) { b.generation = g }

// Load returns a new reading of what delays the next request.
func (b *Book) Load(now time.Time) engine.Load {
	b.advance(now)
	b.seq++
	rate, fixed, bend := b.speeds.learned()
	return engine.Load{
		Seq:           b.seq,
		QueuedSeconds: b.queuedSeconds(now),
		InFlight:      b.InFlight(),
		Waiting:       b.Queued() + b.ledger.unanswered() + b.foreign.waiting,
		KVUsage:       b.foreign.kvUsage,
		PrefillRate:   rate,
		BytesPerToken: b.speeds.learnedSize(),
		AcceptRate:    b.meters.accept,
		BusyShare:     b.meters.busy,
		PrefillFixed:  fixed,
		PrefillBend:   bend,
		RequestCost:   b.decode.cost,
		Flags:         b.Flags(now),
	}
}

// advance brings the book to now. A head that was taken for prefilled meanwhile was so from the moment when it was late.
func (b *Book) advance(now time.Time) {
	b.standing.advance(now)
	c := b.speeds.curve
	for at, ok := b.ledger.lapses(c); ok && !at.After(now); at, ok = b.ledger.lapses(c) {
		if at.Before(b.meters.at) { // its time has become shorter by what was learned
			at = b.meters.at
		}
		b.meters.advance(true, b.decoding(), at)
		b.ledger.lapse(at)
	}
	b.meters.advance(len(b.ledger.waiting) > 0, b.decoding(), now)
}

// decoding returns how many requests the engine sends tokens of, as far as that is known.
func (b *Book) decoding() int { return b.ledger.running + b.ledger.prefilled + b.foreign.running }

func (b *Book) queuedSeconds(now time.Time) float64 {
	c := b.speeds.curve
	foreign := float64(b.foreign.tokens) * c.perToken
	return min(b.ledger.queuedSeconds(c, now)+foreign, maxQueuedSeconds)
}

// Queued returns the number of requests that wait with the owner.
func (b *Book) Queued() int { return len(b.ledger.queue) }

// Booked returns the number of entries that were booked and have not ended.
func (b *Book) Booked() int { return b.ledger.inFlight() }

// InFlight returns the number of requests on the engine: those booked, and those that only the engine told of.
func (b *Book) InFlight() int { return b.ledger.inFlight() + b.foreign.inFlight() }

// fullUsage is the KV usage from which a waiting request waits for memory and not for its turn. Only the engine knows
// which requests wait: a booking without content may be decoding an answer that is no stream.
const fullUsage = 0.95

func (b *Book) noMemory() bool { return b.foreign.queued > 0 && b.foreign.kvUsage >= fullUsage }

// Flags returns the engine's states at this very moment.
func (b *Book) Flags(now time.Time) engine.Flags {
	f := b.states | b.ejected(now)
	if b.noMemory() || b.InFlight() >= b.cfg.MaxRunning {
		f |= engine.Full
	}
	return f
}

// Book counts e, which must be new, as accepted, and puts it into the owner's queue. The caller has asked Refusal in the
// same step. Next may return it, or another, at once.
func (b *Book) Book(e *Entry, w Work, now time.Time) {
	b.advance(now)
	b.meters.accepted()
	e.work, e.whole = w.amount(), w.Whole
	if b.cfg.ShortestFirst {
		e.priority = priorityOf(seconds(b.speeds.curve.seconds(e.work)), now.Sub(b.began))
	}
	b.ledger.book(e)
	b.standing.booked(e, now)
}

// Next returns the next request to hand to the engine and counts it as handed over; nil when none waits or the engine has
// enough. It is to be called until it returns nil after Book, Content and End, and at the time that Wake says.
func (b *Book) Next(now time.Time) *Entry {
	b.advance(now)
	if b.Queued() == 0 || b.ledger.queue[0].givenUp || b.cfg.Window > 0 && b.ledger.atWork >= int64(b.cfg.Window) {
		return nil
	}
	e := b.ledger.next(now)
	b.silence.handed(e, b.patient(), now)
	return e
}

// Wake returns when Next is to be called though nothing happened: when the request that the engine prefills is late, the
// next ones do not wait for it any longer. ok is false when nothing waits with the owner.
func (b *Book) Wake() (at time.Time, ok bool) {
	if b.Queued() == 0 {
		return time.Time{}, false
	}
	return b.ledger.lapses(b.speeds.curve)
}

// Content says that e's first token is there: its prefill is done. It returns how long the prefill took at the engine, 0
// when that is not known, and does nothing for an entry that has had content or has ended.
func (b *Book) Content(e *Entry, now time.Time) (took time.Duration) {
	b.advance(now)
	if !e.Waiting() {
		return 0
	}
	e.began, e.ranBefore, e.worked = now, b.meters.ran, b.meters.worked
	b.silence.content(e)
	b.silence.heard(now)
	took = b.ledger.content(e, now)
	b.prefilled(e, took, now)
	return took
}

// End takes e out, whatever it was doing. It returns false for an entry that had ended before.
func (b *Book) End(e *Entry, now time.Time) bool {
	b.advance(now)
	if e.Running() {
		e.decoded, e.ranWith, e.worked = now.Sub(e.began), b.meters.ran-e.ranBefore, b.meters.worked-e.worked
	}
	if !b.ledger.end(e, now) {
		return false
	}
	b.silence.leave(e)
	b.standing.ended(e)
	return true
}

// LearnSize takes the canonical bytes of a prompt that turned out to have so many tokens.
func (b *Book) LearnSize(bytes int64, tokens int) { b.speeds.learnSize(bytes, tokens) }

// BytesPerToken returns the learned size of a prompt token, or the default.
func (b *Book) BytesPerToken() float64 { return b.speeds.bytesPerToken() }

// LearnPrefill takes the prefill of an entry whose content came after took. w is what it turned out to be. sure says
// that its new tokens are the engine's own count. When they are a prediction, a prompt that was cached against it looks like
// a very fast prefill, so the sample is held back: it counts as no faster than twice what is known.
//
// Only entries that had the engine's prefill to themselves when they were handed over teach: others measure the queue.
func (b *Book) LearnPrefill(e *Entry, w Work, took time.Duration, sure bool) {
	a, s := w.amount(), took.Seconds()
	if sure && !e.heard.IsZero() {
		b.corrected(e, a)
	}
	if !e.alone || took <= 0 {
		return
	}
	if !sure {
		s = max(s, b.speeds.curve.seconds(a)/2)
	}
	b.speeds.learnPrefill(a, s)
}

// LearnDecode takes the tokens of the answer of an entry that has ended: what the running requests cost each other. Less
// than 1 is unknown and teaches nothing.
func (b *Book) LearnDecode(e *Entry, tokens int) {
	if tokens < 1 {
		return
	}
	b.decode.answered(tokens)
	if tokens >= minTokens && e.decoded > 0 && !e.whole {
		took := e.decoded.Seconds()
		b.decode.add(decoded{running: e.ranWith / took, prefill: e.worked / took, perToken: took / float64(tokens-1)})
	}
}
