package engineagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// layoutFinding is what short renderings showed of a model's chat template.
type layoutFinding struct {
	layout openai.Layout // the bits that are set
	// known are the bits that the renderings showed, set or not. The others stand as in most templates.
	known         openai.Layout
	unstable      bool // the second turn of a conversation with tools does not go on from the first
	dropsThoughts bool // thoughts of earlier turns are not rendered again

	path string // of the route that renders; "" when there is none
}

func (f *layoutFinding) set(bit openai.Layout, on bool) {
	f.known |= bit
	if on {
		f.layout |= bit
	}
}

// renderings are the token ids of the probe's conversations. One that the engine refused is nil.
type renderings struct {
	base  []uint32 // a system text and a question
	tools []uint32 // the same, with tools if they are taken
	other []uint32 // as tools, with another system text and another question
	turns []uint32 // as tools, going on: an answer whose thought is the other question, and a new question
	low   []uint32 // as base, with little thinking
	high  []uint32 // as base, with much
	docs  []uint32 // as base, with documents
	none  []uint32 // as tools, which may not be called
	form  []uint32 // as base, with a form for the answer
}

// gramSize is how many tokens in a row must be the same for a text to be recognised. Texts of the probe share no more than
// two words in a row; at their ends tokens may join with what stands beside them.
const gramSize = 6

type gram [gramSize]uint32

// gramsOf are all runs of gramSize tokens.
func gramsOf(ids []uint32) map[gram]bool {
	out := make(map[gram]bool)
	for i := range len(ids) - gramSize + 1 {
		out[gram(ids[i:])] = true
	}
	return out
}

// common returns how many tokens a and b begin with alike.
func common(a, b []uint32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// commonEnd returns how many tokens a and b end with alike.
func commonEnd(a, b []uint32) int {
	n := 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}

// finding compares the renderings. Where a text stands cannot be seen in tokens, but where two renderings part can.
// offered says that the engine took the tools.
func (r *renderings) finding(offered bool) (f layoutFinding) {
	if r.docs != nil {
		f.set(openai.LayoutNoDocuments, slices.Equal(r.docs, r.base))
	}
	if r.none != nil {
		f.set(openai.LayoutToolsFiltered, slices.Equal(r.none, r.base))
	}
	if r.other == nil {
		return f
	}
	if offered {
		// With tools first, tools and other have them in common, and base parts from tools before them.
		f.set(openai.LayoutToolsFirst, common(r.tools, r.other) > common(r.tools, r.base))
	}
	if r.low != nil && r.high != nil {
		f.set(openai.LayoutEffortHead, r.partBeforeQuestion(r.low, r.high))
	}
	if r.form != nil {
		f.set(openai.LayoutConstraintsHead, r.partBeforeQuestion(r.base, r.form))
	}
	if r.turns != nil {
		question := len(r.tools) - commonEnd(r.tools, r.other) // its end
		f.unstable = common(r.tools, r.turns) < question-gramSize
		f.dropsThoughts = !r.thinks()
		f.set(openai.LayoutHeadLast, f.unstable && r.headLast())
	}
	return f
}

// headLast reports whether the system text comes behind the first question once a second one has been asked.
func (r *renderings) headLast() bool {
	system := common(r.tools, r.other) + 1 // where the two system texts have parted
	question := len(r.tools) - commonEnd(r.tools, r.other) - 1 - gramSize
	if system+gramSize > len(r.tools) || question < 0 {
		return false
	}
	first, at := indexOf(r.turns, gram(r.tools[question:])), indexOf(r.turns, gram(r.tools[system:]))
	return first >= 0 && at > first
}

// indexOf returns where a run of tokens begins in ids, or -1.
func indexOf(ids []uint32, g gram) int {
	for i := range len(ids) - gramSize + 1 {
		if gram(ids[i:]) == g {
			return i
		}
	}
	return -1
}

// partBeforeQuestion reports whether two renderings of base differ before the end of the question. It is known by its last
// tokens; its place moves when something grows at the head.
func (r *renderings) partBeforeQuestion(a, b []uint32) bool {
	n := common(a, b)
	if n == len(a) && n == len(b) {
		return false
	}
	// Tools may stand at the very end of a prompt, and then make its common end longer.
	end := len(r.base) - min(commonEnd(r.tools, r.other), max(commonEnd(r.tools, r.base), 1)) - 1
	if end < gramSize {
		return false
	}
	return !gramsOf(a[:n])[gram(r.base[end-gramSize:])]
}

// thinks reports whether the thought in turns was rendered: something of other is in turns that is not in tools.
func (r *renderings) thinks() bool {
	other, tools := gramsOf(r.other), gramsOf(r.tools)
	for g := range gramsOf(r.turns) {
		if other[g] && !tools[g] {
			return true
		}
	}
	return false
}

const (
	tokenizePath = "/tokenize"
	renderPath   = "/v1/chat/completions/render" // vLLM since 0.15; often turned off
)

// renderer asks the engine for the token ids of a request. The error is a *statusError when the engine refuses.
type renderer func(ctx context.Context, path string, body any) (ids []uint32, err error)

// prober renders the probe's conversations.
type prober struct {
	ask     renderer
	model   string
	path    string
	offered bool // tools are taken
	r       renderings
}

// probeLayout finds out how an engine renders the conversations of a model, by up to nine renderings of some 200 tokens,
// which need no GPU. The error is nil when nothing more can be found; it is a *statusError when nothing can.
func probeLayout(ctx context.Context, ask renderer, kind engine.Kind, model string) (layoutFinding, error) {
	p := prober{ask: ask, model: model, path: tokenizePath}
	err := p.begin(ctx, kind)
	if err == nil {
		err = p.vary(ctx)
	}
	if err == nil && p.offered && !slices.Equal(p.r.tools, p.r.base) {
		err = p.constrain(ctx, kind)
	}
	if err != nil {
		return layoutFinding{}, fmt.Errorf("render the conversations of a probe: %w", err)
	}
	f := p.r.finding(p.offered)
	f.path = p.path
	return f, nil
}

// begin finds the route that renders conversations, and whether it takes tools.
func (p *prober) begin(ctx context.Context, kind engine.Kind) (err error) {
	base := sample{system: firstSystem, question: firstQuestion}
	p.r.base, err = p.ask(ctx, p.path, base.body(p.model))
	if refused(err) && kind == engine.KindVLLM {
		p.path = renderPath
		p.r.base, err = p.ask(ctx, p.path, base.body(p.model))
	}
	if err != nil {
		return err
	}
	base.tools = true
	if err = p.render(ctx, p.path, &p.r.tools, &base); err != nil {
		return err
	}
	if p.offered = p.r.tools != nil; !p.offered {
		p.r.tools = p.r.base
	}
	return nil
}

// vary makes the renderings that every engine can.
func (p *prober) vary(ctx context.Context) error {
	options := func(kv ...any) sample {
		s := sample{system: firstSystem, question: firstQuestion, options: map[string]any{}}
		for i := 0; i < len(kv); i += 2 {
			s.options[kv[i].(string)] = kv[i+1]
		}
		return s
	}
	for _, v := range []struct {
		into   *[]uint32
		sample sample
	}{
		{&p.r.other, sample{system: otherSystem, question: otherQuestion, tools: p.offered}},
		{&p.r.turns, sample{system: firstSystem, question: firstQuestion, goesOn: true, tools: p.offered}},
		{&p.r.low, options("reasoning_effort", "low", "enable_thinking", false, "thinking", false)},
		{&p.r.high, options("reasoning_effort", "high", "enable_thinking", true, "thinking", true)},
		{&p.r.docs, options("documents", documents())},
	} {
		if err := p.render(ctx, p.path, v.into, &v.sample); err != nil {
			return err
		}
	}
	return nil
}

// constrain renders what limits the answer. SGLang's tokenize knows the choice of tools, vLLM's nothing of the kind, so
// that its bits stay unknown where rendering is turned off.
func (p *prober) constrain(ctx context.Context, kind engine.Kind) error {
	path := renderPath
	if kind == engine.KindSGLang {
		path = tokenizePath
	}
	s := sample{system: firstSystem, question: firstQuestion, tools: true, fields: map[string]any{"tool_choice": "none"}}
	if err := p.render(ctx, path, &p.r.none, &s); err != nil || p.r.none == nil || path != renderPath {
		return err
	}
	s.tools, s.fields = false, map[string]any{"response_format": answerForm()}
	return p.render(ctx, path, &p.r.form, &s)
}

// render leaves nil in ids when the engine refuses.
func (p *prober) render(ctx context.Context, path string, ids *[]uint32, s *sample) (err error) {
	if *ids, err = p.ask(ctx, path, s.body(p.model)); refused(err) {
		*ids, err = nil, nil
	}
	return err
}

const (
	// maxRenderBytes bounds what is not ids in an answer: all other fields of a rendered request.
	maxRenderBytes = 128 << 10
	// maxTemplateTokens bounds what a template adds to a conversation: some have a system text of their own.
	maxTemplateTokens = 16 << 10
	// maxIDBytes is the length of an id in an answer: seven digits and a comma.
	maxIDBytes = 8
)

// findLayout probes the engine's first model. settled says that asking again would tell no more.
func (a *Agent) findLayout(ctx context.Context, e *engine.Engine) (f layoutFinding, settled bool) {
	if e.Kind != engine.KindVLLM && e.Kind != engine.KindSGLang || len(e.Models) == 0 {
		return layoutFinding{}, len(e.Models) > 0
	}
	f, err := probeLayout(ctx, a.rendered, e.Kind, e.Models[0].Name)
	return f, err == nil || refused(err)
}

// rendered is the renderer of the engine itself.
func (a *Agent) rendered(ctx context.Context, path string, body any) ([]uint32, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode request for %s: %w", path, err)
	}
	answer, err := a.askRendering(ctx, path, text)
	if err != nil {
		return nil, err
	}
	return parseTokens(answer, maxTokens(text))
}

// askRendering returns the answer of a tokenize or render route to a request.
func (a *Agent) askRendering(ctx context.Context, path string, body []byte) ([]byte, error) {
	return a.post(ctx, path, body, maxRenderBytes+maxIDBytes*int64(maxTokens(body)))
}

// maxTokens bounds the rendering of a request: a token stands for one byte or more.
func maxTokens(body []byte) int { return maxTemplateTokens + len(body) }

var errNoTokens = errors.New("no token ids, or too many")

// parseTokens reads the answer of a tokenize route or of vLLM's render route, at most so many tokens.
func parseTokens(body []byte, most int) ([]uint32, error) {
	var page struct {
		Tokens   []uint32 `json:"tokens"`
		TokenIDs []uint32 `json:"token_ids"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, fmt.Errorf("parse token ids: %w", err)
	}
	ids := slices.Concat(page.Tokens, page.TokenIDs)
	if len(ids) == 0 || len(ids) > most {
		return nil, fmt.Errorf("parse token ids: %w", errNoTokens)
	}
	return ids, nil
}

// idle reports whether no request is known to be on the engine.
func (a *Agent) idle() bool {
	return look(a.book, (*book.Book).InFlight) == 0
}

// examine finds out what the engine can be asked for and how it renders conversations; a working engine is spared what
// costs it time. It returns whether all is known that can be.
func (a *Agent) examine(ctx context.Context) (settled bool) {
	e, idle := a.Engine(), a.idle()
	c, settled := a.findCapability(ctx, e.Kind, idle)
	a.noteCapability(c)
	if !idle {
		return settled && e.Kind != engine.KindVLLM && e.Kind != engine.KindSGLang
	}
	f, known := a.findLayout(ctx, &e)
	if known {
		a.noteLayout(f)
	}
	return settled && known
}

// noteLayout takes what is known of the model's layout.
func (a *Agent) noteLayout(f layoutFinding) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.layout, a.hasLayout = f, f.known != 0
	e := a.engine
	e.Models = a.laidOutLocked(e.Models)
	a.describeLocked(e)
	a.stabilityLocked()
}

// laidOutLocked returns models with the layout that was found. Adapters are rendered as their model is.
func (a *Agent) laidOutLocked(models []engine.Model) []engine.Model {
	if !a.hasLayout {
		return models
	}
	models = slices.Clone(models)
	for i := range models {
		models[i].Layout, models[i].HasLayout = uint16(a.layout.layout), true
	}
	return models
}
