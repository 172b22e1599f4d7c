package forward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// Explanation is what would happen to a request that came now, and why. It shows no text of the prompt.
type Explanation struct {
	Route       string          `json:"route"`
	Model       string          `json:"model,omitempty"` // canonical
	Class       string          `json:"class,omitempty"`
	Strategy    Strategy        `json:"strategy,omitempty"`
	Refused     string          `json:"refused,omitempty"` // why no engine would see it; nothing follows then
	PromptBytes int64           `json:"prompt_bytes"`
	Keys        int             `json:"keys"`
	Keyless     string          `json:"keyless,omitempty"` // why it has no keys
	Reason      string          `json:"reason,omitempty"`
	TieBreak    string          `json:"tie_break,omitempty"`
	Candidates  []CandidateInfo `json:"candidates,omitempty"` // best first

	// In words: whether it would wait, whether a second engine would be asked beside a late first one, and whether another one
	// would go on if its stream broke.

	Queued    string `json:"queued,omitempty"`
	Hedged    string `json:"hedged,omitempty"`
	Continued string `json:"continued,omitempty"`
}

// ExplainRequest decides about a request as if it had come to path with a header, and sends it nowhere. Engines are asked for their
// load, as for any decision.
func (g *Ingress) ExplainRequest(ctx context.Context, path string, header http.Header, body []byte) Explanation {
	x := &exchange{
		g: g, policy: g.policy.Load(), start: time.Now(), ctx: ctx, rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		r: &http.Request{Method: http.MethodPost, URL: &url.URL{Path: path}, Header: header},
	}
	x.body.hold(body, nil)
	var e Explanation
	route, bad := openai.RouteFor(http.MethodPost, path)
	e.Route = route.String()
	if bad == nil {
		bad = x.policy.checkRoute(route)
	}
	if bad == nil {
		bad = x.read(route, body)
	}
	if bad != nil {
		e.Refused = bad.Error()
		return e
	}
	e.Model, e.Class, e.Strategy = x.model, x.class.Name, x.class.strategy()
	e.PromptBytes, e.Keys, e.Keyless = x.prompt.Bytes, len(x.prompt.Keys), x.request.Keyless
	ranked, why := x.decide()
	e.Reason, e.TieBreak, e.Candidates = x.event.Reason, x.event.TieBreak, x.event.Candidates
	e.Queued, e.Hedged, e.Continued = x.wouldQueue(ranked, why), x.wouldHedge(ranked), x.wouldContinue(ranked)
	return e
}

// wouldQueue says what becomes of the request before an engine has it.
func (x *exchange) wouldQueue(ranked []Candidate, why lack) string {
	switch {
	case len(ranked) > 0 && x.g.room.busy(x.model):
		return x.wouldWait("others wait for an engine of this model")
	case len(ranked) > 0:
		return "no: an engine can take it"
	case why == full:
		return x.wouldWait("every engine of this model is full")
	case why == away:
		return fmt.Sprintf("no: its engines cannot be reached; it would wait %v for them and end with 503", silenceOfDead)
	default:
		return "no: no engine of this model can be chosen; it would end with 503"
	}
}

// wouldWait says whether the wait room would let the request in. Cause is why it cannot go to an engine.
func (x *exchange) wouldWait(cause string) string {
	if r, ok := errors.AsType[*refusal](x.g.room.wouldRefuse(x.newPlace(), time.Now())); ok {
		return "no: " + cause + ", and " + r.why() + "; it would end with 429"
	}
	return "yes: " + cause
}

// wouldHedge says what becomes of the request when its engine is late.
func (x *exchange) wouldHedge(ranked []Candidate) string {
	switch late, ok := x.late(); {
	case !x.class.Hedge:
		return "no: the class does not say hedge"
	case x.once():
		return "no: it must not be done twice"
	case x.request.Previous != "":
		return "no: only one engine has the response that it continues"
	case len(ranked) < 2:
		return "no: there is no second candidate"
	case !ok:
		return fmt.Sprintf("no: fewer than %d such requests of the class have come here", delaysNeeded)
	default:
		return fmt.Sprintf("yes: when it has no content after %v", hedgeAfter(ranked[0].expected(&x.q), late).Round(time.Millisecond))
	}
}

// wouldContinue says what becomes of the stream when it breaks.
func (x *exchange) wouldContinue(ranked []Candidate) string {
	if !x.class.Continue {
		return "no: the class does not say continue"
	}
	terms, why := x.request.Continuation()
	if terms == nil {
		return "no: " + why
	}
	if len(ranked) == 0 {
		return "if its engine tells token ids"
	}
	if kind := x.g.View.kind(ranked[0].ID); !tellsTokens(kind, x.request.Route) {
		return fmt.Sprintf("no: engines of kind %s tell no token ids in streams of %s", kind, x.request.Route)
	}
	if !slices.ContainsFunc(ranked[1:], func(c Candidate) bool { return takesTokens(x.g.View.kind(c.ID)) }) {
		return "yes, but none of the other candidates could go on now"
	}
	return "yes"
}

// tellsTokens reports whether engines of a kind tell token ids in streams of a route.
func tellsTokens(kind engine.Kind, route openai.Route) bool {
	return kind == engine.KindVLLM || kind == engine.KindSGLang && route == openai.RouteCompletions
}

// takesTokens reports whether engines of a kind go on from token ids.
func takesTokens(kind engine.Kind) bool {
	return slices.Contains([]engine.Kind{engine.KindVLLM, engine.KindSGLang, engine.KindTRTLLM}, kind)
}
