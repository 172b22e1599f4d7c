package book

// Work is what a request costs the engine before its first token.
type Work struct {
	New int // tokens to compute; less than 1 counts as 1
}

// Entry is one request in a Book, from Book to End. Its zero value is a new one; it belongs to the caller, who must not
// copy it once it is booked.
type Entry struct {
	newTokens int // estimated prefill work
	state     entryState
	alone     bool // nothing was before it when it was booked
}

type entryState uint8

const (
	stateWaiting entryState = iota // no content yet
	stateRunning
	stateEnded
)

// Running reports whether e has had content and has not ended.
func (e *Entry) Running() bool { return e.state == stateRunning }

// Waiting reports whether e waits for its first content.
func (e *Entry) Waiting() bool { return e.state == stateWaiting }
