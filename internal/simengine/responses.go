package simengine

import (
	"encoding/json"
	"net/http"
)

// responsesRequest is the body of /v1/responses.
type responsesRequest struct {
	params
	Input           json.RawMessage `json:"input"`
	Instructions    string          `json:"instructions"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
	ToolChoice      json.RawMessage `json:"tool_choice"`
	Reasoning       struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	Tools []struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"tools"`
	PreviousResponseID string `json:"previous_response_id"`
	Background         bool   `json:"background"`
}

// inputItem is one element of input: a message, a tool call, its result, or a thought.
type inputItem struct {
	Type      string  `json:"type"`
	Role      string  `json:"role"`
	Content   content `json:"content"`
	CallID    string  `json:"call_id"`
	Name      string  `json:"name"`
	Arguments string  `json:"arguments"`
	Output    content `json:"output"`
}

// responses answers POST /v1/responses.
func (e *Engine) responses(w http.ResponseWriter, r *http.Request, body []byte) error {
	var req responsesRequest
	if err := decodeBody(body, &req); err != nil {
		return err
	}
	if err := e.checkFields(body, responseFields); err != nil {
		return err
	}
	conv, err := req.conversation()
	if err != nil {
		return err
	}
	req.ReturnTokenIDs = false // this route returns none
	c, err := e.newCall(r, callSpec{
		params: req.params, prompts: [][]Token{e.promptOf(conv)}, maxTokens: req.MaxOutputTokens,
		thinking: e.thinks(conv), parser: e.cfg.Template == TemplateDropsThoughts,
	})
	if err != nil {
		return err
	}
	return e.run(w, r, c, &responsesFormat{e: e, c: c})
}

func (r *responsesRequest) conversation() (*conversation, error) {
	if r.PreviousResponseID != "" {
		return nil, &apiError{status: http.StatusNotFound, message: "response is not stored here", param: "previous_response_id"}
	}
	if r.Background {
		return nil, badRequest("background responses are not supported", "background")
	}
	c := &conversation{effort: r.Reasoning.Effort}
	if r.Instructions != "" {
		c.turns = append(c.turns, turn{role: "system", text: r.Instructions})
	}
	if err := r.addInput(c); err != nil {
		return nil, err
	}
	for _, t := range r.Tools {
		c.tools = append(c.tools, tool{t.Name, t.Description, t.Parameters})
	}
	return c, nil
}

func (r *responsesRequest) addInput(c *conversation) error {
	var text string
	if json.Unmarshal(r.Input, &text) == nil && text != "" {
		c.turns = append(c.turns, turn{role: "user", text: text})
		return nil
	}
	var items []inputItem
	if err := json.Unmarshal(r.Input, &items); err != nil || len(items) == 0 {
		return missing("input")
	}
	thought := ""
	for _, it := range items {
		switch it.Type {
		case "", "message":
			c.turns = append(c.turns, turn{role: it.Role, text: string(it.Content), thought: thought})
			thought = ""
		case "reasoning":
			thought = string(it.Content)
		case "function_call":
			c.addCall(toolCall{it.CallID, it.Name, it.Arguments}, thought)
			thought = ""
		case "function_call_output":
			c.turns = append(c.turns, turn{role: "tool", text: string(it.Output), callID: it.CallID})
		}
	}
	return nil
}

// addCall adds a tool call to the assistant turn that it belongs to.
func (c *conversation) addCall(call toolCall, thought string) {
	if n := len(c.turns); n == 0 || c.turns[n-1].role != "assistant" {
		c.turns = append(c.turns, turn{role: "assistant", thought: thought})
	}
	last := &c.turns[len(c.turns)-1]
	last.calls = append(last.calls, call)
}
