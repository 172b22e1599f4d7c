package book

import "time"

// Work is what a request costs the engine before its first token.
type Work struct {
	Prompt int  // tokens of the prompt; less than New counts as New
	New    int  // of them, those to be computed; less than 1 counts as 1
	Whole  bool // the answer comes all at once: no token of it shows before its end
}

// Entry is one request in a Book, from Book to End. Its zero value is a new one; it belongs to the caller, who must not
// copy it once it is booked.
type Entry struct {
	// Value is the caller's own: what Next returns the entry for.
	Value any

	work     amount
	whole    bool
	state    entryState
	alone    bool          // nothing was before it at the engine when it was handed over
	since    time.Time     // when it became the head of what the engine prefills; zero before
	priority time.Duration // in the owner's queue, the lowest goes first
	order    uint64        // of booking
	place    int           // in the owner's queue

	tried   bool      // the engine is on trial by it
	givenUp bool      // the engine was found stuck before anything of it came
	handed  time.Time // to the engine
	lost    time.Time // when it is, unless content comes before, if so many others overtake it
	passed  int       // entries that were handed over later and have had content
	heard   time.Time // when took and due were measured, at the first content; zero when they were not
	took    float64   // seconds of prefill; 0 when it was never head
	due     float64   // seconds that it should have taken

	began     time.Time     // its first content
	decoded   time.Duration // from the first content to the end
	ranBefore float64       // meters.ran at the first content
	ranWith   float64       // what meters.ran grew by until the end
	worked    float64       // meters.worked at the first content, and at the end what it grew by
}

// entryState is where a request is. It only moves forward.
type entryState uint8

const (
	stateNew       entryState = iota
	stateQueued               // with the owner
	stateWaiting              // with the engine, no content yet
	statePrefilled            // with the engine, no content yet, but its prefill must be done by now
	stateRunning              // has had content
	stateEnded
)

// Running reports whether e has had content and has not ended.
func (e *Entry) Running() bool { return e.state == stateRunning }

// GivenUp reports whether the engine was found stuck before any content of e came: none is to be used then.
func (e *Entry) GivenUp() bool { return e.givenUp }

// Waiting reports whether e waits for its first content, with the owner or with the engine.
func (e *Entry) Waiting() bool {
	return e.state == stateQueued || e.state == stateWaiting || e.state == statePrefilled
}

// amount is prefill: that of one prompt, or the sum of several.
type amount struct {
	prompts int
	tokens  int64   // to compute
	bend    float64 // sum of n·(ctx − n/2) for n tokens of a prompt of ctx: what attention looks at
}

func (w Work) amount() amount {
	n := max(w.New, 1)
	return amount{1, int64(n), float64(n) * (float64(max(w.Prompt, n)) - float64(n)/2)}
}

func (a *amount) add(b amount) {
	a.prompts += b.prompts
	a.tokens += b.tokens
	a.bend += b.bend
}

func (a *amount) remove(b amount) {
	a.prompts -= b.prompts
	a.tokens -= b.tokens
	if a.bend -= b.bend; a.prompts == 0 {
		a.bend = 0 // what rounding left
	}
}
