package simengine

import "encoding/json"

// What SGLang 0.5.23 writes: keys of token ids only where they were asked for, the reason for the end in a chunk of its
// own when all choices have ended, and usage with everything it knows.

type sglangUsage struct {
	PromptTokens      int `json:"prompt_tokens"`
	TotalTokens       int `json:"total_tokens"`
	CompletionTokens  int `json:"completion_tokens"`
	PromptDetails     any `json:"prompt_tokens_details"`
	ReasoningTokens   int `json:"reasoning_tokens"`
	CompletionDetails any `json:"completion_tokens_details"`
}

func (w *writer) sglangUsage(n counts) *sglangUsage {
	if !w.e.reasons() {
		n.reasoning = 0
	}
	u := &sglangUsage{n.prompt, n.total(), n.completion, w.e.cachedIn(n, nil), n.reasoning, nil}
	if n.reasoning > 0 {
		u.CompletionDetails = reasoningDetails{n.reasoning}
	}
	return u
}

// sglangChat writes chat completions.
type sglangChat struct{ writer }

type sglangChunk struct {
	ID      string              `json:"id"`
	Object  string              `json:"object"`
	Created int64               `json:"created"`
	Model   string              `json:"model"`
	Choices []sglangChunkChoice `json:"choices"`
	Usage   *sglangUsage        `json:"usage,omitempty"`
}

type sglangChunkChoice struct {
	Index        int             `json:"index"`
	Delta        sglangDelta     `json:"delta"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	MatchedStop  json.RawMessage `json:"matched_stop"`
}

type sglangDelta struct {
	ReasoningContent *string `json:"reasoning_content"`
	Role             string  `json:"role,omitempty"`
	Content          *string `json:"content,omitempty"`
}

func (f *sglangChat) chunk(choice int, d sglangDelta) *sglangChunk {
	return &sglangChunk{
		ID: "chatcmpl-" + f.c.id, Object: "chat.completion.chunk", Created: f.c.created, Model: f.c.Model,
		Choices: []sglangChunkChoice{{Index: choice, Delta: d, Logprobs: null, MatchedStop: null}},
	}
}

func (f *sglangChat) token(s *sse, choice, i int) {
	if i == 0 {
		s.data(f.chunk(choice, sglangDelta{Role: "assistant", Content: new("")}))
	}
	text, thought := f.e.visible(f.c, f.c.jobs[choice], i)
	switch {
	case text == "" && thought == "":
		return
	case f.ordinary(thought, false):
		f.ordinaryText(s, text, func(text string) any { return f.chunk(0, sglangDelta{Content: &text}) })
		return
	}
	d := sglangDelta{Content: &text}
	if thought != "" {
		d = sglangDelta{ReasoningContent: &thought}
	}
	k := f.chunk(choice, d)
	if f.e.continuousUsage(f.c) {
		k.Usage = f.sglangUsage(f.usageAfter(choice, i))
	}
	s.data(k)
}

func (f *sglangChat) close(s *sse) {
	for i, j := range f.c.jobs {
		k := f.chunk(i, sglangDelta{})
		k.Choices[0].FinishReason, k.Choices[0].MatchedStop = new(j.finishReason()), f.matchedStop(j)
		s.data(k)
	}
	if f.e.includeUsage(f.c) {
		k := f.chunk(0, sglangDelta{})
		k.Choices, k.Usage = []sglangChunkChoice{}, f.sglangUsage(f.e.count(f.c))
		s.data(k)
	}
	s.done()
}

type sglangCompletion struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"`
	Created  int64             `json:"created"`
	Model    string            `json:"model"`
	Choices  []sglangChoice    `json:"choices"`
	Usage    *sglangUsage      `json:"usage"`
	Metadata map[string]string `json:"metadata"`
}

// sglangChoice is a choice of either route: a chat has a message, a text completion a text.
type sglangChoice struct {
	Index          int             `json:"index"`
	Message        *sglangMessage  `json:"message,omitempty"`
	Text           *string         `json:"text,omitempty"`
	Logprobs       json.RawMessage `json:"logprobs"`
	FinishReason   string          `json:"finish_reason"`
	MatchedStop    json.RawMessage `json:"matched_stop"`
	TokenIDs       json.RawMessage `json:"token_ids,omitempty"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids,omitempty"`
	ResponseIDs    json.RawMessage `json:"response_token_ids,omitempty"` // the chat's name for token_ids
}

type sglangMessage struct {
	Role             string          `json:"role"`
	Content          string          `json:"content"`
	ReasoningContent json.RawMessage `json:"reasoning_content"`
}

func (w *writer) sglangCompletion(prefix, object string, choice func(i int, j *job) sglangChoice) *sglangCompletion {
	out := &sglangCompletion{
		ID: prefix + w.c.id, Object: object, Created: w.c.created, Model: w.c.Model, Usage: w.sglangUsage(w.e.count(w.c)),
		Metadata: map[string]string{"weight_version": "default"},
	}
	for i, j := range w.c.jobs {
		ch := choice(i, j)
		ch.Index, ch.Logprobs, ch.FinishReason, ch.MatchedStop = i, null, j.finishReason(), w.matchedStop(j)
		ch.PromptTokenIDs = w.promptIDs(j)
		out.Choices = append(out.Choices, ch)
	}
	return out
}

func (f *sglangChat) whole() any {
	return f.sglangCompletion("chatcmpl-", "chat.completion", func(_ int, j *job) sglangChoice {
		text, thought := f.e.text(f.c, j)
		return sglangChoice{
			Message:     &sglangMessage{"assistant", text, textOrNull(thought)},
			ResponseIDs: f.ids(f.c.wantOutput, j.answer()),
		}
	})
}

// sglangText writes text completions.
type sglangText struct{ writer }

type sglangTextChunk struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []sglangTextChoice `json:"choices"`
	Usage   *sglangUsage       `json:"usage"`
}

type sglangTextChoice struct {
	Index          int             `json:"index"`
	Text           string          `json:"text"`
	Logprobs       json.RawMessage `json:"logprobs"`
	FinishReason   *string         `json:"finish_reason"`
	MatchedStop    json.RawMessage `json:"matched_stop"`
	TokenIDs       json.RawMessage `json:"token_ids,omitempty"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids,omitempty"`
}

func (f *sglangText) chunk(choices ...sglangTextChoice) *sglangTextChunk {
	return &sglangTextChunk{
		ID: "cmpl-" + f.c.id, Object: "text_completion", Created: f.c.created, Model: f.c.Model,
		Choices: append([]sglangTextChoice{}, choices...),
	}
}

func (f *sglangText) token(s *sse, choice, i int) {
	j := f.c.jobs[choice]
	text, _ := f.e.visible(f.c, j, i)
	ch := sglangTextChoice{Index: choice, Text: text, Logprobs: null, MatchedStop: null}
	if i > 0 && f.ordinary("", isLast(j, i)) {
		f.ordinaryText(s, text, func(text string) any { ch.Text = text; return f.chunk(ch) })
		return
	}
	ch.TokenIDs = f.ids(f.c.wantOutput, j.answer()[i:i+1])
	if i == 0 {
		ch.Text, ch.PromptTokenIDs = f.echo(j)+text, f.promptIDs(j)
	}
	if isLast(j, i) {
		ch.FinishReason, ch.MatchedStop = new(j.finishReason()), f.matchedStop(j)
	}
	k := f.chunk(ch)
	if f.e.continuousUsage(f.c) {
		k.Usage = f.sglangUsage(f.usageAfter(choice, i))
	}
	s.data(k)
}

func (w *writer) echo(j *job) string {
	if !w.c.echo {
		return ""
	}
	return w.e.tok.decode(j.seq.tokens[:j.prompt])
}

func (f *sglangText) close(s *sse) {
	if f.e.includeUsage(f.c) {
		k := f.chunk()
		k.Usage = f.sglangUsage(f.e.count(f.c))
		s.data(k)
	}
	s.done()
}

func (f *sglangText) whole() any {
	return f.sglangCompletion("cmpl-", "text_completion", func(_ int, j *job) sglangChoice {
		text, _ := f.e.text(f.c, j)
		return sglangChoice{Text: new(f.echo(j) + text), TokenIDs: f.ids(f.c.wantOutput, j.answer())}
	})
}
