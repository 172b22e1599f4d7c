package engineagent

import (
	"context"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/openai"
)

const (
	// maxRenderedPrompt is the longest prompt, in canonical bytes, that is rendered off the path. Some engines serve nothing
	// else meanwhile: a request that comes just then would feel a longer one.
	maxRenderedPrompt = 8 << 10
	// maxRenderedBody is the longest body that is kept for it.
	maxRenderedBody = 32 << 10
	// renderEvery is the time from one rendering to the next: more often would teach faster and cost the engine more.
	renderEvery = 10 * time.Second
	// renderWithin is how long a body is kept. A prompt that could not be rendered until then is left to the mirror.
	renderWithin = 30 * time.Second
)

// offPath is what the engine is asked to render beside its requests. It is used under the Agent's lock.
type offPath struct {
	kept *rendering         // the newest; nil when there is none
	next time.Time          // none begins before
	stop context.CancelFunc // of the last that began; nil when a request was booked since, and before the first
}

// rendering is a conversation to be rendered once its answer has ended well.
type rendering struct {
	of    *Booking
	route openai.Route
	body  []byte       // of the request
	usage openai.Usage // of the answer; zero when there was none
}

// fits reports whether the prompt can have had so many tokens. On the Messages route usage may leave out those that were
// cached.
func (r *rendering) fits(tokens int) bool {
	whole := r.usage.PromptTokens
	return whole == 0 || tokens == whole || tokens == whole+r.usage.CachedTokens
}

// give ends the rendering that runs, if one does: the engine is given to a request.
func (o *offPath) give() {
	if o.stop != nil {
		o.stop()
		o.stop = nil
	}
}

// rendersLocked reports whether the engine may be asked to render the prompt of a request whose answer does not tell it.
func (a *Agent) rendersLocked(ad *Admission) bool {
	path := a.layout.path
	return path != "" && ad.Prompt.Bytes <= maxRenderedPrompt && !ad.Traits.Has(openai.TraitChatIDs) &&
		slices.Contains([]openai.Route{openai.RouteChat, openai.RouteResponses, openai.RouteMessages}, ad.Route) &&
		!a.teaching.refused[cell{ad.Route, ad.Traits.Has(openai.TraitStream), path}]
}

// NoteBody shows the body of the request, as the client wrote it, before it is sent. A copy of it is kept when its prompt
// can be learned only from a rendering, for 30 s and until the next such request at most.
func (b *Booking) NoteBody(body []byte) {
	if !b.lessons.offPath || len(body) > maxRenderedBody {
		return
	}
	r := &rendering{of: b, route: b.lessons.route, body: slices.Clone(body)}
	b.agent.mu.Lock()
	defer b.agent.mu.Unlock()
	b.agent.offPath.kept = r
}

// settleLocked says how the answer to a conversation that is kept has ended. Without a good one the engine may not have
// computed the prompt, and there is nothing to learn.
func (b *Booking) settleLocked(well bool, u openai.Usage) {
	o := &b.agent.offPath
	switch {
	case o.kept == nil || o.kept.of != b:
	case well:
		o.kept.usage = u
	default:
		o.kept = nil
	}
}

// renderKept has an idle engine render the conversation that is kept, and learns from it what an answer would have taught.
func (a *Agent) renderKept(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r, path := a.takeRendering(stop)
	if r == nil {
		return
	}
	begin := time.Now()
	body := openai.RenderBody(r.route, r.body)
	if body == nil {
		return
	}
	cost := time.Since(begin)
	answer, err := a.askRendering(ctx, path, body)
	begin = time.Now()
	var ids []uint32
	if err == nil {
		ids, err = parseTokens(answer, maxTokens(body))
	}
	cost += time.Since(begin)

	a.mu.Lock()
	defer a.mu.Unlock()
	a.offPath.next = a.cfg.Now().Add(renderEvery)
	switch {
	case ctx.Err() != nil: // a request came, or the agent ends
	case err != nil:
		a.log.Info("engine does not render requests, which would teach", "error", err)
		a.layout.path = ""
	case !r.fits(len(ids)):
		a.log.Info("engine renders otherwise than it answers",
			"route", r.route, "rendered", len(ids), "answered", r.usage.PromptTokens)
		r.of.refuseLocked(path)
	default:
		r.of.teachLocked(ids, cost, "rendering")
	}
}

// takeRendering returns what is to be rendered now and the route for it, nil when nothing is or the engine is not idle: then
// the answer to what is kept has ended, too. Stop is called when a request is booked.
func (a *Agent) takeRendering(stop context.CancelFunc) (r *rendering, path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, now := &a.offPath, a.cfg.Now()
	if o.kept == nil {
		return nil, ""
	}
	if now.Sub(o.kept.of.made) > renderWithin {
		o.kept = nil
		return nil, ""
	}
	idle := a.life.up && look(a.book, (*book.Book).InFlight) == 0
	if !idle || now.Before(o.next) || a.layout.path == "" {
		return nil, ""
	}
	r, o.kept, o.stop = o.kept, nil, stop
	return r, a.layout.path
}
