package simengine

import "encoding/json"

// What TensorRT-LLM's trtllm-serve writes: chat chunks without nulls, everything else with all of them, and no token ids.

type trtUsage struct {
	PromptTokens     int           `json:"prompt_tokens"`
	TotalTokens      int           `json:"total_tokens"`
	CompletionTokens int           `json:"completion_tokens"`
	PromptDetails    cachedDetails `json:"prompt_tokens_details"`
}

func newTRTUsage(n counts) *trtUsage {
	return &trtUsage{n.prompt, n.total(), n.completion, cachedDetails{n.cached}}
}

// trtChat writes chat completions.
type trtChat struct {
	writer
	begun bool
}

type trtChunk struct {
	ID      string           `json:"id"`
	Object  string           `json:"object"`
	Created int64            `json:"created"`
	Model   string           `json:"model"`
	Choices []trtChunkChoice `json:"choices"`
	Usage   *trtUsage        `json:"usage,omitempty"`
}

type trtChunkChoice struct {
	Index        int      `json:"index"`
	Delta        trtDelta `json:"delta"`
	FinishReason string   `json:"finish_reason,omitempty"`
}

type trtDelta struct {
	Role             string  `json:"role,omitempty"`
	Content          *string `json:"content,omitempty"`
	ReasoningContent *string `json:"reasoning_content,omitempty"`
}

func (f *trtChat) chunk(choices ...trtChunkChoice) *trtChunk {
	return &trtChunk{
		ID: "chatcmpl-" + f.c.id, Object: "chat.completion.chunk", Created: f.c.created, Model: f.c.Model,
		Choices: append([]trtChunkChoice{}, choices...),
	}
}

// token writes a chunk for every token, also for one that a parser swallows.
func (f *trtChat) token(s *sse, choice, i int) {
	if !f.begun {
		f.begun = true
		f.roles(s)
	}
	j := f.c.jobs[choice]
	text, thought := f.e.visible(f.c, j, i)
	if f.ordinary(thought, isLast(j, i)) {
		f.ordinaryText(s, text, func(text string) any { return f.chunk(trtChunkChoice{Delta: newTRTDelta(text, "")}) })
		return
	}
	k := f.chunk(trtChunkChoice{Index: choice, Delta: newTRTDelta(text, thought)})
	if isLast(j, i) {
		k.Choices[0].FinishReason = j.finishReason()
	}
	f.continuous(k, f.usageAfter(choice, i))
	s.data(k)
}

func newTRTDelta(text, thought string) trtDelta {
	return trtDelta{Content: &text, ReasoningContent: &thought}
}

// roles writes the first chunks, whose lines end in a blank. All of them have the usage of the first choice: the others may
// not have begun.
func (f *trtChat) roles(s *sse) {
	for i := range f.c.jobs {
		k := f.chunk(trtChunkChoice{Index: i, Delta: trtDelta{Role: "assistant"}})
		f.continuous(k, f.e.countChoice(f.c.jobs[0], 0))
		s.write(append(marshal([]byte("data: "), k), " \n\n"...))
	}
}

func (f *trtChat) continuous(k *trtChunk, n counts) {
	if f.e.continuousUsage(f.c) {
		k.Usage = newTRTUsage(n)
	}
}

func (f *trtChat) close(s *sse) {
	if f.e.includeUsage(f.c) {
		k := f.chunk()
		k.Usage = newTRTUsage(f.e.count(f.c))
		s.data(k)
	}
	s.done()
}

type trtCompletion struct {
	ID             string          `json:"id"`
	Object         string          `json:"object"`
	Created        int64           `json:"created"`
	Model          string          `json:"model"`
	Choices        []trtChoice     `json:"choices"`
	Usage          *trtUsage       `json:"usage"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids"`
}

// trtChoice is a choice of either route: a chat has a message, a text completion a text and null ids.
type trtChoice struct {
	Index        int             `json:"index"`
	Text         *string         `json:"text,omitempty"`
	TokenIDs     json.RawMessage `json:"token_ids,omitempty"`
	Message      *trtMessage     `json:"message,omitempty"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   json.RawMessage `json:"stop_reason"`
	Disagg       json.RawMessage `json:"disaggregated_params,omitempty"`
	AvgDecoded   json.RawMessage `json:"avg_decoded_tokens_per_iter"`
}

type trtMessage struct {
	Role             string   `json:"role"`
	Content          string   `json:"content"`
	ReasoningContent string   `json:"reasoning_content"`
	ToolCalls        []string `json:"tool_calls"`
}

func newTRTChoice(i int, j *job) trtChoice {
	return trtChoice{
		Index: i, Logprobs: null, FinishReason: new(j.finishReason()), StopReason: null, Disagg: null, AvgDecoded: null,
	}
}

func (w *writer) trtCompletion(prefix, object string) *trtCompletion {
	return &trtCompletion{
		ID: prefix + w.c.id, Object: object, Created: w.c.created, Model: w.c.Model, Usage: newTRTUsage(w.e.count(w.c)),
		PromptTokenIDs: null,
	}
}

func (f *trtChat) whole() any {
	out := f.trtCompletion("chatcmpl-", "chat.completion")
	for i, j := range f.c.jobs {
		text, thought := f.e.text(f.c, j)
		ch := newTRTChoice(i, j)
		ch.Message = &trtMessage{"assistant", text, thought, []string{}}
		out.Choices = append(out.Choices, ch)
	}
	return out
}

// trtText writes text completions.
type trtText struct{ writer }

type trtTextChunk struct {
	ID      string      `json:"id"`
	Object  string      `json:"object"`
	Created int64       `json:"created"`
	Model   string      `json:"model"`
	Choices []trtChoice `json:"choices"`
	Usage   *trtUsage   `json:"usage"`
}

func (f *trtText) chunk(choices ...trtChoice) *trtTextChunk {
	return &trtTextChunk{
		ID: "cmpl-" + f.c.id, Object: "text_completion", Created: f.c.created, Model: f.c.Model,
		Choices: append([]trtChoice{}, choices...),
	}
}

func (f *trtText) token(s *sse, choice, i int) {
	j := f.c.jobs[choice]
	text, _ := f.e.visible(f.c, j, i)
	if i == 0 {
		text = f.echo(j) + text
	}
	ch := newTRTChoice(choice, j)
	ch.Text, ch.TokenIDs, ch.Disagg = &text, null, nil
	if !isLast(j, i) {
		ch.FinishReason = nil
	}
	k := f.chunk(ch)
	if f.e.continuousUsage(f.c) {
		k.Usage = newTRTUsage(f.usageAfter(choice, i))
	}
	s.data(k)
}

func (f *trtText) close(s *sse) {
	if f.e.includeUsage(f.c) {
		k := f.chunk()
		k.Usage = newTRTUsage(f.e.count(f.c))
		s.data(k)
	}
	s.done()
}

func (f *trtText) whole() any {
	out := f.trtCompletion("cmpl-", "text_completion")
	for i, j := range f.c.jobs {
		text, _ := f.e.text(f.c, j)
		ch := newTRTChoice(i, j)
		ch.Text, ch.TokenIDs = new(f.echo(j)+text), null
		out.Choices = append(out.Choices, ch)
	}
	return out
}
