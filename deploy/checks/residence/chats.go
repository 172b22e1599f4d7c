package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/kvmesh/kvmesh/internal/workload"
)

// conversation is one client: it sends its turns one after the other, each with all before it and the answers as they
// came.
type conversation struct {
	request
	turns   int // left, the present one among them
	rng     *rand.Rand
	writer  *writer
	streams float64 // share of turns that are streams
	traced  uint64  // the conversation of the trace that it belongs to; 0 for none
}

// writer makes the texts of conversations: the same for the same seed.
type writer struct {
	text    *workload.Text
	rng     *rand.Rand
	systems []string
	tools   []tool
	scale   float64 // of all lengths
	most    int     // bytes of one text
	maxOut  int     // tokens of an answer
	next    uint64  // id of the next text
}

const (
	numSystems = 12
	numTools   = 9
)

func newWriter(seed uint64, scale float64, maxOut int) *writer {
	w := &writer{
		text: workload.NewText(seed), rng: rand.New(rand.NewPCG(seed, 11)), scale: scale, most: int(60_000 * scale),
		maxOut: maxOut, next: 1 << 40,
	}
	for range numSystems {
		w.systems = append(w.systems, w.prose(w.length(3000, 0.7)))
	}
	for i := range numTools {
		w.tools = append(w.tools, w.tool(i))
	}
	return w
}

// length draws a number of bytes: lognormal, so that some texts are a few bytes long and some very long.
func (w *writer) length(median, sigma float64) int {
	return min(1+int(w.scale*median*math.Exp(sigma*w.rng.NormFloat64())), w.most)
}

// prose returns a new text of n bytes, of words, or now and then of numbers, code or another script: what tokenizers cut
// into many tokens.
func (w *writer) prose(n int) string {
	w.next++
	switch w.rng.IntN(8) {
	case 0:
		return w.dense(n)
	case 1:
		return w.foreign(n)
	}
	return string(w.text.Append(nil, w.next, n))
}

func (w *writer) dense(n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%x: {%q: %d},\n", w.rng.Uint32(), "v", w.rng.IntN(1000))
	}
	return b.String()[:n]
}

func (w *writer) foreign(n int) string {
	const letters = "абвгдежзиклмнопрстуфхцчшщыьэюя 漢字仮名交文 😀é\"\\\t\n<"
	all := []rune(letters)
	var b strings.Builder
	for b.Len() < n {
		b.WriteRune(all[w.rng.IntN(len(all))])
	}
	return b.String()
}

func (w *writer) tool(i int) tool {
	properties := map[string]any{}
	for range 1 + w.rng.IntN(5) {
		name := fmt.Sprintf("p%x", w.rng.Uint32())
		properties[name] = map[string]any{"type": "string", "description": w.prose(w.length(60, 0.8))}
	}
	parameters, err := json.Marshal(map[string]any{"type": "object", "properties": properties})
	if err != nil {
		panic(err) // maps of strings
	}
	return tool{"function", function{fmt.Sprintf("tool_%d", i), w.prose(w.length(120, 0.8)), parameters}}
}

// chat begins a conversation: below one of a few system texts, or none, and with the tools of that application.
func (w *writer) chat(streams float64) *conversation {
	c := &conversation{writer: w, rng: w.rng, turns: 1 + w.rng.IntN(4), streams: streams}
	c.Model = model
	app := int(float64(numSystems) * w.rng.Float64() * w.rng.Float64()) // some applications are far more popular
	if w.rng.IntN(6) > 0 {
		c.Messages = append(c.Messages, message{Role: "system", Content: w.systems[app]})
	}
	if app%2 == 0 {
		c.Tools = w.tools[app/2%4 : 5+app/4]
	}
	c.ask()
	return c
}

// ask adds what the user says next.
func (c *conversation) ask() {
	n := c.writer.length(600, 1.3)
	if len(c.Messages) > 2 {
		n = c.writer.length(120, 1)
	}
	c.Messages = append(c.Messages, message{Role: "user", Content: c.writer.prose(n)})
	c.MaxTokens = 1 + c.rng.IntN(c.writer.maxOut)
	c.Stream, c.StreamOptions = c.rng.Float64() < c.streams, nil
	if c.Stream {
		c.StreamOptions = &streamOptions{IncludeUsage: true}
	}
}

// answered adds an answer as it came, and what follows it: the result of a tool, or the user's next message.
func (c *conversation) answered(a answer) {
	c.turns--
	m := message{Role: "assistant", Content: a.content, Reasoning: a.reasoning}
	if len(c.Tools) > 0 && c.rng.IntN(3) == 0 {
		id := fmt.Sprintf("call_%08x", c.rng.Uint32())
		arguments := fmt.Sprintf(`{"q": %q,  "n":%d}`, c.writer.prose(20), c.rng.IntN(100))
		m.ToolCalls = []toolCall{{id, "function", functionCall{c.Tools[0].Function.Name, arguments}}}
		c.Messages = append(c.Messages, m, message{Role: "tool", ToolCallID: id, Content: c.writer.prose(c.writer.length(600, 1.2))})
		return
	}
	c.Messages = append(c.Messages, m)
	c.ask()
}
