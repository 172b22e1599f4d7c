package simengine

import (
	"encoding/json"
	"fmt"
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
	CacheSalt     string         `json:"cache_salt"`
	ExtraKey      string         `json:"extra_key"` // SGLang
	LoraPath      string         `json:"lora_path"` // SGLang

	ReturnTokenIDs       bool `json:"return_token_ids"`
	ReturnPromptTokenIDs bool `json:"return_prompt_token_ids"` // SGLang chat
	PromptLogprobs       *int `json:"prompt_logprobs"`
}

type streamOptions struct {
	IncludeUsage         bool `json:"include_usage"`
	ContinuousUsageStats bool `json:"continuous_usage_stats"`
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
	if len(r.Messages) == 0 {
		return nil, badRequest("messages must not be empty", "messages")
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
		return nil, badRequest("continue_final_message needs add_generation_prompt set to false", "")
	}
	for _, m := range r.Messages {
		t, err := m.turn()
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

func (m *chatMessage) turn() (turn, error) {
	switch m.Role {
	case "system", "developer", "user", "assistant", "tool":
	default:
		return turn{}, badRequest("message role is not known", "messages")
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
		return nil, badRequest("prompt must not be empty", "prompt")
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
		return badRequest("prompt must not be empty", "prompt")
	}
	for _, id := range ids {
		if id >= t.size() {
			return badRequest(fmt.Sprintf("token id %d is not in the vocabulary", id), "prompt")
		}
	}
	return nil
}

// decodeBody parses a JSON body. Faults of form are 400 in all three kinds.
func decodeBody(body []byte, v any) error {
	if !utf8.Valid(body) {
		return badRequest("body is not UTF-8", "")
	}
	if err := json.Unmarshal(body, v); err != nil {
		return badRequest("decode body: "+err.Error(), "")
	}
	return nil
}
