package simengine

// responsesFormat writes response objects and their typed events.
type responsesFormat struct {
	e    *Engine
	c    *call
	seq  int
	part string // "reasoning" or "message": the output item that is open
	item int    // its index
}

type response struct {
	ID        string         `json:"id"`
	Object    string         `json:"object"`
	CreatedAt int64          `json:"created_at"`
	Status    string         `json:"status"`
	Model     string         `json:"model"`
	Output    []outputItem   `json:"output"`
	Details   any            `json:"incomplete_details"`
	Usage     *responseUsage `json:"usage"`
}

type outputItem struct {
	ID      string       `json:"id"`
	Type    string       `json:"type"`
	Status  string       `json:"status,omitempty"`
	Role    string       `json:"role,omitempty"`
	Summary []string     `json:"summary,omitempty"`
	Content []outputPart `json:"content"`
}

type outputPart struct {
	Type        string   `json:"type"`
	Text        string   `json:"text"`
	Annotations []string `json:"annotations"`
}

type responseUsage struct {
	InputTokens   int              `json:"input_tokens"`
	InputDetails  any              `json:"input_tokens_details,omitempty"`
	OutputTokens  int              `json:"output_tokens"`
	OutputDetails reasoningDetails `json:"output_tokens_details"`
	TotalTokens   int              `json:"total_tokens"`
}

type responseEvent struct {
	Type     string      `json:"type"`
	Sequence int         `json:"sequence_number"`
	Response *response   `json:"response,omitempty"`
	ItemID   string      `json:"item_id,omitempty"`
	Output   *int        `json:"output_index,omitempty"`
	Content  *int        `json:"content_index,omitempty"`
	Item     *outputItem `json:"item,omitempty"`
	Part     *outputPart `json:"part,omitempty"`
	Delta    *string     `json:"delta,omitempty"`
	Text     *string     `json:"text,omitempty"`
}

func (f *responsesFormat) send(s *sse, ev responseEvent) {
	ev.Sequence = f.seq
	f.seq++
	s.event(ev.Type, ev)
}

// open: these two events come before the first token, unlike the role chunk of chat.
func (f *responsesFormat) open(s *sse) {
	f.send(s, responseEvent{Type: "response.created", Response: f.response("in_progress")})
	f.send(s, responseEvent{Type: "response.in_progress", Response: f.response("in_progress")})
}

func (f *responsesFormat) token(s *sse, _, i int) {
	text, thought := f.e.visible(f.c, f.c.jobs[0], i)
	kind, name, piece := "message", "response.output_text.delta", text
	if thought != "" {
		kind, name, piece = "reasoning", "response.reasoning_text.delta", thought
	}
	if piece == "" {
		return
	}
	f.enter(s, kind)
	f.send(s, responseEvent{Type: name, ItemID: f.itemID(), Output: new(f.item), Content: new(0), Delta: &piece})
}

// enter opens the output item that the next delta belongs to, and closes the one before.
func (f *responsesFormat) enter(s *sse, kind string) {
	if f.part == kind {
		return
	}
	f.leave(s)
	f.part = kind
	item := f.outputItem(kind, "", "in_progress")
	item.Content = []outputPart{}
	f.send(s, responseEvent{Type: "response.output_item.added", Output: new(f.item), Item: &item})
	part := outputPart{Type: partType(kind), Annotations: []string{}}
	f.send(s, responseEvent{
		Type: "response.content_part.added", ItemID: f.itemID(), Output: new(f.item), Content: new(0), Part: &part,
	})
}

// leave closes the open output item.
func (f *responsesFormat) leave(s *sse) {
	if f.part == "" {
		return
	}
	text, thought := f.e.text(f.c, f.c.jobs[0])
	name := "response.output_text.done"
	if f.part == "reasoning" {
		name, text = "response.reasoning_text.done", thought
	}
	item := f.outputItem(f.part, text, "completed")
	id, at := f.itemID(), new(f.item)
	f.send(s, responseEvent{Type: name, ItemID: id, Output: at, Content: new(0), Text: &text})
	f.send(s, responseEvent{
		Type: "response.content_part.done", ItemID: id, Output: at, Content: new(0), Part: &item.Content[0],
	})
	f.send(s, responseEvent{Type: "response.output_item.done", Output: at, Item: &item})
	f.part = ""
	f.item++
}

func (f *responsesFormat) close(s *sse) {
	f.leave(s)
	f.send(s, responseEvent{Type: "response.completed", Response: f.whole().(*response)}) // also when cut at its limit
	if f.e.cfg.Kind == KindSGLang {
		s.done()
	}
}

func (f *responsesFormat) itemID() string { return f.part + "_" + f.c.id }

func partType(kind string) string {
	if kind == "reasoning" {
		return "reasoning_text"
	}
	return "output_text"
}

func (f *responsesFormat) outputItem(kind, text, status string) outputItem {
	it := outputItem{ID: kind + "_" + f.c.id, Type: kind, Status: status}
	if kind == "message" {
		it.Role = "assistant"
	}
	it.Content = []outputPart{{Type: partType(kind), Text: text, Annotations: []string{}}}
	return it
}

func (f *responsesFormat) response(status string) *response {
	return &response{
		ID: "resp_" + f.c.id, Object: "response", CreatedAt: f.c.created, Status: status, Model: f.c.Model,
		Output: []outputItem{},
	}
}

func (f *responsesFormat) whole() any {
	j := f.c.jobs[0]
	r := f.response("completed")
	if !j.stopped {
		r.Status, r.Details = "incomplete", map[string]string{"reason": "max_output_tokens"}
	}
	text, thought := f.e.text(f.c, j)
	if thought != "" {
		r.Output = append(r.Output, f.outputItem("reasoning", thought, "completed"))
	}
	if text != "" {
		r.Output = append(r.Output, f.outputItem("message", text, "completed"))
	}
	r.Usage = f.usage()
	return r
}

// usage: vLLM's has cached tokens also without the flag that reports them elsewhere.
func (f *responsesFormat) usage() *responseUsage {
	n := f.e.count(f.c)
	if !f.e.reasons() {
		n.reasoning = 0
	}
	u := &responseUsage{
		InputTokens: n.prompt, InputDetails: f.e.cachedIn(n, nil), OutputTokens: n.completion,
		OutputDetails: reasoningDetails{n.reasoning}, TotalTokens: n.total(),
	}
	if f.e.cfg.Kind == KindVLLM {
		u.InputDetails = cachedDetails{n.cached}
	}
	return u
}
