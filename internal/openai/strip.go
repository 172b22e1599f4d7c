package openai

import (
	"bytes"
	"slices"
)

// Stripper takes out of an answer what an Ask has put there, so that the client gets the bytes that the engine would have
// sent without it. It cuts bytes out instead of writing JSON anew, and leaves alone what it does not understand. It is for
// one answer and one goroutine.
type Stripper struct {
	ask    Ask
	theirs bool // the engine sends usage unasked: it stays

	seen   bool   // a list of prompt token ids has come
	prompt []byte // the first of them, as JSON
	held   []byte // the event that ends the choice, while the one with the usage may follow
	brace  int    // where its object ends

	watch bool // note what is needed to go on with the answer elsewhere
	noted Noted

	long  []span // for the scanner
	edits []edit
}

// Noted is what one event says that matters to whoever would go on with its answer.
type Noted struct {
	IDs      []uint32 // of tokens that the event brings; valid until the next event
	Text     bool     // it has text of the answer
	Thought  bool     // it has text of a thought
	Finished bool     // it ends the answer
	Other    bool     // it has something else that was generated, or what cannot be read
}

// Watch makes the stripper note what Noted tells of each event.
func (s *Stripper) Watch() { s.watch = true }

// Noted tells of the last event.
func (s *Stripper) Noted() Noted { return s.noted }

// edit replaces a part of an object.
type edit struct {
	at   span
	with string
}

// NewStripper returns a Stripper for the answer to a request to which ask was added.
func NewStripper(ask Ask) *Stripper { return &Stripper{ask: ask} }

// An event without these has nothing to take out. That it has them proves nothing: text may hold them too.
var (
	hintIDs    = []byte(`token_ids"`)
	hintUsage  = []byte(`"usage"`)
	hintFinish = []byte(`"finish_reason":"`)
)

// Event appends to out what the client is to get of a whole event of a stream: mostly the event itself, sometimes nothing,
// and sometimes one that was held back before it.
func (s *Stripper) Event(out, raw []byte) []byte {
	s.noted = Noted{IDs: s.noted.IDs[:0]}
	if !s.concerns(raw) {
		return append(s.Flush(out), raw...)
	}
	lo, hi := dataOf(raw)
	d, ok := s.scan(raw[lo:hi])
	if !ok {
		s.noted.Other = !bytes.Equal(bytes.TrimSpace(raw[lo:hi]), doneMarker) && bytes.Contains(raw, []byte("data:"))
		return append(s.Flush(out), raw...)
	}
	c := s.read(&d)
	s.theirs = s.theirs || c.usage && c.choices > 0
	switch {
	case s.asksUsage() && c.usageOnly:
		return s.release(out, c.fingerprint)
	case c.choices > 0 && c.idsOnly == c.choices:
		return out
	}
	out = s.Flush(out)
	from := len(out)
	out = s.apply(append(out, raw[:lo]...), raw[lo:hi])
	brace := bytes.LastIndexByte(out[from:], '}')
	out = append(out, raw[hi:]...)
	if s.asksUsage() && c.finished && s.ask.Style == StyleNull && c.fingerprint == nil {
		s.held, s.brace = append(s.held, out[from:]...), brace
		return out[:from]
	}
	return out
}

// concerns reports whether there may be something to do in an event.
func (s *Stripper) concerns(raw []byte) bool {
	return s.watch || len(s.ask.Fields) > 0 && bytes.Contains(raw, hintIDs) ||
		s.asksUsage() && (bytes.Contains(raw, hintUsage) || bytes.Contains(raw, hintFinish))
}

// asksUsage reports whether usage is to be taken out. An engine that puts usage on chunks with choices was not asked for
// that: it does so always.
func (s *Stripper) asksUsage() bool { return s.ask.Usage && !s.theirs }

// Flush appends what is held back. It is to be called when the stream has ended.
func (s *Stripper) Flush(out []byte) []byte {
	if len(s.held) == 0 {
		return out
	}
	out = append(out, s.held...)
	s.held = s.held[:0]
	return out
}

// release appends the event that is held back with the fingerprint where the engine would have put it: vLLM stamps the
// last chunk of a choice, or in its place the one with the usage.
func (s *Stripper) release(out, fingerprint []byte) []byte {
	if len(s.held) == 0 || fingerprint == nil {
		return s.Flush(out)
	}
	out = append(out, s.held[:s.brace]...)
	out = append(append(out, `,"system_fingerprint":`...), fingerprint...)
	out = append(out, s.held[s.brace:]...)
	s.held = s.held[:0]
	return out
}

// Whole returns what the client is to get of an answer that is no stream: body itself when nothing is taken out.
func (s *Stripper) Whole(body []byte) []byte {
	if len(s.ask.Fields) == 0 || !bytes.Contains(body, hintIDs) {
		return body
	}
	d, ok := s.scan(body)
	if !ok {
		return body
	}
	if s.read(&d); len(s.edits) == 0 {
		return body
	}
	return s.apply(make([]byte, 0, len(body)), body)
}

// Prompt gives away the JSON list of the prompt's token ids, for ParseIDs: nil when none has come so far, and once it was
// given away.
func (s *Stripper) Prompt() []byte {
	list := s.prompt
	s.prompt = nil
	return list
}

// PromptSize returns the length in bytes of what Prompt gives away.
func (s *Stripper) PromptSize() int { return len(s.prompt) }

// dataOf returns where the data of an event with one data line is; an empty span when there is none, or more.
func dataOf(raw []byte) (lo, hi int) {
	const name = "data:"
	if lo = bytes.Index(raw, []byte(name)); lo < 0 || lo > 0 && raw[lo-1] != '\n' {
		return 0, 0
	}
	lo += len(name)
	line := bytes.IndexByte(raw[lo:], '\n')
	if line < 0 || bytes.Contains(raw[lo+line:], []byte("\n"+name)) {
		return 0, 0
	}
	return lo, lo + line
}

// scan checks that data is a JSON object.
func (s *Stripper) scan(data []byte) (doc, bool) {
	d, err := scanInto(s.long[:0], data, answerDepth)
	if err != nil || d.kind(d.root()) != kindObject {
		return doc{}, false
	}
	s.long = d.long
	return d, true
}

// chunk is what an event's object says that matters here.
type chunk struct {
	choices     int
	idsOnly     int    // choices with token ids that say nothing else
	finished    bool   // a choice ends
	usage       bool   // there is usage
	usageOnly   bool   // and the list of choices is empty
	fingerprint []byte // as JSON; nil when there is none
}

// read looks at an object and notes the edits that it needs.
func (s *Stripper) read(d *doc) (c chunk) {
	s.edits = s.edits[:0]
	var list span
	for m := s.members(d, d.root()); m.next(); {
		switch string(m.key) {
		case "choices":
			list = m.value
		case "usage":
			c.usage = d.kind(m.value) == kindObject
		case "system_fingerprint":
			if d.kind(m.value) == kindString {
				c.fingerprint = d.b[m.value.lo:m.value.hi]
			}
		}
	}
	if d.kind(list) != kindArray {
		return c
	}
	for each := d.in(list); ; c.choices++ {
		v, ok := each.elem()
		if !ok {
			break
		}
		idsOnly, finished := s.choice(d, v)
		c.finished = c.finished || finished
		if idsOnly {
			c.idsOnly++
		}
	}
	c.usageOnly = c.usage && c.choices == 0
	slices.SortFunc(s.edits, func(a, b edit) int { return int(a.at.lo) - int(b.at.lo) })
	return c
}

// choice notes the edits for one choice. idsOnly says that it is there for its token ids alone: without them vLLM makes no
// chunk of a token that its parser swallows, unless there are log probabilities to tell or the answer ends.
func (s *Stripper) choice(d *doc, v span) (idsOnly, finished bool) {
	if d.kind(v) != kindObject {
		return false, false
	}
	edits, empty, probabilities := len(s.edits), false, false
	for m := s.members(d, v); m.next(); {
		switch string(m.key) {
		case "delta":
			empty = d.saysNothing(m.value)
			s.noteDelta(d, m.value)
		case "text":
			s.noted.Text = s.noted.Text || !d.empty(m.value)
		case "finish_reason":
			finished = d.kind(m.value) == kindString
			s.noted.Finished = s.noted.Finished || finished
		case "logprobs":
			probabilities = d.kind(m.value) != 0
		}
	}
	return empty && !finished && !probabilities && len(s.edits) > edits, finished
}

// noteDelta notes what a chunk of a chat adds to the answer.
func (s *Stripper) noteDelta(d *doc, v span) {
	if !s.watch {
		return
	}
	var delta members
	d.fill(v, &delta)
	s.noted.Text = s.noted.Text || !d.empty(delta[nContent])
	s.noted.Thought = s.noted.Thought || !d.empty(delta[nReasoning]) || !d.empty(delta[nReasoningContent])
	delta[nContent], delta[nReasoning], delta[nReasoningContent] = span{}, span{}, span{}
	s.noted.Other = s.noted.Other || d.carries(&delta)
}

// noteIDs notes the ids of a list.
func (s *Stripper) noteIDs(d *doc, v span) {
	for c := d.in(v); s.watch; {
		id, ok := c.token()
		if !ok {
			s.noted.Other = s.noted.Other || !c.ended
			return
		}
		s.noted.IDs = append(s.noted.IDs, id)
	}
}

// saysNothing reports whether a delta has no member, or none but the null that vLLM 0.11 to 0.15 write in every delta.
func (d *doc) saysNothing(delta span) bool {
	if d.kind(delta) != kindObject {
		return false
	}
	for c := d.in(delta); ; {
		key, v, ok := c.member()
		if !ok {
			return true
		}
		if string(key) != "reasoning_content" || d.kind(v) != 0 {
			return false
		}
	}
}

// apply appends data with the edits done.
func (s *Stripper) apply(out, data []byte) []byte {
	at := uint32(0)
	for _, e := range s.edits {
		out = append(append(out, data[at:e.at.lo]...), e.with...)
		at = e.at.hi
	}
	return append(out, data[at:]...)
}

// strippedMembers goes over the members of an object that stay; for those that go it notes edits.
type strippedMembers struct {
	s     *Stripper
	c     cursor
	end   uint32 // of what is done with: the last member, or the comma after it if nothing is left before
	kept  bool   // a member before stays
	key   []byte
	value span
}

func (s *Stripper) members(d *doc, v span) strippedMembers {
	return strippedMembers{s: s, c: d.in(v), end: v.lo + 1}
}

// next goes to the next member that stays, and reports whether there is one.
func (m *strippedMembers) next() bool {
	for {
		key, v, ok := m.c.member()
		if !ok {
			return false
		}
		if m.s.takes(m.c.d, key, v) {
			m.remove(v)
			continue
		}
		m.key, m.value, m.end, m.kept = key, v, v.hi, true
		return true
	}
}

// takes reports whether a member is token ids that the client did not ask for, and keeps those of the prompt.
func (s *Stripper) takes(d *doc, key []byte, v span) bool {
	if len(s.ask.Fields) == 0 || d.kind(v) != kindArray {
		return false
	}
	switch string(key) {
	case "prompt_token_ids":
		if !s.seen {
			s.seen, s.prompt = true, bytes.Clone(d.b[v.lo:v.hi])
		}
		return true
	case "token_ids", "response_token_ids": // the latter is SGLang's name in chats
		s.noteIDs(d, v)
		return true
	}
	return false
}

// remove notes the edit for a member that ends with v.
func (m *strippedMembers) remove(v span) {
	switch d := m.c.d; {
	case m.s.ask.Style == StyleNull:
		m.s.edits = append(m.s.edits, edit{v, "null"})
		m.end, m.kept = v.hi, true
		return
	case m.kept: // with the comma before it
		m.s.edits = append(m.s.edits, edit{span{m.end, v.hi}, ""})
		m.end = v.hi
	default: // with the comma after it
		end := v.hi
		if i := d.space(end); d.b[i] == ',' {
			end = i + 1
		}
		m.s.edits = append(m.s.edits, edit{span{m.end, end}, ""})
		m.end = end
	}
}
