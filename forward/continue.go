package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// maxKept bounds the token ids that are kept of one stream, four bytes each: no model has a longer context.
const maxKept = 1 << 20

// progress is how many tokens an engine must have brought until its death is not put down to the request.
const progress = 16

// thread is what the ingress keeps of a stream, so that another engine can go on with it from the tokens when the one that
// answers dies: the ids of exactly that text which the client has. Ids whose text is held back are not among them. One
// goroutine at a time uses it: that of the lane that has the answer, and between two lanes that of the exchange.
type thread struct {
	terms  *openai.Continuation
	why    string // why no engine can go on, in words that end a sentence; "" while one can
	bodies *budget
	count  func(cause, result string)
	letGo  func() // lets the body of the request that goes on go

	first   *part    // that began the answer
	output  []uint32 // of what the client has
	flags   tokenFlags
	manner  *openai.Manner // of the first part
	counted bool           // the client has the usage
	done    bool           // and the last event

	broken string // how the last part ended, while the next has brought nothing
	before int    // tokens that there were then
	parts  int    // that went on
}

// newThread returns what is to be kept of the stream that a request asks for; nil when its class does not want it continued.
func (x *exchange) newThread(r *openai.Request) *thread {
	if !x.class.Continue {
		return nil
	}
	t := &thread{bodies: x.g.bodies, letGo: x.body.letGo}
	t.count = func(cause, result string) { x.g.metrics.continued.WithLabelValues(cause, result).Inc() }
	t.terms, t.why = r.Continuation()
	return t
}

// breaks reports whether the stream has broken and nobody has gone on so far.
func (t *thread) breaks() bool { return t != nil && t.broken != "" }

// close gives back what is kept.
func (t *thread) close() {
	if t == nil {
		return
	}
	if t.broken != "" {
		t.count(t.broken, "failed")
	}
	if t.first != nil {
		t.first.drop()
	}
	t.bodies.give(kept(t.output))
	t.output = nil
}

// lose says that no engine can go on any more.
func (t *thread) lose(why string) {
	if t.why == "" {
		t.why = why
	}
}

// kept is the size of ids as the budget counts it.
func kept(ids []uint32) int64 { return 4 * int64(len(ids)) }

// part is one engine's part of a stream, in the making. It is used by the goroutine of its lane.
type part struct {
	*thread
	next   tokens   // of the content that comes next
	told   bool     // next is what the owner told of it
	prompt []uint32 // ids
	whole  bool     // all of them are there
	cut    bool     // some of them had no room: the others are of no use
	splice *openai.Splicer
}

// newPart returns the part of an engine that is tried; nil when nothing is kept.
func (t *thread) newPart() *part {
	if t == nil || t.terms == nil {
		return nil
	}
	p := &part{thread: t}
	if t.broken != "" {
		n := len(t.output)
		p.splice = &openai.Splicer{Manner: t.manner, Usage: t.terms.Usage, Prompt: len(t.first.prompt), Before: n, Now: n}
	}
	return p
}

// splices reports whether the part goes on with another's.
func (p *part) splices() bool { return p != nil && p.splice != nil }

// close gives back what is kept of the prompt, unless that is what engines go on from.
func (p *part) close(claims bool) {
	if p != nil && (!claims || p.splices()) {
		p.drop()
	}
}

// drop gives back what is kept of the prompt.
func (p *part) drop() {
	p.bodies.give(kept(p.prompt))
	p.prompt, p.whole = nil, false
}

// tokens takes in what the owner tells.
func (p *part) tokens(t *tokens) {
	if t.Flags&tokensPrompt == 0 {
		p.next.Flags, p.told = t.Flags|p.next.Flags&tokensLost, true
		if len(p.next.IDs)+len(t.IDs) > maxTokens { // no owner tells so many of one event
			p.next = tokens{Flags: p.next.Flags | tokensLost}
			return
		}
		p.next.IDs = append(p.next.IDs, t.IDs...)
		return
	}
	if p.cut || len(p.prompt)+len(t.IDs) > maxKept || !p.bodies.take(kept(t.IDs)) {
		p.drop()
		p.cut = true
		return
	}
	p.prompt = append(p.prompt, t.IDs...)
	p.whole = t.Flags&tokensMore == 0
}

var errNotSpliced = errors.New("the answer does not go on with the text")

// spliced returns content as the client is to get it: as part of the stream that another engine began.
func (p *part) spliced(b []byte) (out []byte, err error) {
	events := openai.NewStream(openai.RouteChat, maxFrame)
	p.splice.Now = len(p.output) + len(p.next.IDs)
	good := true
	err = events.Feed(b, func(e openai.Event) bool {
		out, good = p.splice.Event(out, e.Raw)
		return good
	})
	if err == nil && good {
		err = events.Close()
	}
	if err == nil && !good {
		err = errNotSpliced
	}
	if err != nil {
		return nil, &failure{"bad_event", err}
	}
	return out, nil
}

// begun notes that the part has the answer.
func (p *part) begun() {
	t := p.thread
	if t.first == nil {
		t.first = p
	}
	if t.broken != "" {
		t.count(t.broken, "continued")
		t.letGo()
		t.broken = ""
		t.parts++
	}
}

// sent notes that b, and so the text of the ids that were told of it, has gone to the client.
func (p *part) sent(b []byte) {
	t := p.thread
	switch {
	case !p.told:
		t.lose("its engine tells no token ids in such a stream")
	case p.next.Flags&tokensLost != 0:
		t.lose("some of what came is no text, or has no token ids")
	}
	t.keep(p.next.IDs)
	t.flags = p.next.Flags
	p.next, p.told = tokens{IDs: p.next.IDs[:0]}, false
	if t.flags&tokensFinished != 0 {
		t.counted = t.counted || bytes.Contains(b, []byte(`"choices":[]`))
		t.done = t.done || bytes.HasSuffix(b, doneEvent)
	}
	if t.manner == nil && t.why == "" && t.flags&tokensThought == 0 {
		t.learnManner(b)
	}
}

// keep adds ids to those of the output, within the budget.
func (t *thread) keep(ids []uint32) {
	switch {
	case t.why != "" || len(ids) == 0:
	case len(t.output)+len(ids) > maxKept:
		t.lose("it has more tokens than are kept")
	case !t.bodies.take(kept(ids)):
		t.lose("there was no room to keep its tokens")
	default:
		t.output = append(t.output, ids...)
	}
}

// learnManner looks in the first content for how the engine writes it.
func (t *thread) learnManner(b []byte) {
	_ = openai.NewStream(openai.RouteChat, maxFrame).Feed(b, func(e openai.Event) bool {
		t.manner = openai.MannerOf(e.Raw)
		return t.manner == nil
	})
}

// stop says why no engine can go on now, "" when one can.
func (t *thread) stop() string {
	switch {
	case t.why != "":
		return t.why
	case t.flags&tokensThought != 0:
		return "it broke within a thought"
	case t.first == nil || !t.first.whole || len(t.first.prompt) == 0:
		return "the ids of its prompt had not come, or had no room"
	case t.manner == nil:
		return "no text of the answer had come"
	}
	return ""
}

// goesOn reports whether another engine is to go on with the stream whose part, or attempt to go on, ended with err.
func (x *exchange) goesOn(err error) bool {
	t := x.thread
	failed, isFailure := errors.AsType[*failure](err)
	switch {
	case t == nil || x.ctx.Err() != nil || errors.Is(err, errClient) || errors.Is(err, errLateStatus):
		return false
	case t.broken != "": // nobody has gone on so far
		return x.more() && !x.tooDeadly()
	case !isFailure:
		return false
	}
	if x.event.NotContinued = x.prepare(); x.event.NotContinued != "" {
		t.count(failed.Reason, "impossible")
		return false
	}
	x.answer.release()
	if len(t.output)-t.before >= progress {
		x.forgive()
	}
	t.broken, t.before = failed.Reason, len(t.output)
	return x.more() && !x.tooDeadly()
}

// prepare makes the request that goes on with the answer, or says why there is none.
func (x *exchange) prepare() string {
	t := x.thread
	if why := t.stop(); why != "" {
		return why
	}
	switch left := t.terms.Left(len(t.first.prompt), len(t.output), x.g.View.MaxContext(x.model)); {
	case left < 0:
		return "the length of the model's context is not known"
	case left == 0:
		return "it has all the tokens that it may have"
	case !x.holdContinuation(left):
		return "there was no room for the request that goes on"
	}
	return ""
}

// holdContinuation makes the body of the request that goes on, and reports whether there was room for it.
func (x *exchange) holdContinuation(left int) bool {
	t := x.thread
	body := t.terms.Body(t.first.prompt, t.output, left)
	size := int64(len(body))
	if len(body) > x.g.MaxBody || !x.g.bodies.take(size) {
		return false
	}
	x.body.letGo()
	x.body.hold(body, func() { x.g.bodies.give(size) })
	return true
}

// forgive lets engines that failed the request before be tried again, but for the last: it was not the request's fault.
func (x *exchange) forgive() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.attempts, x.deaths = 1, 0
	x.failed = map[engine.ID]bool{x.event.Engine: true}
}

// continuingTraits are those of a request that goes on.
const continuingTraits = openai.TraitStream | openai.TraitUsage | openai.TraitStreamOptions | openai.TraitTokenPrompt

// amend makes k, the call of the request, one that goes on with its answer, while there is one to go on with.
func (x *exchange) amend(k *call) {
	t := x.thread
	if t == nil || t.terms == nil {
		return
	}
	k.Tokens = true
	if t.broken == "" {
		return
	}
	k.Continues, k.Path, k.Method = true, completionPath, http.MethodPost
	k.Traits, k.BodySize = continuingTraits, len(x.body.bytes())
	k.Prompt.Bytes += int64(engine.DefaultBytesPerToken * float64(len(t.output)))
}

const (
	completionPath = "/v1/completions"
	chatPath       = "/v1/chat/completions"
)

// conclude writes the end of an answer that is complete but for its last events, and reports whether it was one.
func (x *exchange) conclude(err error) bool {
	t := x.thread
	failed, isFailure := errors.AsType[*failure](err)
	if t == nil || !isFailure || x.ctx.Err() != nil || t.flags&tokensFinished == 0 || t.stop() != "" {
		return false
	}
	n := len(t.output)
	end := openai.Splicer{Manner: t.manner, Usage: t.terms.Usage, Counted: t.counted, Prompt: len(t.first.prompt), Before: n, Now: n}
	if !t.done && x.answer.write(nil, end.End(nil)) != nil {
		return false
	}
	t.count(failed.Reason, "completed")
	return true
}

// continues reports whether the engine can go on with an answer from token ids, and addresses the call to the route that it
// takes them on.
func (e *LocalEngine) continues(c *call) bool {
	if e.Kind == nil {
		return false
	}
	kind := e.Kind()
	if kind == engine.KindTRTLLM {
		c.Path = chatPath
	}
	return takesTokens(kind)
}

// continuing returns the body of a call that goes on with an answer as the route of its engine takes it; nil when it is not
// what the call says, or when its last ids are half a character: then the client does not have the text of all of them, since
// an engine may have told several ids with the text of some.
func (o *Owner) continuing(ctx context.Context, e *LocalEngine, c *call, body []byte) []byte {
	if c.Path == chatPath {
		return openai.ContinuingChat(body)
	}
	ids := openai.PromptIDs(openai.RouteCompletions, body)
	if len(ids) == 0 || o.endsHalf(ctx, e, c, ids[max(len(ids)-wholeCharacter, 0):]) {
		return nil
	}
	return body
}

const (
	// wholeCharacter is how many of the last ids have a whole character among them: one has at most four bytes.
	wholeCharacter = 8
	// readTimeout is how long an engine may take to say what those read.
	readTimeout = time.Second
	// maxRead bounds what it says.
	maxRead = 64 << 10
)

// endsHalf asks the engine whether the text of ids ends within a character. An engine that does not say is not believed to.
func (o *Owner) endsHalf(ctx context.Context, e *LocalEngine, c *call, ids []uint32) bool {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	question, err := json.Marshal(map[string]any{"model": c.Model, "tokens": ids})
	if err != nil {
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL.JoinPath("detokenize").String(), bytes.NewReader(question))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	if e.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+e.APIKey)
	}
	resp, err := o.client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var answer struct{ Prompt, Text string } // vLLM's field, SGLang's
	if json.NewDecoder(io.LimitReader(resp.Body, maxRead)).Decode(&answer) != nil {
		return false
	}
	return strings.HasSuffix(answer.Prompt+answer.Text, "\uFFFD")
}
