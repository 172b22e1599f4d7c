package simengine

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
)

// chat answers POST /v1/chat/completions.
func (e *Engine) chat(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req chatRequest
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	if err := e.checkFields(body, chatFields); err != nil {
		return err
	}
	prompt, thinking, err := e.chatPrompt(&req)
	if err != nil {
		return err
	}
	if e.cfg.Kind == KindSGLang && req.Stream && (req.ReturnTokenIDs || req.ReturnPromptTokenIDs) {
		return badRequest("token ids cannot be returned in a stream", "return_token_ids")
	}
	tools := len(req.Tools) > 0 && string(req.ToolChoice) != `"none"`
	c, err := e.newCall(r, callSpec{
		params: req.params, prompts: [][]Token{prompt}, maxTokens: req.maxTokens(), thinking: thinking,
		parser: e.cfg.Template == TemplateDropsThoughts || tools,
	})
	if err != nil {
		return err
	}
	if e.cfg.Kind == KindSGLang {
		c.wantPrompt = req.ReturnPromptTokenIDs && e.cfg.TokenIDs
	}
	if c.parser && req.IncludeReasoning != nil && !*req.IncludeReasoning {
		c.wantOutput, c.wantPrompt = false, false
	}
	return e.run(w, r, c, &chatFormat{e: e, c: c})
}

// chatPrompt renders and tokenises a chat request, and says whether its answer begins with a thought.
func (e *Engine) chatPrompt(req *chatRequest) (prompt []Token, thinking bool, err error) {
	ids := req.InputIDs
	switch e.cfg.Kind {
	case KindTRTLLM:
		ids = req.PromptTokenIDs
	case KindVLLM:
		ids = nil
	}
	if ids != nil {
		return ids, false, checkTokens(ids, e.tok)
	}
	conv, err := req.conversation(e.cfg.Kind)
	if err != nil {
		return nil, false, err
	}
	return e.promptOf(conv), e.thinks(conv), nil
}

func (e *Engine) promptOf(c *conversation) []Token { return e.tok.encode(nil, e.render(c)) }

func (e *Engine) thinks(c *conversation) bool {
	return e.cfg.Template == TemplateDropsThoughts && !c.noThinking && !c.continueFinal
}

// chatFormat writes chat completions and their chunks.
type chatFormat struct {
	e *Engine
	c *call
	// plain is the chunk of an ordinary token before and after its text: most of what an engine writes differs in
	// nothing else, and making it anew each time costs as much as sending it.
	plain [2][]byte
}

// null is the value of raw fields where the engine says null; they are nil where it leaves the key out.
var null = json.RawMessage("null")

type chatChunk struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`
	Created           int64           `json:"created"`
	Model             string          `json:"model"`
	SystemFingerprint string          `json:"system_fingerprint,omitempty"`
	Choices           []chunkChoice   `json:"choices"`
	Usage             any             `json:"usage,omitempty"`
	PromptTokenIDs    json.RawMessage `json:"prompt_token_ids,omitempty"`
}

type chunkChoice struct {
	Index        int             `json:"index"`
	Delta        delta           `json:"delta"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   json.RawMessage `json:"stop_reason,omitempty"`  // vLLM
	MatchedStop  json.RawMessage `json:"matched_stop,omitempty"` // SGLang
	TokenIDs     json.RawMessage `json:"token_ids,omitempty"`
}

type delta struct {
	Role             string  `json:"role,omitempty"`
	Content          *string `json:"content,omitempty"`
	Reasoning        string  `json:"reasoning,omitempty"`         // vLLM
	ReasoningContent string  `json:"reasoning_content,omitempty"` // SGLang, TensorRT-LLM
}

func (f *chatFormat) open(*sse) {}

// token writes the role chunk with the first token of a choice, as the engines do, then the token's own chunk. Without
// text, token ids or an end to tell, a token has no chunk.
func (f *chatFormat) token(s *sse, choice, i int) {
	j := f.c.jobs[choice]
	if i == 0 {
		f.role(s, choice)
	}
	text, thought := f.e.visible(f.c, j, i)
	last := i+1 == len(j.answer())
	switch {
	case text == "" && thought == "" && !last && !f.c.wantOutput:
		return
	case f.ordinary(thought, last):
		s.plain(f.plain, text)
		return
	}
	f.special(s, choice, i)
}

// ordinary reports whether a token's chunk is the plain one, and prepares that. Calls with several choices have none.
func (f *chatFormat) ordinary(thought string, last bool) bool {
	if thought != "" || last || len(f.c.jobs) > 1 || f.c.wantOutput || f.c.continuousUsage() {
		return false
	}
	if f.plain[0] == nil {
		const mark = "TEXT"
		k := f.chunk()
		k.Choices = []chunkChoice{{Delta: delta{Content: new(mark)}, Logprobs: null, TokenIDs: f.c.ids(false, nil)}}
		before, after, _ := bytes.Cut(marshal(nil, k), []byte(`{"content":"`+mark+`"`))
		f.plain[0] = slices.Concat([]byte("data: "), before, []byte(`{"content":`))
		f.plain[1] = append(after, "\n\n"...)
	}
	return true
}

// special writes a chunk that is not the plain one.
func (f *chatFormat) special(s *sse, choice, i int) {
	j := f.c.jobs[choice]
	text, thought := f.e.visible(f.c, j, i)
	last := i+1 == len(j.answer())
	ch := chunkChoice{Index: choice, Logprobs: null, Delta: f.delta(text, thought, last), TokenIDs: f.outputIDs(j, i)}
	k := f.chunk()
	if last {
		f.finish(&ch, &k, j)
	}
	k.Choices = []chunkChoice{ch}
	if f.c.continuousUsage() {
		k.Usage = f.e.usage(f.c)
	}
	s.data(k)
}

func (f *chatFormat) delta(text, thought string, last bool) delta {
	var d delta
	if text != "" || last && thought == "" {
		d.Content = &text
	}
	if f.e.cfg.Kind == KindVLLM {
		d.Reasoning = thought
	} else {
		d.ReasoningContent = thought
	}
	return d
}

// finish marks the last chunk of a choice. vLLM stamps its fingerprint there only when usage was not asked for.
func (f *chatFormat) finish(ch *chunkChoice, k *chatChunk, j *job) {
	reason := j.finishReason()
	ch.FinishReason = &reason
	switch f.e.cfg.Kind {
	case KindVLLM:
		ch.StopReason = null
		if !f.e.includeUsage(f.c) {
			k.SystemFingerprint = f.e.fingerprint()
		}
	case KindSGLang:
		ch.MatchedStop = null
		if j.stopped {
			ch.MatchedStop = marshal(nil, f.e.tok.id(tokenEnd))
		}
	}
}

// role writes the first chunk of a choice. vLLM puts the prompt's ids on it, once for every choice.
func (f *chatFormat) role(s *sse, choice int) {
	k := f.chunk()
	k.Choices = []chunkChoice{{Index: choice, Delta: delta{Role: "assistant", Content: new("")}, Logprobs: null}}
	k.PromptTokenIDs = f.promptIDs(f.c.jobs[choice])
	s.data(k)
}

func (f *chatFormat) chunk() chatChunk {
	return chatChunk{ID: "chatcmpl-" + f.c.id, Object: "chat.completion.chunk", Created: f.c.created, Model: f.c.Model}
}

func (f *chatFormat) close(s *sse) {
	if f.e.includeUsage(f.c) {
		k := f.chunk()
		k.Choices, k.Usage = []chunkChoice{}, f.e.usage(f.c)
		s.data(k)
	}
	s.done()
}

// outputIDs is the id of one answer token, as the field of its chunk.
func (f *chatFormat) outputIDs(j *job, i int) json.RawMessage {
	return f.c.ids(f.c.wantOutput, j.answer()[i:i+1])
}

func (f *chatFormat) promptIDs(j *job) json.RawMessage {
	return f.c.ids(f.c.wantPrompt, j.seq.tokens[:j.prompt])
}

// ids is a field with token ids: the list when wanted, else null or nothing.
func (c *call) ids(wanted bool, ids []Token) json.RawMessage {
	switch {
	case wanted:
		return marshal(nil, ids)
	case c.nullIDs:
		return null
	}
	return nil
}

type chatCompletion struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`
	Created           int64           `json:"created"`
	Model             string          `json:"model"`
	Choices           []chatChoice    `json:"choices"`
	SystemFingerprint string          `json:"system_fingerprint,omitempty"`
	Usage             usage           `json:"usage"`
	PromptTokenIDs    json.RawMessage `json:"prompt_token_ids,omitempty"`
}

type chatChoice struct {
	Index          int             `json:"index"`
	Message        answerMessage   `json:"message"`
	Logprobs       json.RawMessage `json:"logprobs"`
	FinishReason   string          `json:"finish_reason"`
	StopReason     json.RawMessage `json:"stop_reason,omitempty"`
	MatchedStop    json.RawMessage `json:"matched_stop,omitempty"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids,omitempty"` // SGLang
	TokenIDs       json.RawMessage `json:"token_ids,omitempty"`
}

type answerMessage struct {
	Role             string          `json:"role"`
	Content          string          `json:"content"`
	Reasoning        json.RawMessage `json:"reasoning,omitempty"`
	ReasoningContent json.RawMessage `json:"reasoning_content,omitempty"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
}

func (f *chatFormat) whole() any {
	out := chatCompletion{
		ID: "chatcmpl-" + f.c.id, Object: "chat.completion", Created: f.c.created, Model: f.c.Model,
		Usage: f.e.usage(f.c),
	}
	if f.e.cfg.Kind == KindVLLM {
		out.PromptTokenIDs = f.promptIDs(f.c.jobs[0])
		out.SystemFingerprint = f.e.fingerprint()
	}
	for i, j := range f.c.jobs {
		out.Choices = append(out.Choices, f.choice(i, j))
	}
	return out
}

func (f *chatFormat) choice(i int, j *job) chatChoice {
	text, thought := f.e.text(f.c, j)
	m := answerMessage{Role: "assistant", Content: text, ToolCalls: null}
	reasoning := null
	if thought != "" {
		reasoning = marshal(nil, thought)
	}
	ch := chatChoice{Index: i, Logprobs: null, FinishReason: j.finishReason()}
	ch.TokenIDs = f.c.ids(f.c.wantOutput, j.answer())
	if f.e.cfg.Kind == KindVLLM {
		m.Reasoning, m.ToolCalls, ch.StopReason = reasoning, json.RawMessage("[]"), null
	} else {
		m.ReasoningContent, ch.MatchedStop = reasoning, null
		ch.PromptTokenIDs = f.promptIDs(j)
	}
	ch.Message = m
	return ch
}

// fingerprint is what vLLM calls its build and model.
func (e *Engine) fingerprint() string { return "vllm-" + e.cfg.Version + "-sim" }
