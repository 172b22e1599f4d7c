package openai

// billingHeader begins a system block of Claude Code whose text changes with every request. Engines that cache take it
// out before they render.
const billingHeader = "x-anthropic-billing-header"

// turns emits the conversation of the Messages route as engines turn it into chat messages.
func (w *walker) turns() {
	if w.layout&LayoutToolsFirst != 0 {
		w.tools()
	}
	c := w.d.in(w.r.top[nMessages])
	rest := w.system(c)
	if w.layout&LayoutToolsFirst == 0 {
		w.tools()
	}
	for !w.done {
		v, ok := rest.elem()
		if !ok {
			return
		}
		var m members
		w.d.fill(v, &m)
		w.turn(&m)
	}
}

// turn emits one message that is not part of the system text at the head.
func (w *walker) turn(m *members) {
	switch role := string(w.d.word(m[nRole])); {
	case role == "system" && w.layout&LayoutSystemMerged != 0:
	case role == "system":
		s := systemText{w: w}
		s.add(m[nContent])
		s.end()
	case w.d.kind(m[nContent]) != kindArray:
		w.field(tagRole, m[nRole])
		w.field(tagText, m[nContent])
		w.mark(markMessage)
	case role == "assistant":
		w.assistant(m)
	default:
		w.user(m)
	}
}

// systemText is a system message of several texts joined without a separator. It is emitted only if one has text.
type systemText struct {
	w    *walker
	open bool
}

// system emits the system text: the system field, the system messages that lead the conversation, and where the engine
// merges them all others too. It returns a cursor at the first message after those that lead.
func (w *walker) system(messages cursor) cursor {
	s := systemText{w: w}
	s.add(w.r.top[nSystem])
	rest, leading := messages, true
	for c := messages; !w.done; {
		v, ok := c.elem()
		if !ok {
			break
		}
		var m members
		w.d.fill(v, &m)
		if string(w.d.word(m[nRole])) == "system" {
			s.add(m[nContent])
		} else {
			leading = false
		}
		if leading {
			rest = c
		} else if w.layout&LayoutSystemMerged == 0 {
			break
		}
	}
	s.end()
	return rest
}

// add emits a string or the text blocks of an array, but not billing headers.
func (s *systemText) add(v span) {
	if s.w.d.kind(v) != kindArray {
		s.text(v)
		return
	}
	for c := s.w.d.in(v); !s.w.done; {
		e, ok := c.elem()
		if !ok {
			return
		}
		text := s.w.d.elemText(e)
		if _, billing := cutPrefix(s.w.d.inner(text), billingHeader); !billing {
			s.text(text)
		}
	}
}

func (s *systemText) text(v span) {
	if s.w.d.empty(v) {
		return
	}
	if !s.open {
		s.w.word(tagRole, "system")
		s.w.open(tagText)
		s.open = true
	}
	s.w.text(v)
}

func (s *systemText) end() {
	if s.open {
		s.w.close()
		s.w.mark(markMessage)
	}
}

// blocks calls f with every block of the array v.
func (w *walker) blocks(v span, f func(m *members)) {
	for c := w.d.in(v); !w.done; {
		v, ok := c.elem()
		if !ok {
			return
		}
		var m members
		w.d.fill(v, &m)
		f(&m)
	}
}

// assistant emits the thoughts of a message's blocks as one field, then its text and media, then its calls.
func (w *walker) assistant(m *members) {
	w.word(tagRole, "assistant")
	thinking := false
	w.blocks(m[nContent], func(b *members) {
		if string(w.d.word(b[nType])) != "thinking" || w.d.empty(b[nThinking]) {
			return
		}
		if !thinking {
			w.open(tagReasoning)
			thinking = true
		}
		w.text(b[nThinking])
	})
	if thinking {
		w.close()
	}
	w.blocks(m[nContent], w.plainBlock)
	w.blocks(m[nContent], func(b *members) {
		if string(w.d.word(b[nType])) == "tool_use" {
			w.toolUse(b)
		}
	})
	w.mark(markMessage)
}

// plainBlock emits a block that is text or media.
func (w *walker) plainBlock(b *members) {
	if string(w.d.word(b[nType])) == "text" {
		w.field(tagText, b[nText])
	}
	w.media(b)
}

// toolUse emits a tool_use block as a call. Its input is an object where chat has a string; without members it is the
// same as none.
func (w *walker) toolUse(b *members) {
	if v := b[nInput]; v.ok() && !w.d.emptyObject(v) {
		w.call(b[nName], v, b[nID])
		return
	}
	w.open(tagCall)
	w.text(b[nName])
	w.close()
	w.word(tagArguments, "{}")
	w.field(tagCallID, b[nID])
}

func (d *doc) emptyObject(v span) bool {
	if d.kind(v) != kindObject {
		return false
	}
	c := d.in(v)
	_, _, ok := c.member()
	return !ok
}

// user emits the tool results of a message's blocks as messages of their own, then what else it holds.
func (w *walker) user(m *members) {
	plain := false
	w.blocks(m[nContent], func(b *members) {
		switch string(w.d.word(b[nType])) {
		case "tool_result":
			w.toolResult(b)
		case "text":
			plain = plain || !w.d.empty(b[nText])
		default:
			plain = plain || w.d.mediaKind(b) != ""
		}
	})
	if !plain {
		return
	}
	w.field(tagRole, m[nRole])
	w.blocks(m[nContent], w.plainBlock)
	w.mark(markMessage)
}

// toolResult emits a tool_result block: its texts as one, a line each, then its media.
func (w *walker) toolResult(b *members) {
	w.word(tagRole, "tool")
	content := b[nContent]
	if w.d.kind(content) != kindArray {
		w.field(tagText, content)
	} else {
		if w.hasText(content) {
			w.open(tagText)
			w.joined(content, "\n")
			w.close()
		}
		w.blocks(content, w.media)
	}
	w.field(tagResultID, w.d.stringOf(b.firstOf(nToolUseID, nID)))
	w.mark(markMessage)
}
