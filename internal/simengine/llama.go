package simengine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// What llama.cpp's server does. Its cache is per slot; the paged cache of the other kinds plays it, with MaxRunning slots.
// It tells nothing of what it holds and returns no token ids, but every answer says how much of its prompt was cached.

func (e *Engine) llamaRoutes(m *http.ServeMux) {
	m.HandleFunc("POST /v1/messages", e.generating(e.messages))
	m.HandleFunc("POST /v1/messages/count_tokens", e.body(e.countTokens))
	m.HandleFunc("POST /tokenize", e.body(e.llamaTokenize))
	m.HandleFunc("POST /detokenize", e.body(e.detokenize))
	m.HandleFunc("POST /apply-template", e.body(e.llamaTemplate))
	m.HandleFunc("GET /metrics", e.llamaMetrics)
	m.HandleFunc("GET /slots", e.llamaSlots)
	m.HandleFunc("GET /props", e.llamaProps)
}

// llamaError is the body of an error.
func llamaError(e *apiError) any {
	types := map[int]string{
		http.StatusBadRequest: "invalid_request_error", http.StatusUnauthorized: "authentication_error",
		http.StatusNotFound: "not_found_error", http.StatusServiceUnavailable: "unavailable_error",
	}
	kind := cmp.Or(e.kind, types[e.status], "server_error")
	return map[string]any{"error": map[string]any{"code": e.status, "message": e.message, "type": kind}}
}

// llamaTokenize answers POST /tokenize, which takes text only.
func (e *Engine) llamaTokenize(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req struct {
		Content string `json:"content"`
	}
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string][]Token{"tokens": e.tok.encode([]Token{}, req.Content)})
	return nil
}

// llamaTemplate answers POST /apply-template: the text that a chat is rendered to.
func (e *Engine) llamaTemplate(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req chatRequest
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	conv, err := req.conversation(e.cfg.Kind)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]string{"prompt": e.render(conv)})
	return nil
}

// llamaMetrics answers GET /metrics, whose series have no labels.
func (e *Engine) llamaMetrics(w http.ResponseWriter, _ *http.Request) {
	s := e.Stats()
	var x exposition
	x.metric("counter", "llamacpp:prompt_tokens_total", s.PromptTokens-s.CachedTokens)
	x.metric("counter", "llamacpp:prompt_tokens_cached_total", s.CachedTokens)
	x.metric("counter", "llamacpp:tokens_predicted_total", s.GenerationTokens)
	x.metric("gauge", "llamacpp:requests_processing", s.Running)
	x.metric("gauge", "llamacpp:requests_deferred", s.Waiting)
	x.serve(w)
}

type llamaSlot struct {
	ID           int  `json:"id"`
	Context      int  `json:"n_ctx"`
	Speculative  bool `json:"speculative"`
	IsProcessing bool `json:"is_processing"`
}

// llamaSlots answers GET /slots; with ?fail_on_no_slot=1 it fails while none is free.
func (e *Engine) llamaSlots(w http.ResponseWriter, r *http.Request) {
	running := e.Stats().Running
	if running == e.cfg.MaxRunning && r.URL.Query().Get("fail_on_no_slot") == "1" {
		e.fail(w, r, &apiError{status: http.StatusServiceUnavailable, message: "no slot available"})
		return
	}
	slots := make([]llamaSlot, e.cfg.MaxRunning)
	for i := range slots {
		slots[i] = llamaSlot{ID: i, Context: e.cfg.MaxContext, IsProcessing: i < running}
	}
	writeJSON(w, http.StatusOK, slots)
}

// llamaProps answers GET /props.
func (e *Engine) llamaProps(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"default_generation_settings": map[string]int{"n_ctx": e.cfg.MaxContext}, "total_slots": e.cfg.MaxRunning,
		"model_path": e.cfg.Model, "build_info": e.buildInfo(),
	})
}

func (e *Engine) buildInfo() string { return "b" + e.cfg.Version + "-sim" }

type llamaUsage struct {
	CompletionTokens int           `json:"completion_tokens"`
	PromptTokens     int           `json:"prompt_tokens"`
	TotalTokens      int           `json:"total_tokens"`
	PromptDetails    cachedDetails `json:"prompt_tokens_details"`
}

func newLlamaUsage(n counts) *llamaUsage {
	return &llamaUsage{n.completion, n.prompt, n.total(), cachedDetails{n.cached}}
}

// llamaTimings say how many prompt tokens were cached and how many computed, which together are the prompt.
type llamaTimings struct {
	CacheN      int     `json:"cache_n"`
	PromptN     int     `json:"prompt_n"`
	PromptMS    float64 `json:"prompt_ms"`
	PredictedN  int     `json:"predicted_n"`
	PredictedMS float64 `json:"predicted_ms"`
}

func (f *llamaFormat) timings(j *job) *llamaTimings {
	n := f.e.countChoice(j, int(j.produced.Load()))
	first, last := j.times()
	return &llamaTimings{
		CacheN: n.cached, PromptN: n.prompt - n.cached, PromptMS: milliseconds(first), PredictedN: n.completion,
		PredictedMS: milliseconds(last - first),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// llamaFormat writes chat and text completions.
type llamaFormat struct {
	writer
	text bool
}

// llamaAnswer is an answer or a chunk of one.
type llamaAnswer struct {
	Choices           []llamaChoice `json:"choices"`
	Created           int64         `json:"created"`
	ID                string        `json:"id"`
	Model             string        `json:"model"`
	SystemFingerprint string        `json:"system_fingerprint"`
	Object            string        `json:"object"`
	Usage             *llamaUsage   `json:"usage,omitempty"`
	Timings           *llamaTimings `json:"timings,omitempty"`
}

type llamaChoice struct {
	Text         *string         `json:"text,omitempty"`
	Logprobs     json.RawMessage `json:"logprobs,omitempty"`
	FinishReason *string         `json:"finish_reason"`
	Index        int             `json:"index"`
	Delta        *llamaMessage   `json:"delta,omitempty"`
	Message      *llamaMessage   `json:"message,omitempty"`
}

type llamaMessage struct {
	Role             string          `json:"role,omitempty"`
	Content          json.RawMessage `json:"content,omitempty"`
	ReasoningContent string          `json:"reasoning_content,omitempty"`
}

func (f *llamaFormat) answer(object string, choices ...llamaChoice) *llamaAnswer {
	id := "chatcmpl-" + f.c.id
	if f.text {
		object = "text_completion"
	}
	return &llamaAnswer{
		Choices: append([]llamaChoice{}, choices...), Created: f.c.created, ID: id, Model: f.c.Model,
		SystemFingerprint: f.e.buildInfo(), Object: object,
	}
}

const llamaChunk = "chat.completion.chunk"

// piece is a choice with a piece of text.
func (f *llamaFormat) piece(choice int, text string) llamaChoice {
	if f.text {
		return llamaChoice{Index: choice, Text: &text, Logprobs: null}
	}
	d := &llamaMessage{}
	if text != "" {
		d.Content = marshal(nil, text)
	}
	return llamaChoice{Index: choice, Delta: d}
}

func (f *llamaFormat) token(s *sse, choice, i int) {
	text, thought := f.e.visible(f.c, f.c.jobs[choice], i)
	if i == 0 && !f.text {
		s.data(f.answer(llamaChunk, llamaChoice{Index: choice, Delta: &llamaMessage{Role: "assistant", Content: null}}))
	}
	switch {
	case thought != "":
		s.data(f.answer(llamaChunk, llamaChoice{Index: choice, Delta: &llamaMessage{ReasoningContent: thought}}))
	case text != "":
		s.data(f.answer(llamaChunk, f.piece(choice, text)))
	}
}

// close ends each choice in a chunk of its own; the last chunk of all has the timings. Text completions end with usage,
// asked for or not.
func (f *llamaFormat) close(s *sse) {
	var ends []*llamaAnswer
	for i, j := range f.c.jobs {
		ch := f.piece(i, "")
		ch.FinishReason = new(j.finishReason())
		ends = append(ends, f.answer(llamaChunk, ch))
	}
	if f.e.includeUsage(f.c) && !f.text {
		ends = append(ends, f.answer(llamaChunk))
	}
	last := ends[len(ends)-1]
	if last.Timings = f.timings(f.c.jobs[0]); f.text || len(last.Choices) == 0 {
		last.Usage = newLlamaUsage(f.e.count(f.c))
	}
	for _, end := range ends {
		s.data(end)
	}
	s.done()
}

func (f *llamaFormat) whole() any {
	out := f.answer("chat.completion")
	for i, j := range f.c.jobs {
		text, thought := f.e.text(f.c, j)
		ch := f.piece(i, text)
		if !f.text {
			ch.Delta, ch.Message = nil, &llamaMessage{"assistant", marshal(nil, text), thought}
		}
		ch.FinishReason = new(j.finishReason())
		out.Choices = append(out.Choices, ch)
	}
	out.Usage, out.Timings = newLlamaUsage(f.e.count(f.c)), f.timings(f.c.jobs[0])
	return out
}

// llamaTooLong is how llama.cpp refuses a prompt that leaves no room.
func llamaTooLong(prompt, context int) *apiError {
	e := badRequest(fmt.Sprintf("request (%d tokens) exceeds the available context size (%d tokens), try increasing it",
		prompt, context), "")
	e.kind = "exceed_context_size_error"
	return e
}
