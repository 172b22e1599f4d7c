package simengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// params are the fields that the generating routes have in common.
type params struct {
	Model         string         `json:"model"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	N             *int           `json:"n"`
	MaxTokens     *int           `json:"max_tokens"`
	MinTokens     int            `json:"min_tokens"`
	IgnoreEOS     bool           `json:"ignore_eos"`
	CacheSalt     *string        `json:"cache_salt"`
	ExtraKey      string         `json:"extra_key"` // SGLang
	LoraPath      string         `json:"lora_path"` // SGLang

	ReturnTokenIDs       bool `json:"return_token_ids"`
	ReturnPromptTokenIDs bool `json:"return_prompt_token_ids"` // SGLang chat
	PromptLogprobs       *int `json:"prompt_logprobs"`
}

// salt is the salt of the request's blocks, "" when there is none.
func (p *params) salt() string {
	if p.CacheSalt == nil {
		return ""
	}
	return *p.CacheSalt
}

type streamOptions struct {
	IncludeUsage         *bool `json:"include_usage"`
	ContinuousUsageStats bool  `json:"continuous_usage_stats"`
}

// chatRequest is the body of /v1/chat/completions and of the chat form of /tokenize.
type chatRequest struct {
	params
	Messages             []chatMessage   `json:"messages"`
	Tools                []chatTool      `json:"tools"`
	ToolChoice           json.RawMessage `json:"tool_choice"`
	MaxCompletionTokens  *int            `json:"max_completion_tokens"`
	AddGenerationPrompt  *bool           `json:"add_generation_prompt"`
	ContinueFinalMessage bool            `json:"continue_final_message"`
	TemplateKwargs       struct {
		EnableThinking *bool  `json:"enable_thinking"`
		Effort         string `json:"reasoning_effort"`
	} `json:"chat_template_kwargs"`
	ReasoningEffort  string  `json:"reasoning_effort"`
	IncludeReasoning *bool   `json:"include_reasoning"`
	InputIDs         []Token `json:"input_ids"`        // SGLang: instead of messages
	PromptTokenIDs   []Token `json:"prompt_token_ids"` // TensorRT-LLM: instead of rendering
}

type chatMessage struct {
	Role             string     `json:"role"`
	Content          content    `json:"content"`
	Reasoning        string     `json:"reasoning"`
	ReasoningContent string     `json:"reasoning_content"`
	ToolCalls        []chatCall `json:"tool_calls"`
	ToolCallID       string     `json:"tool_call_id"`
}

type chatCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type chatTool struct {
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// content is a string or a list of parts; parts are joined to one text.
type content string

// UnmarshalJSON accepts both forms and null.
func (c *content) UnmarshalJSON(b []byte) error {
	parts, text, err := splitContent(b)
	if err != nil {
		return err
	}
	*c = content(text + joinParts(parts))
	return nil
}

// part is one element of a content list in any of the three APIs.
type part struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Content   content         `json:"content"` // tool_result
	ToolUseID string          `json:"tool_use_id"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ImageURL  json.RawMessage `json:"image_url"`
	Source    json.RawMessage `json:"source"`
}

func splitContent(b []byte) (parts []part, text string, err error) {
	switch {
	case len(b) == 0 || string(b) == "null":
	case b[0] == '"':
		err = json.Unmarshal(b, &text)
	default:
		err = json.Unmarshal(b, &parts)
	}
	return parts, text, err
}

func joinParts(parts []part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.text())
	}
	return b.String()
}

// imageTokens is how many tokens stand for an image.
const imageTokens = 64

// text is what a part contributes to the prompt. An image becomes a mark and digits of the hash of its URL or data: other
// images have other blocks.
func (p *part) text() string {
	media := p.ImageURL
	if len(media) == 0 {
		media = p.Source
	}
	if len(media) == 0 {
		return p.Text
	}
	return tokenImage + strings.Repeat(fmt.Sprintf("%09d", xxhash.Sum64(media)%1e9), (imageTokens-1)/3)
}

// conversation normalises a chat request. SGLang leaves tools out when tool_choice is "none"; vLLM renders them.
func (r *chatRequest) conversation(kind string) (*conversation, error) {
	switch {
	case r.Messages == nil:
		return nil, missing("messages")
	case len(r.Messages) == 0:
		return nil, badRequest("Cannot apply chat template to an empty conversation. Provide at least one message.", "")
	}
	c := &conversation{continueFinal: r.ContinueFinalMessage, effort: r.ReasoningEffort}
	c.noGeneration = r.AddGenerationPrompt != nil && !*r.AddGenerationPrompt
	c.noThinking = r.ReasoningEffort == "none"
	if on := r.TemplateKwargs.EnableThinking; on != nil {
		c.noThinking = !*on
	}
	if r.TemplateKwargs.Effort != "" {
		c.effort = r.TemplateKwargs.Effort
	}
	if c.continueFinal && !c.noGeneration && kind == KindVLLM {
		return nil, badRequest("continue_final_message and add_generation_prompt are not compatible.", "")
	}
	for _, m := range r.Messages {
		t, err := m.turn(kind)
		if err != nil {
			return nil, err
		}
		c.turns = append(c.turns, t)
	}
	if kind != KindSGLang || string(r.ToolChoice) != `"none"` {
		for _, t := range r.Tools {
			c.tools = append(c.tools, tool{t.Function.Name, t.Function.Description, t.Function.Parameters})
		}
	}
	return c, nil
}

// turn: vLLM leaves it to the template which roles there are.
func (m *chatMessage) turn(kind string) (turn, error) {
	switch m.Role {
	case "":
		return turn{}, missing("messages.0.role")
	case "system", "developer", "user", "assistant", "tool":
	default:
		if kind != KindVLLM {
			return turn{}, badForm("literal_error", "body.messages", "message role is not known")
		}
	}
	t := turn{role: m.Role, text: string(m.Content), thought: m.Reasoning, callID: m.ToolCallID}
	if t.thought == "" {
		t.thought = m.ReasoningContent
	}
	for _, c := range m.ToolCalls {
		t.calls = append(t.calls, toolCall{c.ID, c.Function.Name, c.Function.Arguments})
	}
	return t, nil
}

// maxTokens is the limit that a chat request names, nil when none.
func (r *chatRequest) maxTokens() *int {
	if r.MaxCompletionTokens != nil {
		return r.MaxCompletionTokens
	}
	return r.MaxTokens
}

// completionRequest is the body of /v1/completions.
type completionRequest struct {
	params
	Prompt prompts `json:"prompt"`
	Echo   bool    `json:"echo"`
}

// prompts are the four forms of a completion's prompt: text, texts, token ids, lists of token ids.
type prompts struct {
	texts []string
	ids   [][]Token
}

// UnmarshalJSON tells the forms apart by trying them.
func (p *prompts) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		p.texts = []string{text}
		return nil
	}
	if json.Unmarshal(b, &p.texts) == nil {
		return nil
	}
	p.texts = nil
	var ids []Token
	if json.Unmarshal(b, &ids) == nil {
		p.ids = [][]Token{ids}
		return nil
	}
	if err := json.Unmarshal(b, &p.ids); err != nil {
		return fmt.Errorf("decode prompt: %w", err)
	}
	return nil
}

// tokens returns the prompts as token ids.
func (p *prompts) tokens(t *tokenizer) ([][]Token, error) {
	out := p.ids
	for _, s := range p.texts {
		out = append(out, t.encode(nil, s))
	}
	if len(out) == 0 {
		return nil, badRequest("You must pass at least one prompt", "")
	}
	for _, ids := range out {
		if err := checkTokens(ids, t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func checkTokens(ids []Token, t *tokenizer) error {
	if len(ids) == 0 {
		return badRequest("You must pass at least one prompt", "")
	}
	for _, id := range ids {
		if id >= t.size() {
			return badRequest(fmt.Sprintf("Token id %d is out of vocabulary", id), "")
		}
	}
	return nil
}

// decodeBody parses a JSON body. Faults of form are 400 in all three kinds.
func decodeBody(body []byte, v any) error {
	if !utf8.Valid(body) {
		return &apiError{status: http.StatusBadRequest, message: "There was an error parsing the body", bare: true}
	}
	err := json.Unmarshal(body, v)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return badForm("json_invalid", fmt.Sprintf("body.%d", syntax.Offset), "JSON decode error")
	}
	if err != nil {
		return badForm("type_error", "body", err.Error())
	}
	return nil
}
