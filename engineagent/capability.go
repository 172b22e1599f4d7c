package engineagent

import (
	"encoding/json"
	"slices"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// capability is what an engine can be asked for, by what it says of itself (PROMPTS.md section 3).
type capability struct {
	chat, completion []string // names of token id fields that its request schemas have
}

const (
	fieldTokenIDs  = "return_token_ids"
	fieldPromptIDs = "return_prompt_token_ids"
)

// maxSchemaBytes bounds /openapi.json: vLLM 0.32 has 270 KB.
const maxSchemaBytes = 8 << 20

// parseSchema reads which of the fields that return token ids an engine's /openapi.json names.
func parseSchema(body []byte) capability {
	var page struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]json.RawMessage `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if json.Unmarshal(body, &page) != nil {
		return capability{}
	}
	fields := func(schema string) (out []string) {
		for _, f := range []string{fieldTokenIDs, fieldPromptIDs} {
			if _, ok := page.Components.Schemas[schema].Properties[f]; ok {
				out = append(out, f)
			}
		}
		return out
	}
	return capability{chat: fields("ChatCompletionRequest"), completion: fields("CompletionRequest")}
}

// ask returns the fields to set in a request so that the answer has the prompt's token ids. None can be had where the
// table has none: a field is never tried on an engine that is not known to take it.
func (c capability) ask(kind engine.Kind, route openai.Route, stream bool) []string {
	switch {
	case kind == engine.KindVLLM && route == openai.RouteChat && slices.Contains(c.chat, fieldTokenIDs):
		return []string{fieldTokenIDs}
	case kind == engine.KindVLLM && route == openai.RouteCompletions && slices.Contains(c.completion, fieldTokenIDs):
		return []string{fieldTokenIDs}
	case kind == engine.KindSGLang && route == openai.RouteChat && !stream && slices.Contains(c.chat, fieldPromptIDs):
		return []string{fieldPromptIDs}
	case kind == engine.KindSGLang && route == openai.RouteCompletions && slices.Contains(c.completion, fieldTokenIDs):
		return []string{fieldTokenIDs}
	}
	return nil
}

// style returns how the engine writes what was not asked for.
func (c capability) style(kind engine.Kind) openai.Style {
	if kind == engine.KindVLLM {
		return openai.StyleNull
	}
	return openai.StyleAbsent
}

// noUsage reports whether streams of the kind are not to be asked for usage.
func (c capability) noUsage(kind engine.Kind) bool {
	return kind != engine.KindVLLM && kind != engine.KindSGLang && kind != engine.KindTRTLLM
}
