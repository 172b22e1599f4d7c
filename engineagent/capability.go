package engineagent

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// capability is what an engine can be asked for, by what it says of itself (PROMPTS.md section 3). The zero capability
// asks for nothing.
type capability struct {
	chat, completion []string   // names of token id fields that its request schemas have
	info             serverInfo // SGLang's flags; the version of every kind that tells it
}

const (
	fieldTokenIDs  = "return_token_ids"
	fieldPromptIDs = "return_prompt_token_ids"
)

const (
	// maxSchemaBytes bounds /openapi.json: vLLM 0.32 has 270 KB.
	maxSchemaBytes = 4 << 20
	// schemaTimeout bounds the wait for it: an engine makes it when it is first asked.
	schemaTimeout = 20 * time.Second
)

// findCapability asks the engine what it can be asked for: its version tells, its schema where that does not. Making the
// schema the first time holds up all streams of an engine (1.4 s in vLLM 0.32 on a slow core, 8 s on a crowded one), so that
// one that works is not asked for it. settled says that asking again would tell no more.
func (a *Agent) findCapability(ctx context.Context, kind engine.Kind, idle bool) (c capability, settled bool) {
	if kind != engine.KindVLLM && kind != engine.KindSGLang {
		return capability{}, true
	}
	info := a.aboutItself(ctx, kind)
	if knownSince(kind).atMost(info.Version) {
		c = newestOf(kind)
		c.info = info
		return c, true
	}
	if !idle {
		return capability{info: info}, false
	}
	body, err := a.fetch(ctx, question{
		method: http.MethodGet, path: "/openapi.json", limit: maxSchemaBytes, timeout: schemaTimeout,
	})
	if err != nil { // it may be turned off, and vLLM's Rust front end has none
		return capability{info: info}, refused(err)
	}
	c = parseSchema(body)
	c.info = info
	return c, true
}

// aboutItself returns what an engine says of its version and, if it is SGLang, of its flags.
func (a *Agent) aboutItself(ctx context.Context, kind engine.Kind) (info serverInfo) {
	path := "/version"
	if kind == engine.KindSGLang {
		path = "/server_info"
	}
	body, err := a.get(ctx, path, maxInfoBytes)
	if err != nil {
		return serverInfo{}
	}
	if kind == engine.KindSGLang {
		info, _ = parseServerInfo(body)
		return info
	}
	return serverInfo{Version: parseVersion(body)}
}

// newestOf is the capability of a kind's newest release. A configuration that knows better than the engine says may set it.
func newestOf(kind engine.Kind) capability {
	switch kind {
	case engine.KindVLLM:
		return capability{chat: []string{fieldTokenIDs}, completion: []string{fieldTokenIDs}}
	case engine.KindSGLang:
		return capability{chat: []string{fieldTokenIDs, fieldPromptIDs}, completion: []string{fieldTokenIDs}}
	default:
		return capability{}
	}
}

// knownSince is the first release of a kind that certainly has what newestOf says. SGLang's sources had all of it at the
// end of July 2026, after 0.5.15.
func knownSince(kind engine.Kind) release {
	if kind == engine.KindSGLang {
		return release{0, 5, 17}
	}
	return release{0, 10, 2}
}

// release is a version's three numbers.
type release [3]int

// atMost reports whether a version, such as 0.10.2 or 0.5.10.post1, is this release or a later one. What is no version is
// not, nor is the 0.1.dev7 of a build without tags.
func (r release) atMost(version string) bool {
	return slices.Compare(r[:], numbersOf(version)) <= 0
}

// numbersOf returns the leading numbers of a version, at most three.
func numbersOf(version string) (numbers []int) {
	for part := range strings.SplitSeq(strings.TrimPrefix(version, "v"), ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil || len(numbers) == 3 {
			break
		}
		numbers = append(numbers, n)
		if digits != part {
			break
		}
	}
	return numbers
}

// schema is the part of an OpenAPI schema that matters here.
type schema struct {
	Properties map[string]json.RawMessage `json:"properties"`
}

// parseSchema reads which of the fields that return token ids an engine's /openapi.json names.
func parseSchema(body []byte) (c capability) {
	var page struct {
		Components struct {
			Schemas map[string]schema `json:"schemas"`
		} `json:"components"`
	}
	if decode(body, &page) != nil {
		return capability{}
	}
	fields := func(name string) (out []string) {
		s, ok := page.Components.Schemas[name]
		if !ok { // where answers and requests have schemas of their own
			s = page.Components.Schemas[name+"-Input"]
		}
		for _, f := range []string{fieldTokenIDs, fieldPromptIDs} {
			if _, has := s.Properties[f]; has {
				out = append(out, f)
			}
		}
		return out
	}
	c.chat, c.completion = fields("ChatCompletionRequest"), fields("CompletionRequest")
	return c
}

// ask returns the fields to set in a request so that the answer has the prompt's token ids. None can be had where the
// table has none: a field is never tried on an engine that is not known to take it. vLLM 0.10.2 to 0.12 lose the answer's
// ids when it streams a tool call, not the prompt's, which come first.
func (c *capability) ask(kind engine.Kind, route openai.Route, stream bool) []string {
	switch {
	case kind == engine.KindVLLM && route == openai.RouteChat && slices.Contains(c.chat, fieldTokenIDs):
		return []string{fieldTokenIDs}
	case kind == engine.KindVLLM && route == openai.RouteCompletions && slices.Contains(c.completion, fieldTokenIDs):
		return []string{fieldTokenIDs}
	case kind == engine.KindSGLang && route == openai.RouteChat && !stream && slices.Contains(c.chat, fieldPromptIDs):
		return []string{fieldPromptIDs} // the other one gives the answer's
	case kind == engine.KindSGLang && route == openai.RouteCompletions && slices.Contains(c.completion, fieldTokenIDs):
		return []string{fieldTokenIDs}
	}
	return nil
}

// style returns how the engine writes what was not asked for.
func (c *capability) style(kind engine.Kind) openai.Style {
	if kind == engine.KindVLLM {
		return openai.StyleNull
	}
	return openai.StyleAbsent
}

// noUsage reports whether streams of the kind are not to be asked for usage.
func (c *capability) noUsage(kind engine.Kind) bool {
	return kind != engine.KindVLLM && kind != engine.KindSGLang && kind != engine.KindTRTLLM
}

// advice says, in words that follow the engine's name, which flags SGLang should have been started with. followed says that
// its KV events are. What vLLM was started with shows only in what it answers.
func (c *capability) advice(followed bool) (words []string) {
	if c.info.PageSize == 0 {
		return nil // it did not say
	}
	if !c.info.CacheReport {
		words = append(words, "reports no cached tokens: start it with --enable-cache-report")
	}
	if !c.info.Metrics {
		words = append(words, "has no metrics page: start it with --enable-metrics")
	}
	if followed && c.info.PageSize == 1 {
		words = append(words, "sends one KV event for each token: start it with --page-size 16")
	}
	return words
}
