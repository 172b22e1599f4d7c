package simengine

import "encoding/json"

// vllmText writes text completions as vLLM does.
type vllmText struct {
	writer
	first *job // the first to have a token: its cached tokens are all that a stream tells of several prompts
}

type vllmTextChunk struct {
	ID                string           `json:"id"`
	Object            string           `json:"object"`
	Created           int64            `json:"created"`
	Model             string           `json:"model"`
	Choices           []vllmTextChoice `json:"choices"`
	Usage             *vllmUsage       `json:"usage,omitempty"`
	SystemFingerprint string           `json:"system_fingerprint,omitempty"`
}

type vllmTextChoice struct {
	Index          int             `json:"index"`
	Text           string          `json:"text"`
	Logprobs       json.RawMessage `json:"logprobs"`
	FinishReason   *string         `json:"finish_reason"`
	StopReason     json.RawMessage `json:"stop_reason"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids,omitempty"`
	TokenIDs       json.RawMessage `json:"token_ids,omitempty"`
}

// vllmWholeText is a choice of a whole answer, with the prompt's ids in another place.
type vllmWholeText struct {
	vllmTextChoice
	PromptLogprobs json.RawMessage `json:"prompt_logprobs"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids,omitempty"`
	Experts        json.RawMessage `json:"routed_experts"`
}

func (f *vllmText) chunk(choices ...vllmTextChoice) *vllmTextChunk {
	return &vllmTextChunk{
		ID: "cmpl-" + f.c.id, Object: "text_completion", Created: f.c.created, Model: f.c.Model,
		Choices: append([]vllmTextChoice{}, choices...),
	}
}

func (f *vllmText) token(s *sse, choice, i int) {
	j := f.c.jobs[choice]
	if f.first == nil {
		f.first = j
	}
	text, _ := f.e.visible(f.c, j, i)
	if i > 0 && f.ordinary("", isLast(j, i)) {
		f.ordinaryText(s, text, func(text string) any { return f.chunk(f.choice(0, text, nil)) })
		return
	}
	ch := f.choice(choice, text, j.answer()[i:i+1])
	if i == 0 {
		ch.Text = f.echo(j) + text
		ch.PromptTokenIDs = f.ids(f.c.wantPrompt || f.c.echo, j.seq.tokens[:j.prompt]) // echo brings them unasked
	}
	k := f.chunk(ch)
	if isLast(j, i) {
		k.Choices[0].FinishReason = new(j.finishReason())
		if !f.e.includeUsage(f.c) {
			k.SystemFingerprint = f.e.fingerprint()
		}
	}
	if f.e.continuousUsage(f.c) {
		n := f.usageAfter(choice, i)
		k.Usage = &vllmUsage{PromptTokens: n.prompt, TotalTokens: n.total(), CompletionTokens: n.completion}
	}
	s.data(k)
}

func (f *vllmText) choice(index int, text string, ids []Token) vllmTextChoice {
	return vllmTextChoice{
		Index: index, Text: text, Logprobs: null, StopReason: null, PromptTokenIDs: f.ids(false, nil),
		TokenIDs: f.ids(f.c.wantOutput, ids),
	}
}

// echo is the prompt's text when asked for. vLLM loses it when token ids are asked for too: the answer changes.
func (f *vllmText) echo(j *job) string {
	if !f.c.echo || f.c.wantOutput {
		return ""
	}
	return f.e.tok.decode(j.seq.tokens[:j.prompt])
}

func (f *vllmText) close(s *sse) {
	if f.e.includeUsage(f.c) {
		n := f.e.count(f.c)
		n.cached = int(f.first.cached.Load())
		k := f.chunk()
		k.Usage, k.SystemFingerprint = f.vllmUsage(n, nil, nil), f.e.fingerprint()
		s.data(k)
	}
	s.done()
}

// whole tells the cached tokens of the last prompt.
func (f *vllmText) whole() any {
	n := f.e.count(f.c)
	n.cached = int(f.c.jobs[len(f.c.jobs)-1].cached.Load())
	out := f.vllmCompletion("cmpl-", "text_completion")
	out.Usage = f.vllmUsage(n, null, null)
	var choices []vllmWholeText
	for i, j := range f.c.jobs {
		text, _ := f.e.text(f.c, j)
		ch := f.choice(i, f.echo(j)+text, j.answer())
		ch.FinishReason = new(j.finishReason())
		choices = append(choices, vllmWholeText{ch, null, f.promptIDs(j), null})
	}
	out.Choices = choices
	return out
}
