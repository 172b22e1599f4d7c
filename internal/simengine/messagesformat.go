package simengine

// messagesFormat writes Anthropic messages and their events. vLLM and SGLang wrap their chat streams, and differ in what
// they say of usage: the sum of input, cache reads and, in vLLM, cache creations is the prompt.
type messagesFormat struct {
	e     *Engine
	c     *call
	begun bool
	block string // "thinking" or "text": the content block that is open
	index int
}

type anthropicMessage struct {
	ID         string           `json:"id"`
	Type       string           `json:"type"`
	Role       string           `json:"role"`
	Content    []anthropicBlock `json:"content"`
	Model      string           `json:"model"`
	StopReason any              `json:"stop_reason,omitempty"`
	StopSeq    any              `json:"stop_sequence,omitempty"`
	Usage      anthropicUsage   `json:"usage"`
}

// anthropicBlock is a content block or a piece of one.
type anthropicBlock struct {
	Type       string  `json:"type,omitempty"`
	Text       *string `json:"text,omitempty"`
	Thinking   *string `json:"thinking,omitempty"`
	Signature  string  `json:"signature,omitempty"`
	StopReason any     `json:"stop_reason,omitempty"`
	StopSeq    any     `json:"stop_sequence,omitempty"`
}

type anthropicUsage struct {
	InputTokens  *int `json:"input_tokens,omitempty"`
	OutputTokens int  `json:"output_tokens"`
	CacheCreated *int `json:"cache_creation_input_tokens,omitempty"`
	CacheRead    *int `json:"cache_read_input_tokens,omitempty"`
}

type anthropicEvent struct {
	Type    string            `json:"type"`
	Message *anthropicMessage `json:"message,omitempty"`
	Block   *anthropicBlock   `json:"content_block,omitempty"`
	Delta   *anthropicBlock   `json:"delta,omitempty"`
	Index   *int              `json:"index,omitempty"`
	Usage   *anthropicUsage   `json:"usage,omitempty"`
}

func (f *messagesFormat) send(s *sse, ev anthropicEvent) { s.event(ev.Type, ev) }

func (f *messagesFormat) open(*sse) {}

// token writes message_start with the first token: the chat stream's first chunk comes then.
func (f *messagesFormat) token(s *sse, _, i int) {
	if !f.begun {
		f.begun = true
		f.send(s, anthropicEvent{Type: "message_start", Message: f.start()})
	}
	text, thought := f.e.visible(f.c, f.c.jobs[0], i)
	switch {
	case thought != "":
		f.enter(s, "thinking")
		f.delta(s, anthropicBlock{Type: "thinking_delta", Thinking: &thought})
	case text != "":
		f.enter(s, "text")
		f.delta(s, anthropicBlock{Type: "text_delta", Text: &text})
	}
}

func (f *messagesFormat) delta(s *sse, d anthropicBlock) {
	f.send(s, anthropicEvent{Type: "content_block_delta", Delta: &d, Index: new(f.index)})
}

// enter opens the content block that the next delta belongs to.
func (f *messagesFormat) enter(s *sse, block string) {
	if f.block == block {
		return
	}
	f.leave(s)
	f.block = block
	empty := &anthropicBlock{Type: block, Text: new("")}
	if block == "thinking" {
		empty = &anthropicBlock{Type: block, Thinking: new("")}
	}
	f.send(s, anthropicEvent{Type: "content_block_start", Block: empty, Index: new(f.index)})
}

// leave closes the open content block. vLLM signs thoughts, with nothing that could be checked.
func (f *messagesFormat) leave(s *sse) {
	if f.block == "" {
		return
	}
	if f.block == "thinking" && f.e.cfg.Kind == KindVLLM {
		f.delta(s, anthropicBlock{Type: "signature_delta", Signature: f.c.id})
	}
	f.send(s, anthropicEvent{Type: "content_block_stop", Index: new(f.index)})
	f.block = ""
	f.index++
}

func (f *messagesFormat) close(s *sse) {
	f.leave(s)
	u, d := f.usage(), anthropicBlock{StopReason: f.stopReason()}
	if f.e.cfg.Kind == KindVLLM {
		d.StopSeq = null
	} else {
		u = anthropicUsage{OutputTokens: u.OutputTokens}
	}
	f.send(s, anthropicEvent{Type: "message_delta", Delta: &d, Usage: &u})
	f.send(s, anthropicEvent{Type: "message_stop"})
}

func (f *messagesFormat) stopReason() string {
	if f.c.jobs[0].stopped {
		return "end_turn"
	}
	return "max_tokens"
}

// usage: input_tokens are those that were neither read from the cache nor, in vLLM, put into it. Without the flag that
// reports cached tokens they are the whole prompt.
func (f *messagesFormat) usage() anthropicUsage {
	n := f.e.count(f.c)
	u, input := anthropicUsage{OutputTokens: n.completion}, n.prompt
	if f.e.reportsCached(n.cached) {
		u.CacheRead = &n.cached
		input -= n.cached
		if f.e.cfg.Kind == KindVLLM {
			u.CacheCreated = &n.created
			input -= n.created
		}
	}
	u.InputTokens = &input
	return u
}

func (f *messagesFormat) message() *anthropicMessage {
	id := "msg_" + f.c.id
	if f.e.cfg.Kind == KindVLLM {
		id = "chatcmpl-" + f.c.id
	}
	return &anthropicMessage{
		ID: id, Type: "message", Role: "assistant", Content: []anthropicBlock{}, Model: f.c.Model,
	}
}

// start is the message without content. vLLM does not know of the cache yet and counts the whole prompt.
func (f *messagesFormat) start() *anthropicMessage {
	m := f.message()
	m.Usage = f.usage()
	if f.e.cfg.Kind == KindVLLM {
		m.StopReason, m.StopSeq = null, null
		m.Usage = anthropicUsage{InputTokens: new(f.e.count(f.c).prompt)}
	}
	m.Usage.OutputTokens = 0
	return m
}

func (f *messagesFormat) whole() any {
	m := f.message()
	m.StopReason, m.Usage = f.stopReason(), f.usage()
	text, thought := f.e.text(f.c, f.c.jobs[0])
	if thought != "" {
		block := anthropicBlock{Type: "thinking", Thinking: &thought}
		if f.e.cfg.Kind == KindVLLM {
			block.Signature = f.c.id
		}
		m.Content = append(m.Content, block)
	}
	if text != "" || len(m.Content) == 0 {
		m.Content = append(m.Content, anthropicBlock{Type: "text", Text: &text})
	}
	return m
}
