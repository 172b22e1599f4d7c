package openai

import (
	"bytes"
	"encoding/binary"
)

// chat emits the conversation of the chat route.
func (w *walker) chat() {
	d, top := w.d, &w.r.top
	if !d.emptyArray(top[nInputIDs]) {
		w.tokens(top[nInputIDs])
		return
	}
	if last := w.lastUser(); last >= 0 {
		w.headLast(last)
		return
	}
	if w.layout&LayoutToolsFirst != 0 {
		w.tools()
	}
	leading := w.layout&LayoutToolsFirst == 0
	for c := d.in(top[nMessages]); !w.done; {
		v, ok := c.elem()
		if !ok {
			break
		}
		var m members
		d.fill(v, &m)
		if leading && !d.leads(&m) {
			leading = false
			w.tools()
		}
		w.message(&m)
	}
	if leading {
		w.tools()
	}
}

// lastUser returns the index of the last message of a user, or -1. It is asked only where the layout needs it.
func (w *walker) lastUser() int {
	last := -1
	if w.layout&LayoutHeadLast == 0 {
		return last
	}
	i := 0
	for c := w.d.in(w.r.top[nMessages]); ; i++ {
		v, ok := c.elem()
		if !ok {
			return last
		}
		var m members
		w.d.fill(v, &m)
		if string(w.d.word(m[nRole])) == "user" {
			last = i
		}
	}
}

// headLast emits the conversation with the messages that lead it, and the tools, right before the last message of a user.
func (w *walker) headLast(last int) {
	head := 0
	for c := w.d.in(w.r.top[nMessages]); w.d.leadsNext(&c); head++ {
	}
	i := 0
	for c := w.d.in(w.r.top[nMessages]); !w.done; i++ {
		v, ok := c.elem()
		if !ok {
			return
		}
		if i < head {
			continue
		}
		if i == last {
			w.head(head)
			w.tools()
		}
		var m members
		w.d.fill(v, &m)
		w.message(&m)
	}
}

// head emits the first n messages.
func (w *walker) head(n int) {
	for c := w.d.in(w.r.top[nMessages]); n > 0 && !w.done; n-- {
		v, _ := c.elem()
		var m members
		w.d.fill(v, &m)
		w.message(&m)
	}
}

// leadsNext steps over a message that leads the conversation, and reports whether there was one.
func (d *doc) leadsNext(c *cursor) bool {
	v, ok := c.elem()
	if !ok {
		return false
	}
	var m members
	d.fill(v, &m)
	return d.leads(&m)
}

// leads reports whether a message belongs to the system text when it stands before all others.
func (d *doc) leads(m *members) bool {
	role := d.word(m[nRole])
	return string(role) == "system" || string(role) == "developer"
}

// message emits one message of the chat route. What engines render last, or not at all, comes last.
func (w *walker) message(m *members) {
	w.field(tagRole, m[nRole])
	w.field(tagName, m[nName])
	if w.d.empty(m[nReasoning]) {
		w.field(tagReasoning, m[nReasoningContent])
	} else {
		w.field(tagReasoning, m[nReasoning])
	}
	w.content(m[nContent])
	w.calls(m[nToolCalls])
	w.field(tagResultID, m[nToolCallID])
	if w.d.isTrue(m[nPrefix]) || w.d.isTrue(m[nPartial]) {
		w.word(tagPartial, "")
	}
	w.mark(markMessage)
}

// content emits a string or parts. Empty text is the same as none.
func (w *walker) content(v span) {
	if w.d.kind(v) != kindArray {
		w.field(tagText, v)
		return
	}
	for c := w.d.in(v); !w.done; {
		v, ok := c.elem()
		if !ok {
			return
		}
		w.part(v)
	}
}

func (w *walker) part(v span) {
	if w.d.kind(v) == kindString {
		w.field(tagText, v)
		return
	}
	var m members
	w.d.fill(v, &m)
	w.field(tagText, w.d.partText(&m))
	w.media(&m)
}

// partText returns the text of a part, if it has one.
func (d *doc) partText(m *members) span {
	switch string(d.word(m[nType])) {
	case "", "text", "input_text", "output_text", "reasoning_text", "summary_text":
		return m[nText]
	case "refusal":
		return m[nRefusal]
	case "thinking":
		return m[nThinking]
	case "tool_reference":
		return d.stringOf(m.firstOf(nToolName, nName))
	}
	return span{}
}

// stringOf returns v if it is a string.
func (d *doc) stringOf(v span) span {
	if d.kind(v) == kindString {
		return v
	}
	return span{}
}

// media emits a part that is not text as its kind, a zero byte and the hash of its data or URL.
func (w *walker) media(m *members) {
	kind := w.d.mediaKind(m)
	if kind == "" {
		return
	}
	w.digest.Reset()
	w.digesting = true
	w.digestMedia(m)
	w.flush()
	w.digesting = false
	w.open(tagMedia)
	w.puts(kind)
	w.puts("\x00")
	w.n = len(binary.LittleEndian.AppendUint64(w.room(), w.digest.Sum64()))
	w.close()
}

// calls emits the tool calls of an assistant message.
func (w *walker) calls(v span) {
	if w.d.kind(v) != kindArray {
		return
	}
	for c := w.d.in(v); !w.done; {
		v, ok := c.elem()
		if !ok {
			return
		}
		var m, f members
		w.d.fill(v, &m)
		w.d.fill(m.firstOf(nFunction, nCustom), &f)
		if !f[nName].ok() && !m.firstOf(nFunction, nCustom).ok() {
			f = m
		}
		w.call(f[nName], f.firstOf(nArguments, nInput), m[nID])
	}
}

// call emits one tool call. Arguments that are a string stand as they are; others are written as engines' tool parsers
// write them.
func (w *walker) call(name, arguments, id span) {
	w.open(tagCall)
	w.text(name)
	w.close()
	if w.d.kind(arguments) == kindString {
		w.field(tagArguments, arguments)
	} else if arguments.ok() {
		w.open(tagArguments)
		w.json(arguments, true)
		w.close()
	}
	w.field(tagCallID, id)
}

// tools emits the offered tools as one block.
func (w *walker) tools() {
	v := w.r.top[nTools]
	only, none := w.choice()
	if none || w.d.kind(v) != kindArray {
		return
	}
	if w.toolList(v, only) {
		w.mark(markMessage)
	}
}

// choice returns what tool_choice leaves of the tools where the engine filters them: one name, none, or all.
func (w *walker) choice() (only []byte, none bool) {
	v := w.r.top[nToolChoice]
	if w.layout&LayoutToolsFiltered == 0 || !v.ok() {
		return nil, false
	}
	var m, f members
	w.d.fill(v, &m)
	w.d.fill(m[nFunction], &f)
	if string(w.d.word(v)) == "none" || string(w.d.word(m[nType])) == "none" {
		return nil, true
	}
	name := w.d.stringOf(f.firstOf(nName))
	if !name.ok() {
		name = w.d.stringOf(m[nName])
	}
	if !name.ok() {
		return nil, false
	}
	return appendUnescaped([]byte{}, w.d.inner(name)), false
}

// toolList emits the tools of an array and reports whether there was one.
func (w *walker) toolList(v span, only []byte) bool {
	any := false
	for c := w.d.in(v); !w.done; {
		v, ok := c.elem()
		if !ok {
			break
		}
		var m members
		w.d.fill(v, &m)
		any = w.tool(&m, only) || any
		if w.d.kind(m[nTools]) == kindArray {
			any = w.toolList(m[nTools], only) || any
		}
	}
	return any
}

// tool emits one tool, whose fields stand in it or in its function object. One without a name is not rendered.
func (w *walker) tool(m *members, only []byte) bool {
	var f members
	if m[nFunction].ok() {
		w.d.fill(m[nFunction], &f)
		m = &f
	}
	if w.d.empty(m[nName]) {
		return false
	}
	if only != nil && !bytes.Equal(only, appendUnescaped(nil, w.d.inner(m[nName]))) {
		return false
	}
	w.field(tagTool, m[nName])
	w.field(tagDescription, m[nDescription])
	if v := m.firstOf(nParameters, nInputSchema); v.ok() {
		w.open(tagToolParameters)
		w.json(v, false)
		w.close()
	}
	return true
}
