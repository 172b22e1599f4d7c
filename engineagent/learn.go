package engineagent

import (
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// learnLocked takes what an answer's usage, which is plausible, says about the size of tokens, the speed of the engine and
// the truth of the prediction. An answer of a past life of the cache teaches sizes only.
func (a *Agent) learnLocked(b *Booking, u openai.Usage, now time.Time) {
	prompt := u.PromptTokens
	if prompt <= 0 {
		return
	}
	a.book.update(func(k *book.Book) { k.LearnSize(b.bytes, prompt) })
	if b.bytes > 0 && b.tail != nil {
		a.density.Learn(b.tail, prompt)
	}
	if b.generation != a.engine.Generation {
		return
	}
	overlap := b.predicted(prompt)
	cached, known := a.cachedLocked(u, prompt)
	a.learnSpeedLocked(b, prompt, cached, known)
	if !b.withKeys {
		return
	}
	if known {
		a.cache.repeated(b.expected, cached)
	}
	if known && a.blocks != nil {
		a.blocks.Observe(b.expected.estimate, cached)
	}
	if a.evidence.heard(known); known {
		p := prediction{made: b.made, overlap: overlap, prompt: prompt, slack: b.slack, blocks: b.byBlocks()}
		a.judgeLocked(p, cached, now)
	}
}

// predicted returns the overlap that was predicted, in the tokens of a prompt that turned out to have so many: what is
// known of blocks is in tokens, what the mirror knows is a share.
func (b *Booking) predicted(prompt int) int {
	if b.byBlocks() {
		return min(b.overlap, prompt)
	}
	return int(b.share * float64(prompt))
}

// learnSpeedLocked takes the prefill of a prompt. Where the engine does not say how much of it was cached, the prediction
// stands in, which only a prompt with keys has.
func (a *Agent) learnSpeedLocked(b *Booking, prompt, cached int, known bool) {
	sure := known || !a.reuses
	if !sure {
		cached = b.predicted(prompt)
	}
	if sure || b.withKeys {
		w := book.Work{Prompt: prompt, New: prompt - cached}
		a.book.update(func(k *book.Book) { k.LearnPrefill(&b.entry, w, b.took, sure) })
	}
}

// tokens returns how long the one answer was that the request asked for; 0 when that is not known. The contents of a stream
// are nearly its tokens; those of another answer are no measure.
func (b *Booking) tokens(o Outcome) int {
	switch {
	case b.many:
		return 0
	case o.HasUsage:
		return o.Usage.CompletionTokens
	case o.Whole:
		return 0
	}
	return b.output
}

// cachedLocked returns the cached tokens that an answer reports. SGLang leaves the field out when it is zero, so that
// only its configuration tells zero from unknown.
func (a *Agent) cachedLocked(u openai.Usage, prompt int) (cached int, known bool) {
	if u.HasCached {
		return min(max(u.CachedTokens, 0), prompt), true
	}
	return 0, a.reports
}

func (a *Agent) judgeLocked(p prediction, cached int, now time.Time) {
	a.evidence.judge(p, cached, now)
	a.cache.fit(a.capacityLocked(), a.engine.BlockTokens)
	a.metrics.observe(p, cached)
	a.truthLocked()
}

// learnCountersLocked uses the engine's counters where its answers carry no evidence.
func (a *Agent) learnCountersLocked(r *reading, now time.Time) {
	if !r.hasHits {
		return
	}
	w := &a.evidence.window
	w.foreign = w.foreign || look(a.book, (*book.Book).Foreign) > 0 // others' prompts
	p, cached, ok := w.close(r.hitTokens, now)
	if !ok || a.evidence.source == engine.EvidenceUsage {
		return
	}
	a.evidence.source = engine.EvidenceCounters
	a.judgeLocked(p, cached, now)
}
