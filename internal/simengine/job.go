package simengine

import (
	"sync/atomic"
	"time"
)

// jobState is where a job stands; it only moves down this list, but for a preempted job, which waits again.
type jobState uint8

const (
	jobWaiting jobState = iota
	jobPrefilling
	jobDecoding
	jobEnded // finished or aborted
)

// job is one sequence to generate: one choice of one prompt. The answer is known from the start; the scheduler decides
// when each of its tokens exists.
type job struct {
	seq      sequence
	prompt   int  // tokens of seq that are the prompt
	stopped  bool // the answer ends by itself, not at its limit
	readsKV  bool // false: computes its whole prompt, as with prompt logprobs
	thinking int  // leading answer tokens that are a thought, its end mark included
	notify   chan<- struct{}

	// produced and cached are written by the scheduler and read by the handler.
	produced atomic.Int32 // answer tokens that exist
	cached   atomic.Int32 // prompt tokens found in the cache; set before the first token

	state    jobState // under the scheduler's lock, like all below
	admitted bool     // was admitted once: a later admission follows a preemption
	arrived  time.Time

	// first and last are when the first and the newest token came to exist, from arrival. They are written before produced,
	// and may be read by the handler that has seen the whole answer.
	first, last time.Duration
}

// answer returns the tokens after the prompt.
func (j *job) answer() []Token { return j.seq.tokens[j.prompt:] }

// context is the number of tokens that must be in the cache, or be computed, before the next answer token.
func (j *job) context() int { return j.prompt + int(j.produced.Load()) }

// incomplete reports whether tokens of the answer are still to come.
func (j *job) incomplete() bool { return int(j.produced.Load()) < len(j.answer()) }

// times are when the first and the last token of an ended answer came, from arrival.
func (j *job) times() (first, last time.Duration) { return j.first, j.last }

// produce makes one more token exist and wakes the handler, which reads the counters itself.
func (j *job) produce() {
	j.produced.Add(1)
	wake(j.notify)
}

// wake lets the handler look again, now or when it next waits.
func wake(notify chan<- struct{}) {
	select {
	case notify <- struct{}{}:
	default:
	}
}

// finishReason is OpenAI's word for why the answer ended.
func (j *job) finishReason() string {
	if j.stopped {
		return "stop"
	}
	return "length"
}
