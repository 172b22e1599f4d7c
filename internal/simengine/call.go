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

	hideThoughts bool // leave thoughts out of the answer
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
	c.nullIDs = e.cfg.TokenIDs && e.cfg.Kind == KindVLLM
	c.wantOutput = s.ReturnTokenIDs && (c.nullIDs || e.cfg.TokenIDs && e.cfg.Kind == KindSGLang)
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
	if e.cfg.Kind == KindOther && s.maxTokens != nil && *s.maxTokens < 1 {
		s.maxTokens = nil // no limit
	}
	switch {
	case s.StreamOptions != nil && !s.Stream && (e.cfg.Kind == KindVLLM || e.cfg.Kind == KindTRTLLM):
		return badRequest("Stream options can only be defined when `stream=True`. (parameter=stream_options)", "stream_options")
	case choices(s.N) < 1 || choices(s.N) > maxChoices/len(s.prompts):
		return badRequest(fmt.Sprintf("n must be at least 1, and at most %d, got %d.", maxChoices, *s.N), "")
	case s.maxTokens != nil && *s.maxTokens < 1:
		return badParam("max_tokens", *s.maxTokens, "max_tokens must be at least 1, got %d.", *s.maxTokens)
	case s.CacheSalt != nil && *s.CacheSalt == "" && e.cfg.Kind == KindVLLM:
		return badRequest("Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)", "cache_salt")
	}
	return nil
}

// checkModel refuses names that the engine does not go by. SGLang and llama.cpp serve their one model under any name.
func (e *Engine) checkModel(name string) error {
	anyName := e.cfg.Kind == KindSGLang || e.cfg.Kind == KindOther
	if anyName || slices.Contains(e.cfg.names(), name) || e.cfg.adapter(name) != "" {
		return nil
	}
	message := fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", name, strings.Join(e.cfg.names(), ", "))
	return &apiError{status: http.StatusNotFound, message: message, param: "model"}
}

// badParam names a parameter and its value the way that vLLM's own checks do.
func badParam(name string, value int, format string, args ...any) *apiError {
	return badRequest(fmt.Sprintf(format, args...)+fmt.Sprintf(" (parameter=%s, value=%d)", name, value), name)
}

// limit is the most tokens that an answer can have. vLLM cuts what was asked for to the room that the prompt leaves, and
// refuses only what no prompt leaves room for.
func (e *Engine) limit(prompt int, asked *int, fallback int) (int, error) {
	most := e.cfg.MaxContext
	left := most - prompt
	cuts := e.cfg.Kind == KindVLLM || e.cfg.Kind == KindOther
	switch {
	case e.cfg.Kind == KindOther && left < 1:
		return 0, llamaTooLong(prompt, most)
	case e.cfg.Kind == KindOther && asked != nil:
		return min(*asked, left), nil
	case asked != nil && *asked > most:
		return 0, badParam("max_tokens", *asked,
			"max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", *asked, most)
	case left < 1, asked != nil && *asked > left && !cuts:
		return 0, badParam("input_tokens", prompt, "This model's maximum context length is %d tokens. However, your prompt "+
			"contains %d input tokens, which leaves no room for the output tokens. "+
			"Please reduce the length of the input prompt.", most, prompt)
	case asked != nil:
		return min(*asked, left), nil
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
	salt := p.salt()
	s := sequence{tokens: tokens, salt: salt, adapter: e.cfg.adapter(p.Model)}
	if e.cfg.Kind == KindSGLang && p.LoraPath != "" {
		s.adapter = p.LoraPath
	}
	realm := fmt.Sprintf("%q %q %q", salt, p.ExtraKey, s.adapter)
	s.chain = l.chains.chain(tokens, realm, salt)
	return s
}

// includeUsage reports whether a stream ends with usage. TensorRT-LLM takes that for granted of any stream options.
func (e *Engine) includeUsage(c *call) bool {
	if c.StreamOptions == nil || e.cfg.ForceIncludeUsage {
		return e.cfg.ForceIncludeUsage
	}
	if on := c.StreamOptions.IncludeUsage; on != nil {
		return *on
	}
	return e.cfg.Kind == KindTRTLLM
}

// continuousUsage reports whether every chunk has usage. vLLM's --enable-force-include-usage forces that too.
func (e *Engine) continuousUsage(c *call) bool {
	switch {
	case e.cfg.ForceIncludeUsage:
		return e.cfg.Kind == KindVLLM
	case c.StreamOptions == nil || !c.StreamOptions.ContinuousUsageStats:
		return false
	}
	return e.cfg.Kind == KindSGLang || e.includeUsage(c)
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
	case s == "\n" || c.hideThoughts:
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
