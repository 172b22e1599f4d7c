package simengine

import "encoding/json"

// What vLLM 0.32 writes. Streams are dumped with exclude_unset and set token ids explicitly, so these are null where they
// were not asked for; whole answers say null of everything.

type vllmUsage struct {
	PromptTokens      int `json:"prompt_tokens"`
	TotalTokens       int `json:"total_tokens"`
	CompletionTokens  int `json:"completion_tokens"`
	PromptDetails     any `json:"prompt_tokens_details,omitempty"`
	CompletionDetails any `json:"completion_tokens_details,omitempty"`
}

type vllmPromptDetails struct {
	CachedTokens int             `json:"cached_tokens"`
	Created      any             `json:"created_cache_tokens,omitempty"`
	Multimodal   json.RawMessage `json:"multimodal_tokens,omitempty"`
}

// vllmUsage is a usage object; absent is what stands where there is nothing to say: null, or nil for no key. Created
// tokens are told of chats only.
func (w *writer) vllmUsage(n counts, created, absent any) *vllmUsage {
	u := &vllmUsage{n.prompt, n.total(), n.completion, absent, absent}
	if w.e.cfg.CachedTokens {
		d := vllmPromptDetails{CachedTokens: n.cached, Created: created}
		d.Multimodal, _ = absent.(json.RawMessage)
		u.PromptDetails = d
	}
	return u
}

// vllmChat writes chat completions.
type vllmChat struct {
	writer
	begun bool
}

type vllmChunk struct {
	ID                string            `json:"id"`
	Object            string            `json:"object"`
	Created           int64             `json:"created"`
	Model             string            `json:"model"`
	Choices           []vllmChunkChoice `json:"choices"`
	Usage             *vllmUsage        `json:"usage,omitempty"`
	SystemFingerprint string            `json:"system_fingerprint,omitempty"`
	PromptTokenIDs    json.RawMessage   `json:"prompt_token_ids,omitempty"`
	PromptText        json.RawMessage   `json:"prompt_text,omitempty"`
}

type vllmChunkChoice struct {
	Index        int             `json:"index"`
	Delta        vllmDelta       `json:"delta"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   json.RawMessage `json:"stop_reason,omitempty"`
	TokenIDs     json.RawMessage `json:"token_ids,omitempty"`
}

type vllmDelta struct {
	Role      string          `json:"role,omitempty"`
	Content   *string         `json:"content,omitempty"`
	Reasoning json.RawMessage `json:"reasoning,omitempty"`
}

func (f *vllmChat) chunk(choices ...vllmChunkChoice) *vllmChunk {
	return &vllmChunk{
		ID: "chatcmpl-" + f.c.id, Object: "chat.completion.chunk", Created: f.c.created, Model: f.c.Model,
		Choices: append([]vllmChunkChoice{}, choices...),
	}
}

// token writes the role chunks of all choices with the first token of any, then the token's own chunk. A token that a
// parser swallows has a chunk only when ids are wanted.
func (f *vllmChat) token(s *sse, choice, i int) {
	if !f.begun {
		f.begun = true
		f.roles(s)
	}
	j := f.c.jobs[choice]
	text, thought := f.e.visible(f.c, j, i)
	switch {
	case text == "" && thought == "" && !isLast(j, i) && !f.c.wantOutput:
	case f.ordinary(thought, isLast(j, i)):
		f.ordinaryText(s, text, func(text string) any {
			return f.chunk(vllmChunkChoice{Delta: f.delta(text, ""), Logprobs: null, TokenIDs: f.ids(false, nil)})
		})
	default:
		f.tokenChunk(s, choice, i)
	}
}

// roles writes the first chunk of every choice. The prompt's ids are on each.
func (f *vllmChat) roles(s *sse) {
	for i, j := range f.c.jobs {
		k := f.chunk(vllmChunkChoice{Index: i, Delta: vllmDelta{Role: "assistant", Content: new("")}, Logprobs: null})
		if k.PromptTokenIDs = f.promptIDs(j); k.PromptTokenIDs != nil {
			k.PromptText = null
		}
		f.continuous(k, counts{prompt: j.prompt})
		s.data(k)
	}
}

// continuous adds the usage so far to a chunk when every chunk has it: it never has cached tokens.
func (f *vllmChat) continuous(k *vllmChunk, n counts) {
	if !f.e.continuousUsage(f.c) {
		return
	}
	k.Usage = &vllmUsage{n.prompt, n.total(), n.completion, nil, f.reasoning(n, null)}
}

func (w *writer) reasoning(n counts, absent any) any {
	if !w.e.reasons() {
		return absent
	}
	return reasoningDetails{n.reasoning}
}

func (f *vllmChat) delta(text, thought string) vllmDelta {
	var d vllmDelta
	if text != "" || !f.c.parser {
		d.Content = &text
	}
	switch {
	case thought != "":
		d.Reasoning = marshal(nil, thought)
	case f.c.hideThoughts && text != "":
		d.Reasoning = null
	}
	return d
}

// tokenChunk writes the chunk of token i. The fingerprint is on the last chunk of a choice, unless one with usage follows.
func (f *vllmChat) tokenChunk(s *sse, choice, i int) {
	j := f.c.jobs[choice]
	text, thought := f.e.visible(f.c, j, i)
	ch := vllmChunkChoice{
		Index: choice, Delta: f.delta(text, thought), Logprobs: null,
		TokenIDs: f.ids(f.c.wantOutput, j.answer()[i:i+1]),
	}
	k := f.chunk()
	if isLast(j, i) {
		ch.FinishReason, ch.StopReason = new(j.finishReason()), null
		if !f.e.includeUsage(f.c) {
			k.SystemFingerprint = f.e.fingerprint()
		}
	}
	k.Choices = []vllmChunkChoice{ch}
	f.continuous(k, f.usageAfter(choice, i))
	s.data(k)
}

func (f *vllmChat) close(s *sse) {
	if f.e.includeUsage(f.c) {
		n := f.e.count(f.c)
		k := f.chunk()
		k.SystemFingerprint = f.e.fingerprint()
		k.Usage = f.vllmUsage(n, n.created, nil)
		k.Usage.CompletionDetails = f.reasoning(n, nil)
		s.data(k)
	}
	s.done()
}

type vllmCompletion struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`
	Created           int64           `json:"created"`
	Model             string          `json:"model"`
	Choices           any             `json:"choices"`
	ServiceTier       json.RawMessage `json:"service_tier"`
	SystemFingerprint string          `json:"system_fingerprint"`
	Usage             *vllmUsage      `json:"usage"`
	vllmChatFields
	KVTransfer json.RawMessage `json:"kv_transfer_params"`
	ECTransfer json.RawMessage `json:"ec_transfer_params"`
	Metrics    json.RawMessage `json:"metrics"`
}

// vllmChatFields are only in chat completions.
type vllmChatFields struct {
	PromptLogprobs json.RawMessage `json:"prompt_logprobs,omitempty"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids,omitempty"`
	PromptText     json.RawMessage `json:"prompt_text,omitempty"`
}

type vllmChoice struct {
	Index        int             `json:"index"`
	Message      vllmMessage     `json:"message"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason string          `json:"finish_reason"`
	StopReason   json.RawMessage `json:"stop_reason"`
	TokenIDs     json.RawMessage `json:"token_ids,omitempty"`
	Experts      json.RawMessage `json:"routed_experts"`
}

type vllmMessage struct {
	Role         string          `json:"role"`
	Content      json.RawMessage `json:"content"`
	Refusal      json.RawMessage `json:"refusal"`
	Annotations  json.RawMessage `json:"annotations"`
	Audio        json.RawMessage `json:"audio"`
	FunctionCall json.RawMessage `json:"function_call"`
	Reasoning    json.RawMessage `json:"reasoning"`
}

func (w *writer) vllmCompletion(prefix, object string) *vllmCompletion {
	return &vllmCompletion{
		ID: prefix + w.c.id, Object: object, Created: w.c.created, Model: w.c.Model, ServiceTier: null,
		SystemFingerprint: w.e.fingerprint(), KVTransfer: null, ECTransfer: null, Metrics: null,
	}
}

func (f *vllmChat) whole() any {
	n := f.e.count(f.c)
	out := f.vllmCompletion("chatcmpl-", "chat.completion")
	out.Usage = f.vllmUsage(n, n.created, null)
	out.Usage.CompletionDetails = f.reasoning(n, null)
	out.PromptLogprobs = null
	if out.PromptTokenIDs = f.promptIDs(f.c.jobs[0]); out.PromptTokenIDs != nil {
		out.PromptText = null
	}
	var choices []vllmChoice
	for i, j := range f.c.jobs {
		choices = append(choices, f.choice(i, j))
	}
	out.Choices = choices
	return out
}

func (f *vllmChat) choice(i int, j *job) vllmChoice {
	text, thought := f.e.text(f.c, j)
	m := vllmMessage{
		Role: "assistant", Content: marshal(nil, text), Refusal: null, Annotations: null, Audio: null, FunctionCall: null,
		Reasoning: textOrNull(thought),
	}
	if f.c.parser {
		m.Content = textOrNull(text)
	}
	return vllmChoice{
		Index: i, Message: m, Logprobs: null, FinishReason: j.finishReason(), StopReason: null,
		TokenIDs: f.ids(f.c.wantOutput, j.answer()), Experts: null,
	}
}

// fingerprint is what vLLM calls its build and model.
func (e *Engine) fingerprint() string { return "vllm-" + e.cfg.Version + "-sim" }
