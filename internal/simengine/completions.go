package simengine

import (
	"encoding/json"
	"net/http"
)

// completionLimit is the answer's limit when a completion names none, as in the legacy API.
const completionLimit = 16

// completions answers POST /v1/completions.
func (e *Engine) completions(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req completionRequest
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	if err := e.checkFields(body, completionFields); err != nil {
		return err
	}
	prompts, err := req.Prompt.tokens(e.tok)
	if err != nil {
		return err
	}
	c, err := e.newCall(r, callSpec{
		params: req.params, prompts: prompts, maxTokens: req.MaxTokens, fallback: completionLimit, echo: req.Echo,
	})
	if err != nil {
		return err
	}
	return e.run(w, r, c, &completionFormat{e: e, c: c})
}

// completionFormat writes text completions; stream and whole answer have the same shape.
type completionFormat struct {
	e *Engine
	c *call
}

type completion struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	SystemFingerprint string             `json:"system_fingerprint,omitempty"`
	Choices           []completionChoice `json:"choices"`
	Usage             any                `json:"usage,omitempty"`
}

type completionChoice struct {
	Index          int             `json:"index"`
	Text           string          `json:"text"`
	Logprobs       json.RawMessage `json:"logprobs"`
	FinishReason   *string         `json:"finish_reason"`
	StopReason     json.RawMessage `json:"stop_reason,omitempty"`
	MatchedStop    json.RawMessage `json:"matched_stop,omitempty"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids,omitempty"`
	TokenIDs       json.RawMessage `json:"token_ids,omitempty"`
}

func (f *completionFormat) envelope() completion {
	return completion{
		ID: "cmpl-" + f.c.id, Object: "text_completion", Created: f.c.created, Model: f.c.Model,
	}
}

func (f *completionFormat) open(*sse) {}

func (f *completionFormat) token(s *sse, choice, i int) {
	j := f.c.jobs[choice]
	text, _ := f.e.visible(f.c, j, i)
	ch := completionChoice{Index: choice, Text: text, Logprobs: null}
	ch.TokenIDs = f.c.ids(f.c.wantOutput, j.answer()[i:i+1])
	if i == 0 {
		ch.Text = f.echo(j) + text
		ch.PromptTokenIDs = f.c.ids(f.c.wantPrompt, j.seq.tokens[:j.prompt])
	}
	k := f.envelope()
	if i+1 == len(j.answer()) {
		f.finish(&ch, j)
		if f.e.cfg.Kind == KindVLLM && !f.e.includeUsage(f.c) {
			k.SystemFingerprint = f.e.fingerprint()
		}
	}
	k.Choices = []completionChoice{ch}
	if f.c.continuousUsage() {
		k.Usage = f.e.usage(f.c)
	}
	s.data(k)
}

// echo is the prompt's text when asked for. vLLM loses it when token ids are asked for too: the answer changes.
func (f *completionFormat) echo(j *job) string {
	if !f.c.echo || f.c.wantOutput && f.e.cfg.Kind == KindVLLM {
		return ""
	}
	return f.e.tok.decode(j.seq.tokens[:j.prompt])
}

func (f *completionFormat) finish(ch *completionChoice, j *job) {
	reason := j.finishReason()
	ch.FinishReason = &reason
	switch f.e.cfg.Kind {
	case KindVLLM:
		ch.StopReason = null
	case KindSGLang:
		ch.MatchedStop = null
		if j.stopped {
			ch.MatchedStop = marshal(nil, f.e.tok.id(tokenEnd))
		}
	}
}

func (f *completionFormat) close(s *sse) {
	if f.e.includeUsage(f.c) {
		k := f.envelope()
		k.Choices, k.Usage = []completionChoice{}, f.e.usage(f.c)
		s.data(k)
	}
	s.done()
}

func (f *completionFormat) whole() any {
	out := f.envelope()
	out.Usage = f.e.usage(f.c)
	if f.e.cfg.Kind == KindVLLM {
		out.SystemFingerprint = f.e.fingerprint()
	}
	for i, j := range f.c.jobs {
		text, _ := f.e.text(f.c, j)
		ch := completionChoice{Index: i, Text: f.echo(j) + text, Logprobs: null}
		f.finish(&ch, j)
		ch.PromptTokenIDs = f.c.ids(f.c.wantPrompt, j.seq.tokens[:j.prompt])
		ch.TokenIDs = f.c.ids(f.c.wantOutput, j.answer())
		out.Choices = append(out.Choices, ch)
	}
	return out
}
