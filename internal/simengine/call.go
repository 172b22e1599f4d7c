package simengine

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// call is one HTTP request for generation: its prompts, and a job for each choice of each.
type call struct {
	params
	life    *life
	id      string // without the prefix of its route
	created int64
	prompts [][]Token
	jobs    []*job // index = prompt × n + choice
	notify  chan struct{}

	wantOutput bool // return the answer's token ids
	wantPrompt bool // return the prompt's token ids
	nullIDs    bool // say null where they were not asked for
	parser     bool // a reasoning or tool parser is at work
	echo       bool
}

// callSpec is what a route hands over to make a call.
type callSpec struct {
	params
	prompts   [][]Token
	maxTokens *int
	fallback  int // limit when maxTokens is nil; 0 means the rest of the context
	thinking  bool
	parser    bool
	echo      bool
}

// newCall checks what all routes check and prepares the jobs.
func (e *Engine) newCall(r *http.Request, s callSpec) (*call, error) {
	if err := e.checkParams(&s); err != nil {
		return nil, err
	}
	c := &call{params: s.params, prompts: s.prompts, parser: s.parser, echo: s.echo, created: time.Now().Unix()}
	c.life = e.life.Load()
	c.notify = make(chan struct{}, 1)
	c.wantOutput, c.nullIDs = s.ReturnTokenIDs && e.cfg.TokenIDs, e.cfg.TokenIDs && e.cfg.Kind == KindVLLM
	c.wantPrompt = c.wantOutput
	for _, prompt := range s.prompts {
		limit, err := e.limit(len(prompt), s.maxTokens, s.fallback)
		if err != nil {
			return nil, err
		}
		for choice := range choices(s.N) {
			c.jobs = append(c.jobs, e.newJob(c, prompt, answerSpec{
				choice: choice, limit: limit, minimum: s.MinTokens, ignore: s.IgnoreEOS, thinking: s.thinking,
			}))
		}
	}
	if c.id = e.newID(); r.Header.Get("X-Request-Id") != "" && e.cfg.Kind == KindVLLM {
		c.id = r.Header.Get("X-Request-Id")
	}
	return c, nil
}

// maxChoices bounds prompts × n of one request, each of which is a sequence of its own in memory.
const maxChoices = 128

func choices(n *int) int {
	if n == nil {
		return 1
	}
	return *n
}

func (e *Engine) checkParams(s *callSpec) error {
	if err := e.checkModel(s.Model); err != nil {
		return err
	}
	switch {
	case s.StreamOptions != nil && !s.Stream && e.cfg.Kind != KindSGLang:
		return badRequest("stream_options needs stream", "stream_options")
	case choices(s.N) < 1 || choices(s.N) > maxChoices/len(s.prompts):
		return badRequest("n is out of range", "n")
	case s.maxTokens != nil && *s.maxTokens < 1:
		return badRequest("max_tokens must be at least 1", "max_tokens")
	}
	return nil
}

// checkModel refuses names that the engine does not go by. SGLang serves its one model under any name.
func (e *Engine) checkModel(name string) error {
	if slices.Contains(e.cfg.names(), name) || e.cfg.adapter(name) != "" || e.cfg.Kind == KindSGLang {
		return nil
	}
	return &apiError{http.StatusNotFound, fmt.Sprintf("model %q is not served here", name), "model"}
}

// limit is the most tokens that an answer can have.
func (e *Engine) limit(prompt int, asked *int, fallback int) (int, error) {
	left := e.cfg.MaxContext - prompt
	if left < 1 || asked != nil && *asked > left {
		message := fmt.Sprintf("context of %d tokens cannot hold %d of prompt and the answer asked for",
			e.cfg.MaxContext, prompt)
		return 0, badRequest(message, "max_tokens")
	}
	switch {
	case asked != nil:
		return *asked, nil
	case fallback > 0:
		return min(fallback, left), nil
	}
	return left, nil
}

func (e *Engine) newJob(c *call, prompt []Token, spec answerSpec) *job {
	answer, thinking, stopped := e.words.answer(prompt, spec)
	j := &job{prompt: len(prompt), stopped: stopped, thinking: thinking, notify: c.notify}
	j.readsKV = c.PromptLogprobs == nil
	j.seq = e.sequence(c.life, &c.params, append(slices.Clip(prompt), answer...))
	return j
}

// sequence is tokens with their chain of blocks in the part of the cache that a request may share.
func (e *Engine) sequence(l *life, p *params, tokens []Token) sequence {
	s := sequence{tokens: tokens, salt: p.CacheSalt, adapter: e.cfg.adapter(p.Model)}
	if e.cfg.Kind == KindSGLang && p.LoraPath != "" {
		s.adapter = p.LoraPath
	}
	realm := fmt.Sprintf("%q %q %q", p.CacheSalt, p.ExtraKey, s.adapter)
	s.chain = l.chains.chain(tokens, realm, p.CacheSalt)
	return s
}

// includeUsage reports whether a stream ends with usage.
func (e *Engine) includeUsage(c *call) bool {
	return e.cfg.ForceIncludeUsage || c.StreamOptions != nil && c.StreamOptions.IncludeUsage
}

// continuousUsage reports whether every chunk has usage.
func (c *call) continuousUsage() bool {
	return c.StreamOptions != nil && c.StreamOptions.ContinuousUsageStats
}

// usage is OpenAI's usage object.
type usage struct {
	PromptTokens     int            `json:"prompt_tokens"`
	TotalTokens      int            `json:"total_tokens"`
	CompletionTokens int            `json:"completion_tokens"`
	Details          *promptDetails `json:"prompt_tokens_details,omitempty"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// usage counts a prompt once however many choices it has; cached tokens are those of the first choice.
func (e *Engine) usage(c *call) usage {
	var u usage
	cached := 0
	per := len(c.jobs) / len(c.prompts)
	for i, j := range c.jobs {
		if i%per == 0 {
			u.PromptTokens += j.prompt
			cached += int(j.cached.Load())
		}
		u.CompletionTokens += int(j.produced.Load())
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if e.reportsCached(cached) {
		u.Details = &promptDetails{cached}
	}
	return u
}

// reportsCached: SGLang leaves the field out at 0, TensorRT-LLM always has it.
func (e *Engine) reportsCached(cached int) bool {
	switch e.cfg.Kind {
	case KindSGLang:
		return e.cfg.CachedTokens && cached > 0
	case KindTRTLLM:
		return true
	}
	return e.cfg.CachedTokens
}

// visible says what the client sees of answer token i: text of the answer or of the thought; both are empty for marks
// that a parser swallows.
func (e *Engine) visible(c *call, j *job, i int) (text, thought string) {
	id := j.answer()[i]
	if e.tok.isSpecial(id) {
		return "", ""
	}
	s := e.tok.text(id)
	switch {
	case !c.parser || i >= j.thinking:
		return s, ""
	case s == "\n":
		return "", ""
	}
	return "", s
}

// text returns all that the client sees of a finished answer.
func (e *Engine) text(c *call, j *job) (text, thought string) {
	var a, b strings.Builder
	for i := range j.answer() {
		text, thought := e.visible(c, j, i)
		a.WriteString(text)
		b.WriteString(thought)
	}
	return a.String(), b.String()
}
