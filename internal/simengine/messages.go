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
		return missing("max_tokens")
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
	out := tokenCount{InputTokens: len(e.promptOf(conv))}
	if e.cfg.Kind == KindVLLM {
		out.Management = map[string]int{"original_input_tokens": out.InputTokens}
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

type tokenCount struct {
	InputTokens int            `json:"input_tokens"`
	Management  map[string]int `json:"context_management,omitempty"` // vLLM
}

func (r *messagesRequest) conversation(kind string) (*conversation, error) {
	if len(r.Messages) == 0 {
		return nil, missing("messages")
	}
	c := &conversation{}
	parts, text, err := splitContent(r.System)
	if err != nil {
		return nil, badForm("type_error", "body.system", "system must be text or blocks")
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
		return badForm("type_error", "body.messages", "message is malformed")
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
