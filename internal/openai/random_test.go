package openai

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// generator writes random request bodies that are mostly right: known names in random order, some twice, some unknown,
// strings and white space spelled in every way, now and then a value of the wrong kind.
type generator struct {
	*rand.Rand
	depth int
}

func (g *generator) pick(list ...string) string { return list[g.IntN(len(list))] }

func (g *generator) space() string {
	if g.IntN(4) > 0 {
		return ""
	}
	return g.pick(" ", "\n", "\t ", "\r\n")
}

// quoted writes s as a JSON string in a random spelling.
func (g *generator) quoted(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x10000 && g.IntN(8) == 0:
			fmt.Fprintf(&b, `\u%04x`, r)
		case r == '/' && g.IntN(2) == 0:
			b.WriteString(`\/`)
		default:
			b.Write(appendEscaped(nil, r))
		}
	}
	return `"` + b.String() + `"`
}

func (g *generator) text() string {
	n := g.IntN(12)
	if g.IntN(10) == 0 {
		n = g.IntN(1500)
	}
	s := make([]rune, n)
	for i := range s {
		s[i] = []rune("abc /\"\\\n\té😀\x01")[g.IntN(12)]
	}
	return g.quoted(string(s))
}

func (g *generator) array(n int, element func() string) string {
	var parts []string
	for range g.IntN(n + 1) {
		parts = append(parts, g.space()+element()+g.space())
	}
	return "[" + strings.Join(parts, ",") + g.space() + "]"
}

// object writes an object with about half of the names, and some names twice.
func (g *generator) object(names string) string {
	var parts []string
	list := strings.Fields(names)
	g.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, n := range append(list, list...)[:len(list)+g.IntN(2)] {
		if g.IntN(2) == 0 || strings.HasSuffix(n, "!") {
			n = strings.TrimSuffix(n, "!")
			parts = append(parts, g.space()+g.quoted(n)+g.space()+":"+g.space()+g.value(n)+g.space())
		}
	}
	return "{" + strings.Join(parts, ",") + g.space() + "}"
}

func (g *generator) any() string {
	g.depth++
	defer func() { g.depth-- }()
	switch n := g.IntN(8); {
	case n == 0 && g.depth < 5:
		return g.array(3, g.any)
	case n == 1 && g.depth < 5:
		return g.object("a! b url effort name data")
	case n < 5:
		return g.text()
	}
	return g.pick("null", "true", "false", "0", "-1.5e+3", "12")
}

const (
	contentNames = "type! text! refusal thinking image_url url source data media_type file_id name input_audio cache_control"
	blockNames   = "type! text thinking signature id tool_use_id name input content! source data is_error"
	itemNames    = "type! role! content! id call_id name arguments output summary status input encrypted_content"
	rootNames    = "model! stream n max_tokens tools tool_choice cache_salt extra_key add_special_tokens documents reasoning " +
		"reasoning_effort thinking chat_template_kwargs response_format mm_processor_kwargs unknown metadata user"
)

// value writes a value that fits the name, mostly.
func (g *generator) value(name string) string {
	if g.IntN(40) == 0 {
		return g.any()
	}
	g.depth++
	defer func() { g.depth-- }()
	switch name {
	case "model":
		return g.quoted("m")
	case "stream", "add_special_tokens", "prefix":
		return g.pick("true", "false", "null")
	case "n", "max_tokens":
		return g.pick("1", "7", "null")
	case "role":
		return g.quoted(g.pick("system", "developer", "user", "assistant", "assistant", "tool"))
	case "type":
		return g.quoted(g.pick("text", "text", "input_text", "output_text", "image_url", "image", "thinking", "tool_use",
			"tool_result", "message", "message", "function_call", "function_call_output", "reasoning", "file", "refusal"))
	case "content", "output", "system", "summary":
		if name != "summary" && g.IntN(2) == 0 || g.depth > 8 {
			return g.text()
		}
		return g.array(3, func() string { return g.object(g.pick(contentNames, blockNames)) })
	case "messages":
		return g.array(5, func() string {
			return g.object("role! content! name reasoning reasoning_content tool_calls tool_call_id prefix id")
		})
	case "turns":
		return g.array(5, func() string { return g.object("role! content! id") })
	case "tool_calls":
		return g.array(2, func() string { return g.object("id type function! custom index") })
	case "function", "custom":
		return g.object("name! arguments description parameters input")
	case "tools":
		if g.depth > 4 {
			return "[]"
		}
		return g.array(2, func() string {
			return g.object("type function name! description parameters input_schema tools cache_control")
		})
	case "input", "arguments", "parameters", "input_schema", "documents", "response_format", "mm_processor_kwargs",
		"unknown", "extra_key", "thinking_config", "data", "url", "source", "image_url", "input_audio", "effort", "a", "b":
		return g.any()
	case "chat_template_kwargs":
		return g.object("enable_thinking a b é")
	case "tool_choice":
		return g.pick(`"none"`, `"auto"`, `{"type":"none"}`, `{"type":"function","function":{"name":""}}`)
	case "metadata", "reasoning":
		if name == "reasoning" && g.depth > 3 {
			return g.text()
		}
		return g.object("effort session_id user_id")
	case "is_error", "index", "cache_control", "annotations":
		return g.any()
	}
	return g.text()
}

// request writes a body for a route.
func (g *generator) request(route Route) string {
	switch route {
	case RouteCompletions:
		prompt := g.text()
		switch g.IntN(4) {
		case 0:
			prompt = g.array(4, g.text)
		case 1:
			prompt = g.array(9, func() string { return g.pick("0", "7", "151643", "4294967295") })
		}
		return strings.Replace(g.object(rootNames+" prompt!"), "{", `{"prompt":`+prompt+",", 1)
	case RouteResponses:
		items := g.array(7, func() string { return g.object(itemNames) })
		return strings.Replace(g.object(rootNames+" instructions"), "{", `{"input":`+items+",", 1)
	case RouteMessages:
		return strings.Replace(g.object(rootNames+" system"), "{", `{"messages":`+g.value("turns")+",", 1)
	default:
		return g.object(rootNames + " messages!")
	}
}

func TestRandomBodiesWalkAsTheTwin(t *testing.T) {
	const seed, bodies = 7, 500
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
	accepted := 0
	for i := range bodies {
		route := []Route{RouteChat, RouteCompletions, RouteResponses, RouteMessages}[i%4]
		body := g.request(route)
		if g.IntN(20) == 0 { // a broken byte
			b := []byte(body)
			b[g.IntN(len(b))] = []byte(`{}[]",:\x0`)[g.IntN(10)]
			body = string(b)
		}
		if _, err := Parse(route, []byte(body)); err == nil {
			accepted++
		}
		compareWithTwin(t, route, Layout(g.IntN(128)), []byte(body))
	}
	if accepted < bodies/4 {
		t.Errorf("only %d of %d bodies (seed %d) are requests", accepted, bodies, seed)
	}
}
