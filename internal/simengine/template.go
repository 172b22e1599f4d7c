package simengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// conversation is what all chat-like routes are turned into before rendering.
type conversation struct {
	turns         []turn
	tools         []tool
	noGeneration  bool // add_generation_prompt: false
	continueFinal bool // the last turn is not closed
	noThinking    bool // enable_thinking: false
	effort        string
}

// turn is one message.
type turn struct {
	role    string
	text    string
	thought string
	calls   []toolCall
	callID  string // of a tool's result
}

type toolCall struct{ id, name, arguments string }

// tool is a function that the model may call. Its parameters keep their order: templates render them as they come.
type tool struct {
	name        string
	description string
	parameters  json.RawMessage
}

// renderer turns a conversation into the text that the model reads.
type renderer func(*conversation) string

// rendererOf returns the chat template of that name, nil when there is none.
func rendererOf(name string) renderer {
	switch name {
	case TemplatePlain:
		return renderPlain
	case TemplateToolsFirst:
		return renderToolsFirst
	case TemplateDropsThoughts:
		return renderDropsThoughts
	case TemplateToolsInLastUser:
		return renderInLastUser
	case TemplateDated:
		return renderDated
	}
	return nil
}

func renderPlain(c *conversation) string {
	var b strings.Builder
	head, rest := splitSystem(c.turns)
	writeTurns(&b, head, always)
	writeTools(&b, c.tools)
	writeTurns(&b, rest, always)
	writeTail(&b, c, false)
	return b.String()
}

func renderToolsFirst(c *conversation) string {
	var b strings.Builder
	writeTools(&b, c.tools)
	writeTurns(&b, c.turns, always)
	writeTail(&b, c, false)
	return b.String()
}

func renderDropsThoughts(c *conversation) string {
	var b strings.Builder
	head, rest := splitSystem(c.turns)
	writeTurns(&b, head, always)
	writeTools(&b, c.tools)
	last := lastUser(rest)
	writeTurns(&b, rest, func(i int) bool { return i > last })
	writeTail(&b, c, c.noThinking)
	return b.String()
}

// renderInLastUser moves system text and tools into the last user message, so that no turn extends the one before.
func renderInLastUser(c *conversation) string {
	var b strings.Builder
	head, rest := splitSystem(c.turns)
	rest = slices.Clone(rest)
	if last := lastUser(rest); last >= 0 {
		var moved strings.Builder
		for _, t := range head {
			moved.WriteString(t.text + "\n\n")
		}
		writeTools(&moved, c.tools)
		rest[last].text = moved.String() + rest[last].text
	}
	writeTurns(&b, rest, always)
	writeTail(&b, c, false)
	return b.String()
}

func renderDated(c *conversation) string {
	effort := c.effort
	if effort == "" {
		effort = "medium"
	}
	return fmt.Sprintf("%ssystem\nDate: %s\nReasoning: %s%s\n", tokenStart, time.Now().Format(time.DateOnly), effort,
		tokenEnd) + renderPlain(c)
}

func always(int) bool { return true }

// splitSystem cuts the leading system and developer turns off.
func splitSystem(turns []turn) (head, rest []turn) {
	n := 0
	for n < len(turns) && (turns[n].role == "system" || turns[n].role == "developer") {
		n++
	}
	return turns[:n], turns[n:]
}

func lastUser(turns []turn) int {
	for i, t := range slices.Backward(turns) {
		if t.role == "user" {
			return i
		}
	}
	return -1
}

// writeTurns renders turns in order; thoughts only where keep says so.
func writeTurns(b *strings.Builder, turns []turn, keep func(i int) bool) {
	for i, t := range turns {
		b.WriteString(tokenStart + t.role + "\n")
		if t.thought != "" && keep(i) {
			b.WriteString(tokenThink + "\n" + t.thought + "\n" + tokenThinkEnd + "\n\n")
		}
		if t.role == "tool" {
			b.WriteString(tokenToolResult + t.callID + "\n")
		}
		b.WriteString(t.text)
		for _, call := range t.calls {
			fmt.Fprintf(b, "%s{\"id\": %q, \"name\": %q, ", tokenToolCall, call.id, call.name)
			b.WriteString("\"arguments\": " + call.arguments + "}")
		}
		b.WriteString(tokenEnd + "\n")
	}
}

func writeTools(b *strings.Builder, tools []tool) {
	if len(tools) == 0 {
		return
	}
	b.WriteString(tokenTools)
	for _, t := range tools {
		fmt.Fprintf(b, "\n{\"name\": %q, \"description\": %q, ", t.name, t.description)
		b.WriteString("\"parameters\": " + compact(t.parameters) + "}")
	}
	b.WriteString(tokenToolsEnd + "\n")
}

// writeTail opens the answer, or takes the end mark off a message that is to be continued.
func writeTail(b *strings.Builder, c *conversation, emptyThought bool) {
	if c.continueFinal {
		s := strings.TrimSuffix(b.String(), tokenEnd+"\n")
		b.Reset()
		b.WriteString(s)
		return
	}
	if c.noGeneration {
		return
	}
	b.WriteString(tokenStart + "assistant\n")
	if emptyThought {
		b.WriteString(tokenThink + "\n\n" + tokenThinkEnd + "\n\n")
	}
}

// compact is JSON without spaces; what is not JSON stays as it is.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}
