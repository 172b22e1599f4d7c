package engineagent

import (
	"context"
	"errors"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// Admission asks for one request to be booked.
type Admission struct {
	Prompt     *cachestate.Prompt // nil when the request has no keys; not kept
	Bytes      int64              // canonical size of a prompt without keys
	Generation engine.Generation  // that the decision was made for; 0 for any
	// QueuedAtProbe is the QueuedSeconds that the decision was made with; negative when the owner was not asked.
	QueuedAtProbe float64
	Media         bool // the prompt's bytes say little of its tokens: they teach no size
	Second        bool // another owner has bounced it: refused only when it cannot be served
	Forced        bool // too few engines are left that are not ejected

	Route  openai.Route
	Traits openai.Traits
	Model  string // as the client wrote it
	Salt   string // cache_salt
	LoRA   string // lora_path
}

// Refused is the error of an Admit that booked nothing.
type Refused struct{ Reason book.Reason }

// Error implements error.
func (r *Refused) Error() string { return "refused by the engine's owner: " + string(r.Reason) }

// Booking is one request in the counters of an Agent, from its acceptance to Finish. A booking that is never finished
// counts for ever. Its methods are safe for concurrent use.
type Booking struct {
	agent *Agent

	turn       chan struct{}   // closed when it may go to the engine
	outage     <-chan struct{} // closed when the engine goes down
	stuck      context.Context // ends when the request is given up: see GivenUp
	giveUp     context.CancelCauseFunc
	entry      book.Entry        // guarded by agent.book's lock
	lease      *cachestate.Lease // guarded by agent.mu; nil without keys, and for a prompt that is too long for the engine
	lessons    lessons           // what its answer is to teach. Guarded by agent.mu
	expected   overlap
	output     int           // contents so far. Guarded by agent.mu
	took       time.Duration // prefill time, set at the first content; 0 when unknown. Guarded by agent.mu
	made       time.Time
	bytes      int64              // canonical size; 0 when it says nothing of the tokens
	tail       *cachestate.Prompt // the prompt's last key
	overlap    int                // tokens predicted resident
	share      float64            // overlap as a share of the prompt
	prompt     int                // estimated tokens
	newTokens  int                // of them, those to be computed
	slack      int
	generation engine.Generation
	withKeys   bool
	many       bool // several answers at once
}

// Outcome is how a request ended.
type Outcome struct {
	Usage    openai.Usage
	HasUsage bool
	Refused  bool // the engine answered that the request is wrong (a status of 400 to 499)
	Failed   bool // the engine failed it; a client that went away is no failure
	Whole    bool // the content came all at once: its time says nothing of the prefill
}

// Admit books the request or refuses it, in one step with the look at the counters: of many that arrive at once, each
// sees those before it. The Load is the one after the step. The error is a *Refused. A refusal waits for nothing; who is
// accepted waits for a lesson or an event that is taken in, because those change what the request is expected to cost.
func (a *Agent) Admit(ad Admission) (*Booking, engine.Load, error) {
	ask := book.Ask{Generation: ad.Generation, QueuedAtProbe: ad.QueuedAtProbe, Second: ad.Second, Forced: ad.Forced}
	if reason, load := a.book.refusal(ask); reason != "" {
		return a.refuse(reason, load)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	perToken := look(a.book, (*book.Book).BytesPerToken)
	if ad.Prompt != nil {
		a.cache.rekey(ad.Prompt)
	}
	b := a.appraiseLocked(&ad, perToken)
	reason, load := a.book.admit(ask, &b.entry, book.Work{Prompt: b.prompt, New: b.newTokens, Whole: !ad.Traits.Has(openai.TraitStream)})
	if reason != "" {
		return a.refuse(reason, load)
	}
	if b.withKeys && a.reuses && b.prompt <= a.longestLocked() {
		b.lease = a.cache.start(ad.Prompt, perToken)
	}
	a.asked = true
	a.offPath.give()
	a.planLocked(b, &ad)
	return b, load, nil
}

func (a *Agent) refuse(reason book.Reason, load engine.Load) (*Booking, engine.Load, error) {
	a.metrics.refusals.WithLabelValues(string(reason)).Inc()
	return nil, load, &Refused{Reason: reason}
}

// appraiseLocked returns a booking with what the request is expected to cost. Nothing is booked yet.
func (a *Agent) appraiseLocked(ad *Admission, perToken float64) *Booking {
	b := &Booking{
		agent: a, made: a.cfg.Now(), generation: a.engine.Generation, slack: a.slackLocked(), turn: make(chan struct{}), outage: a.outage,
		many: ad.Traits.Has(openai.TraitMany),
	}
	b.stuck, b.giveUp = context.WithCancelCause(context.Background())
	b.entry.Value = b
	if ad.Prompt == nil {
		b.prompt = int(min(float64(max(ad.Bytes, 0))/perToken, maxPromptTokens))
		b.newTokens = b.prompt
	} else {
		b.measure(ad.Prompt, a.expectLocked(ad, perToken))
	}
	if ad.Media {
		b.bytes = 0
	}
	return b
}

// longestLocked is the longest prompt that the engine can take. A longer one will be refused, and must not drive out
// what is resident.
func (a *Agent) longestLocked() int {
	longest := 0
	for _, m := range a.engine.Models {
		longest = max(longest, m.MaxContext)
	}
	size := int(min(a.sizeLocked(), maxPromptTokens))
	if longest == 0 { // no model says
		return size
	}
	return min(longest, size)
}

// maxPromptTokens bounds the estimate for one prompt: a size comes from a peer.
const maxPromptTokens = 1 << 30

// expectLocked returns what the engine is expected to hold of a prompt.
func (a *Agent) expectLocked(ad *Admission, perToken float64) overlap {
	o := a.cache.overlap(ad.Prompt, perToken, a.density)
	if !a.reuses || ad.Traits.Has(openai.TraitSkipsCache) {
		return overlap{prompt: o.prompt, exact: o.exact}
	}
	return o
}

// measure notes what p weighs when o of it is resident.
func (b *Booking) measure(p *cachestate.Prompt, o overlap) {
	b.withKeys, b.bytes, b.tail = true, p.Bytes, p.Last()
	b.prompt, b.overlap, b.expected = o.prompt, min(o.tokens, o.prompt), o
	b.newTokens = int(float64(b.prompt) - o.saved)
	if b.prompt > 0 {
		b.share = float64(b.overlap) / float64(b.prompt)
	}
}

// byBlocks reports whether the prediction rests on KV events.
func (b *Booking) byBlocks() bool { return b.expected.estimate.Tokens > 0 }

// slackLocked is how far a true prediction may be off: the block that covers a boundary and the last one, which is
// computed again when the whole prompt hits.
func (a *Agent) slackLocked() int { return 2 * max(a.engine.BlockTokens, 32) }

// Overlap returns how many tokens of the prompt were predicted to be resident when it was booked.
func (b *Booking) Overlap() int { return b.overlap }

// FirstContent says that the engine has sent content. It may be called at every content: the first ends the prefill,
// each shows that the engine lives and counts as one token of output, which is what most events of a stream carry.
// After Finish it does nothing.
func (b *Booking) FirstContent() {
	a := b.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	took, first, open := a.book.content(&b.entry)
	if !open {
		return
	}
	a.life.content()
	if first {
		b.prefilledLocked(took)
	}
	if b.output++; b.lease != nil {
		b.lease.Generated(b.output)
	}
}

// errGivenUp is the cause of requests that are given up because their engine is ejected.
var errGivenUp = errors.New("engine is ejected: the request is given up")

// GivenUp returns a context that ends when the engine is found stuck while nothing of the answer has come, or is ejected before
// the request's turn has come. What comes after that is not to be used: the request is tried elsewhere.
func (b *Booking) GivenUp() context.Context { return b.stuck }

func (b *Booking) prefilledLocked(took time.Duration) {
	a := b.agent
	b.took = took
	if b.lease != nil {
		b.lease.Prefilled()
	}
	if b.withKeys && b.generation == a.engine.Generation {
		a.evidence.window.add(b.overlap, b.prompt, b.byBlocks())
	} else {
		a.evidence.window.foreign = true
	}
}

// Finish takes the request out of the counters and learns from its outcome. Calls after the first do nothing.
func (b *Booking) Finish(o Outcome) {
	a := b.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	content, ok := a.book.end(&b.entry, &o)
	if !ok {
		return
	}
	a.metrics.requests.WithLabelValues(outcomeOf(content, o)).Inc()
	b.noteUsageLocked(o)
	o.Usage = b.plausibleLocked(o.Usage)
	if content && o.HasUsage {
		if o.Whole {
			b.took = 0
		}
		a.learnLocked(b, o.Usage, a.cfg.Now())
	}
	if content && !o.Failed {
		a.book.update(func(k *book.Book) { k.LearnDecode(&b.entry, b.tokens(o)) })
	}
	if content {
		b.answeredLocked(o.Usage.CompletionTokens)
	}
	b.settleLocked(content && !o.Failed && !o.Refused, o.Usage)
	b.release(content, o)
}

// plausibleLocked returns u with sizes that the request can have had: an engine that says more is broken, and must not
// empty its mirror by it. Four times the estimate is a tokenizer of bytes where English was expected; the rest is room
// for a chat template and pictures. Of output, only what the whole cache can hold is known to be too much.
func (b *Booking) plausibleLocked(u openai.Usage) openai.Usage {
	const template = 1 << 14
	size := int(min(b.agent.sizeLocked(), maxPromptTokens))
	most := size
	if b.prompt > 0 {
		most = min(4*b.prompt+template, maxPromptTokens)
	}
	u.PromptTokens = min(max(u.PromptTokens, 0), most)
	if u.CompletionTokens < 0 || u.CompletionTokens > size {
		u.CompletionTokens = b.output
	}
	return u
}

func outcomeOf(content bool, o Outcome) string {
	switch {
	case o.Failed:
		return "failed"
	case o.Refused:
		return "refused"
	case !content:
		return "abandoned"
	}
	return "answered"
}

// release ends the lease with the sizes that are known best.
func (b *Booking) release(content bool, o Outcome) {
	if b.lease == nil {
		return
	}
	if !content {
		b.lease.Abandon()
		return
	}
	prompt := b.prompt
	if o.HasUsage && o.Usage.PromptTokens > 0 {
		prompt = o.Usage.PromptTokens
	}
	b.lease.Finish(prompt, o.Usage.CompletionTokens)
}
