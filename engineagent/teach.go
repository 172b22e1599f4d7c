package engineagent

import (
	"math"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// noteUsageLocked sees whether a stream had usage that nobody asked for: then the engine adds it to all, and taking it out
// would change answers.
func (b *Booking) noteUsageLocked(o Outcome) {
	if o.HasUsage && b.lessons.bare && !b.lessons.ask.Usage {
		b.agent.teaching.unasked = true
	}
}

// lessons are what one booking's answer is to teach.
type lessons struct {
	ask         openai.Ask
	route       openai.Route
	bare        bool               // a stream whose client asked for no usage
	prompt      *cachestate.Prompt // a copy; nil when its tokens teach nothing
	first, rest uint64             // BlockExtra of its first block and of the others
	last        []cachestate.Key   // of the prompt, in each form; its answer is repeated by the next one
	learned     bool               // the prompt's tokens came
	offPath     bool               // they come from a rendering, not with the answer
}

// teaching bounds what learning costs.
type teaching struct {
	refused map[cell]bool // fields that the engine does not take there, and paths that do not render what it answers
	spare   time.Duration // CPU time that may be spent now. Invariant: <= maxSpare
	filled  time.Time
	spent   time.Duration // ever
	streams int           // streams since usage was last asked for
	unasked bool          // streams have usage that nobody asked for
}

// cell is one entry in the table of who tells what where.
type cell struct {
	route  openai.Route
	stream bool
	field  string // or a path
}

const (
	// teachShare is the share of one core that learning may take.
	teachShare = 0.05
	// maxSpare lets a burst of new prompts through after a quiet time.
	maxSpare = time.Second
	// usageEvery is how many streams without usage pass before one is asked for it: evidence is a sample.
	usageEvery = 4
)

// refill brings the spare time up to now.
func (t *teaching) refill(now time.Time) {
	if !t.filled.IsZero() {
		t.spare += time.Duration(float64(now.Sub(t.filled)) * teachShare)
	} else {
		t.spare = maxSpare
	}
	t.spare, t.filled = min(t.spare, maxSpare), now
}

func (t *teaching) spend(d time.Duration) {
	t.spare -= d
	t.spent += d
}

// planLocked decides what a request's answer is to teach, and what must be asked for that.
func (a *Agent) planLocked(b *Booking, ad *Admission) {
	b.lessons.route = ad.Route
	b.lessons.bare = ad.Traits.Has(openai.TraitStream) && !ad.Traits.Any(openai.TraitUsage|openai.TraitStreamOptions)
	if ad.Prompt == nil || ad.Traits.Any(openai.TraitMany|openai.TraitSkipsCache) {
		return
	}
	for _, form := range ad.Prompt.Forms() {
		if n := len(form.Keys); n > 0 {
			b.lessons.last = append(b.lessons.last, form.Keys[n-1])
		}
	}
	a.askIDsLocked(b, ad)
	a.askUsageLocked(b, ad)
	b.lessons.ask.Style = a.capability.style(a.engine.Kind)
}

// askIDsLocked asks for the prompt's token ids where they teach something.
func (a *Agent) askIDsLocked(b *Booking, ad *Admission) {
	if !a.events.live() || ad.Media || !a.reuses || ad.Traits.Any(openai.TraitEcho|openai.TraitOddNames) {
		return
	}
	if !a.teachesLocked(ad.Prompt) {
		return
	}
	if a.teaching.refill(b.made); a.teaching.spare <= 0 {
		return
	}
	l := &b.lessons
	lora := ad.LoRA
	if lora == "" && a.adapters[ad.Model] {
		lora = ad.Model
	}
	l.first, l.rest = cachestate.BlockExtra(lora, ad.Salt), cachestate.BlockExtra(lora)
	if l.first != 0 && !a.blocks.ShowsExtras() {
		return // the engine's events would not tell its blocks from those of other prompts
	}
	switch {
	case ad.Traits.Has(openai.TraitTokenPrompt): // the request has them
	case ad.Traits.Any(openai.TraitAsksIDs | openai.TraitNoReasoning):
		return
	default:
		stream := ad.Traits.Has(openai.TraitStream)
		fields := a.fieldsLocked(ad.Route, stream)
		l.ask.Fields = fields
		l.offPath = len(fields) == 0 && a.rendersLocked(ad)
		if len(fields) == 0 && !l.offPath {
			return
		}
	}
	l.prompt = ad.Prompt.Clone()
}

// teachesLocked reports whether a prompt's token ids teach something: what blocks its keys lie in, when that is not known of
// two blocks or more. An engine with sparse groups keeps what a hit needs that ends with this prompt, and often nothing else
// nearby: there the next prompt's hit is found only by this one's last key, however short the text before it.
func (a *Agent) teachesLocked(p *cachestate.Prompt) bool {
	block := a.blocks.BlockTokens()
	if block == 0 || len(p.Keys) == 0 {
		return false
	}
	perToken := look(a.book, (*book.Book).BytesPerToken)
	return slices.ContainsFunc(p.Forms(), func(p *cachestate.Prompt) bool {
		return a.blocks.Unmapped(p, perToken) >= 2*block || a.blocks.Sparse() && len(p.Keys) > 0 && !a.blocks.Known(p.Keys[len(p.Keys)-1])
	})
}

// askUsageLocked asks one stream in a few for its usage, which says what was cached, when the client did not.
func (a *Agent) askUsageLocked(b *Booking, ad *Admission) {
	const chatLike = 2
	routes := [chatLike]openai.Route{openai.RouteChat, openai.RouteCompletions}
	if !slices.Contains(routes[:], ad.Route) || !ad.Traits.Has(openai.TraitStream) ||
		ad.Traits.Any(openai.TraitUsage|openai.TraitStreamOptions) || a.capability.noUsage(a.engine.Kind) || a.teaching.unasked ||
		a.teaching.refused[cell{ad.Route, true, streamOptions}] {
		return
	}
	if a.teaching.streams++; a.teaching.streams >= usageEvery {
		a.teaching.streams = 0
		b.lessons.ask.Usage = true
	}
}

const streamOptions = "stream_options"

// Ask returns what is to be added to the request so that its answer teaches.
func (b *Booking) Ask() openai.Ask { return b.lessons.ask }

// AskTokens returns what is to be added to a streamed request so that its answer has the ids of the prompt and of each token;
// nothing where the engine does not tell them.
func (b *Booking) AskTokens() openai.Ask {
	a := b.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	return openai.Ask{Fields: a.fieldsLocked(b.lessons.route, true), Style: a.capability.style(a.engine.Kind)}
}

// fieldsLocked returns the fields for token ids that the engine takes on a route.
func (a *Agent) fieldsLocked(route openai.Route, stream bool) []string {
	return slices.DeleteFunc(a.capability.ask(a.engine.Kind, route, stream), func(f string) bool {
		return a.teaching.refused[cell{route, stream, f}]
	})
}

// AskRefused says that the engine refused the request for a field that was added. It is not added there again.
func (b *Booking) AskRefused(field string) {
	a := b.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log.Info("engine refuses a field that would teach", "field", field, "route", b.lessons.route)
	b.refuseLocked(field)
	if len(b.lessons.ask.Fields) > 0 {
		b.lessons.prompt = nil // the second answer has no ids
	}
	b.lessons.ask = openai.Ask{}
}

// refuseLocked does without what, a field or a route that renders, on the booking's route.
func (b *Booking) refuseLocked(what string) {
	t := &b.agent.teaching
	if t.refused == nil {
		t.refused = map[cell]bool{}
	}
	for _, stream := range []bool{false, true} {
		t.refused[cell{b.lessons.route, stream, what}] = true
	}
}

// WantsPrompt reports whether Learn is to be called with the prompt's tokens.
func (b *Booking) WantsPrompt() bool {
	b.agent.mu.Lock()
	defer b.agent.mu.Unlock()
	return b.lessons.prompt != nil && !b.lessons.offPath
}

// Learn takes the prompt's tokens as the engine rendered them, and the CPU time that reading them took.
func (b *Booking) Learn(ids []uint32, cost time.Duration) {
	b.agent.mu.Lock()
	defer b.agent.mu.Unlock()
	b.teachLocked(ids, cost, "answer")
}

// teachLocked is Learn for ids from either source: answer or rendering.
func (b *Booking) teachLocked(ids []uint32, cost time.Duration, source string) {
	a, l := b.agent, &b.lessons
	if l.prompt == nil || a.blocks == nil || len(ids) == 0 {
		return
	}
	begin := time.Now()
	a.cache.teach(cachestate.Lesson{Prompt: l.prompt, Tokens: ids, First: l.first, Rest: l.rest})
	l.prompt, l.learned = nil, true
	a.teaching.spend(cost + time.Since(begin))
	a.metrics.lessons.WithLabelValues(source).Inc()
	a.stabilityLocked()
}

// stabilityLocked mutes the mirror while it cannot be right: the model's layout makes residency useless, or the engine
// keeps only some blocks.
func (a *Agent) stabilityLocked() {
	// Where the layout knows how conversations are rendered anew, keys follow it.
	anew := a.unstableLocked() && a.layout.layout&openai.LayoutHeadLast == 0
	// The mirror imitates a cache that keeps every block.
	if mute := anew || a.blocks != nil && a.blocks.Sparse(); mute != a.cache.muted {
		a.cache.mute(mute)
	}
	a.truthLocked()
}

// truthLocked brings what the engine's description says of its residency up to date.
func (a *Agent) truthLocked() {
	e := a.engine
	e.Residency, e.Evidence, e.Unstable, e.Scale = engine.ResidencyMirror, a.evidence.source, a.unstableLocked(), 1
	switch {
	case !a.reuses:
		e.Residency = engine.ResidencyNone
	case a.events.live():
		// In steps, so that small changes are no news.
		e.Residency, e.Scale = engine.ResidencyEvents, max(math.Round(a.evidence.trust*16), 1)/16
	}
	a.describeLocked(e)
}

func (a *Agent) unstableLocked() bool {
	return a.blocks != nil && a.blocks.Unstable() || a.layout.unstable
}

// answeredLocked notes how long the answer was, which the conversation's next prompt repeats.
func (b *Booking) answeredLocked(tokens int) {
	if a := b.agent; a.blocks != nil && tokens > 0 {
		for _, last := range b.lessons.last {
			a.blocks.Answered(last, tokens)
		}
	}
}
