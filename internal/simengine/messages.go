package simengine

import (
	"encoding/json"
	"net/http"
	"strings"
)

// messagesRequest is the body of /v1/messages and its count_tokens.
type messagesRequest struct {
	params
	System   json.RawMessage `json:"system"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"input_schema"`
	} `json:"tools"`
}

// billingHeader begins a system block of Claude Code that differs in every request; vLLM leaves it out.
const billingHeader = "x-anthropic-billing-header"

// messages answers POST /v1/messages.
func (e *Engine) messages(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req messagesRequest
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	if req.MaxTokens == nil {
		return badRequest("max_tokens is required", "max_tokens")
	}
	conv, err := req.conversation(e.cfg.Kind)
	if err != nil {
		return err
	}
	req.ReturnTokenIDs, req.N, req.StreamOptions = false, nil, nil
	c, err := e.newCall(r, callSpec{
		params: req.params, prompts: [][]Token{e.promptOf(conv)}, maxTokens: req.MaxTokens,
		thinking: e.thinks(conv), parser: e.cfg.Template == TemplateDropsThoughts,
	})
	if err != nil {
		return err
	}
	return e.run(w, r, c, &messagesFormat{e: e, c: c})
}

// countTokens answers POST /v1/messages/count_tokens.
func (e *Engine) countTokens(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var req messagesRequest
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	conv, err := req.conversation(e.cfg.Kind)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]int{"input_tokens": len(e.promptOf(conv))})
	return nil
}

func (r *messagesRequest) conversation(kind string) (*conversation, error) {
	if len(r.Messages) == 0 {
		return nil, badRequest("messages must not be empty", "messages")
	}
	c := &conversation{}
	parts, text, err := splitContent(r.System)
	if err != nil {
		return nil, badRequest("system must be text or blocks", "system")
	}
	for _, p := range parts {
		if kind != KindVLLM || !strings.HasPrefix(p.Text, billingHeader) {
			text += p.Text // joined with nothing between
		}
	}
	if text != "" {
		c.turns = append(c.turns, turn{role: "system", text: text})
	}
	for _, m := range r.Messages {
		if err := c.addMessage(m.Role, m.Content); err != nil {
			return nil, err
		}
	}
	for _, t := range r.Tools {
		c.tools = append(c.tools, tool{t.Name, t.Description, t.InputSchema})
	}
	return c, nil
}

// addMessage turns one message into turns: tool results become turns of their own, before what else it says.
func (c *conversation) addMessage(role string, raw json.RawMessage) error {
	parts, text, err := splitContent(raw)
	if err != nil || role != "user" && role != "assistant" {
		return badRequest("message is malformed", "messages")
	}
	t := turn{role: role, text: text}
	results := 0
	for _, p := range parts {
		switch p.Type {
		case "tool_result":
			c.turns = append(c.turns, turn{role: "tool", text: string(p.Content), callID: p.ToolUseID})
			results++
		case "tool_use":
			t.calls = append(t.calls, toolCall{p.ID, p.Name, compact(p.Input)})
		case "thinking":
			t.thought = p.Thinking
		default:
			t.text += p.text()
		}
	}
	if results == 0 || t.text != "" {
		c.turns = append(c.turns, t)
	}
	return nil
}

// messagesFormat writes Anthropic messages and their events.
type messagesFormat struct {
	e     *Engine
	c     *call
	block string // "thinking" or "text": the content block that is open
	index int
}

type anthropicMessage struct {
	ID         string           `json:"id"`
	Type       string           `json:"type"`
	Role       string           `json:"role"`
	Content    []map[string]any `json:"content"`
	Model      string           `json:"model"`
	StopReason *string          `json:"stop_reason"`
	StopSeq    *string          `json:"stop_sequence"`
	Usage      anthropicUsage   `json:"usage"`
}

type anthropicUsage struct {
	InputTokens  int  `json:"input_tokens"`
	OutputTokens int  `json:"output_tokens"`
	CacheRead    *int `json:"cache_read_input_tokens,omitempty"`
}

type anthropicEvent struct {
	Type    string            `json:"type"`
	Index   *int              `json:"index,omitempty"`
	Message *anthropicMessage `json:"message,omitempty"`
	Block   map[string]any    `json:"content_block,omitempty"`
	Delta   map[string]any    `json:"delta,omitempty"`
	Usage   *anthropicUsage   `json:"usage,omitempty"`
}

func (f *messagesFormat) send(s *sse, ev anthropicEvent) { s.event(ev.Type, ev) }

func (f *messagesFormat) open(*sse) {}

// token writes message_start with the first token: the route wraps a chat stream, whose role chunk comes then.
func (f *messagesFormat) token(s *sse, _, i int) {
	if i == 0 {
		m := f.message()
		m.Content, m.Usage.OutputTokens = []map[string]any{}, 0
		f.send(s, anthropicEvent{Type: "message_start", Message: m})
	}
	text, thought := f.e.visible(f.c, f.c.jobs[0], i)
	switch {
	case thought != "":
		f.enter(s, "thinking")
		f.delta(s, map[string]any{"type": "thinking_delta", "thinking": thought})
	case text != "":
		f.enter(s, "text")
		f.delta(s, map[string]any{"type": "text_delta", "text": text})
	}
}

func (f *messagesFormat) delta(s *sse, d map[string]any) {
	f.send(s, anthropicEvent{Type: "content_block_delta", Index: new(f.index), Delta: d})
}

// enter opens the content block that the next delta belongs to.
func (f *messagesFormat) enter(s *sse, block string) {
	if f.block == block {
		return
	}
	f.leave(s)
	f.block = block
	f.send(s, anthropicEvent{
		Type: "content_block_start", Index: new(f.index), Block: map[string]any{"type": block, block: ""},
	})
}

func (f *messagesFormat) leave(s *sse) {
	if f.block == "" {
		return
	}
	f.send(s, anthropicEvent{Type: "content_block_stop", Index: new(f.index)})
	f.block = ""
	f.index++
}

func (f *messagesFormat) close(s *sse) {
	f.leave(s)
	m := f.message()
	f.send(s, anthropicEvent{
		Type: "message_delta", Usage: &m.Usage,
		Delta: map[string]any{"stop_reason": f.stopReason(), "stop_sequence": nil},
	})
	f.send(s, anthropicEvent{Type: "message_stop"})
	if f.e.cfg.Kind == KindVLLM {
		s.done()
	}
}

func (f *messagesFormat) stopReason() string {
	if f.c.jobs[0].stopped {
		return "end_turn"
	}
	return "max_tokens"
}

// message is the frame of an answer. input_tokens counts the whole prompt, cached tokens included.
func (f *messagesFormat) message() *anthropicMessage {
	u := f.e.usage(f.c)
	m := &anthropicMessage{ID: "msg_" + f.c.id, Type: "message", Role: "assistant", Model: f.c.Model}
	m.Usage = anthropicUsage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens}
	if u.Details != nil {
		m.Usage.CacheRead = &u.Details.CachedTokens
	}
	return m
}

func (f *messagesFormat) whole() any {
	m := f.message()
	text, thought := f.e.text(f.c, f.c.jobs[0])
	if thought != "" {
		m.Content = append(m.Content, map[string]any{"type": "thinking", "thinking": thought})
	}
	m.Content = append(m.Content, map[string]any{"type": "text", "text": text})
	m.StopReason = new(f.stopReason())
	return m
}
