package openai

// itemType is the type of an input item of the Responses route, as far as it is rendered.
type itemType uint8

const (
	itemUnknown itemType = iota // not rendered, or not known to be
	itemMessage
	itemCall
	itemOutput
	itemReasoning
	itemReference
)

// itemType returns the type of an item; a message may leave it out.
func (d *doc) itemType(m *members) itemType {
	switch string(d.word(m[nType])) {
	case "", "message":
		return itemMessage
	case "function_call", "custom_tool_call":
		return itemCall
	case "function_call_output", "custom_tool_call_output":
		return itemOutput
	case "reasoning":
		return itemReasoning
	case "item_reference":
		return itemReference
	}
	return itemUnknown
}

// stage is how far an assistant message that several items make up has come. Fields come in this order.
type stage uint8

const (
	stageClosed stage = iota // no message is open
	stageReasoning
	stageContent
	stageCalls
)

// input emits the conversation of the Responses route.
func (w *walker) input() {
	d, top := w.d, &w.r.top
	leading := true
	if w.layout&LayoutToolsFirst != 0 {
		w.tools()
		leading = false
	}
	if !d.empty(top[nInstructions]) {
		w.simple("system", top[nInstructions])
	}
	if d.kind(top[nInput]) != kindArray {
		if leading {
			w.tools()
		}
		w.simple("user", top[nInput])
		return
	}
	w.items(top[nInput], leading)
}

// simple emits a message that is one string.
func (w *walker) simple(role string, v span) {
	w.word(tagRole, role)
	w.field(tagText, v)
	w.mark(markMessage)
}

// items emits input items; leading says that the tools come after those that lead.
func (w *walker) items(v span, leading bool) {
	at := stageClosed
	for c := w.d.in(v); !w.done; {
		v, ok := c.elem()
		if !ok {
			break
		}
		var m members
		w.d.fill(v, &m)
		t := w.d.itemType(&m)
		if leading && (t != itemMessage || !w.d.leads(&m)) {
			leading = false
			w.tools()
		}
		at = w.item(t, &m, at)
	}
	w.enter(at, stageClosed)
	if leading {
		w.tools()
	}
}

// item emits one item and returns the stage after it.
func (w *walker) item(t itemType, m *members, at stage) stage {
	switch t {
	case itemReasoning:
		return w.reasoningItem(m, at)
	case itemCall:
		at = w.enter(at, stageCalls)
		w.call(m[nName], m.firstOf(nArguments, nInput), m[nCallID])
		return at
	case itemOutput:
		at = w.enter(at, stageClosed)
		w.word(tagRole, "tool")
		w.content(m[nOutput])
		w.field(tagResultID, m[nCallID])
		w.mark(markMessage)
		return at
	case itemMessage:
		if string(w.d.word(m[nRole])) == "assistant" {
			at = w.enter(at, stageContent)
			w.content(m[nContent])
			return at
		}
		at = w.enter(at, stageClosed)
		w.field(tagRole, m[nRole])
		w.content(m[nContent])
		w.mark(markMessage)
	default: // a reference or an unknown item: neither has text that could be read
	}
	return at
}

// enter brings the assistant message to a stage. Items that go on from the stage before them belong to one message, as
// engines merge them; others end it.
func (w *walker) enter(at, next stage) stage {
	goesOn := next > at || next == stageCalls && at == stageCalls
	if at != stageClosed && !goesOn {
		w.mark(markMessage)
		at = stageClosed
	}
	if at == stageClosed && next != stageClosed {
		w.word(tagRole, "assistant")
	}
	return next
}

// reasoningItem emits the text of a reasoning item, or else its summary. One that holds only encrypted thoughts, which
// engines cannot read, is not there.
func (w *walker) reasoningItem(m *members, at stage) stage {
	for _, v := range []span{m[nContent], m[nSummary]} {
		if w.d.kind(v) == kindString && !w.d.empty(v) {
			at = w.enter(at, stageReasoning)
			w.field(tagReasoning, v)
			return at
		}
		if w.hasText(v) {
			at = w.enter(at, stageReasoning)
			w.open(tagReasoning)
			w.joined(v, "")
			w.close()
			return at
		}
	}
	return at
}

// hasText reports whether a part of the array v has text.
func (w *walker) hasText(v span) bool {
	if w.d.kind(v) != kindArray {
		return false
	}
	for c := w.d.in(v); ; {
		v, ok := c.elem()
		if !ok {
			return false
		}
		if !w.d.empty(w.d.elemText(v)) {
			return true
		}
	}
}

// elemText returns the text of an element of a content array.
func (d *doc) elemText(v span) span {
	if d.kind(v) == kindString {
		return v
	}
	var m members
	d.fill(v, &m)
	return d.partText(&m)
}

// joined emits the texts of the array v into the open field, with sep between two that are not empty.
func (w *walker) joined(v span, sep string) {
	first := true
	for c := w.d.in(v); !w.done; {
		v, ok := c.elem()
		if !ok {
			return
		}
		text := w.d.elemText(v)
		if w.d.empty(text) {
			continue
		}
		if !first {
			w.puts(sep)
		}
		first = false
		w.text(text)
	}
}
