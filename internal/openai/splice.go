package openai

import (
	"bytes"
	"slices"
	"strconv"
)

// Manner is how an engine writes the chunks of one stream: a chunk of text, cut around what differs between two of them. It
// holds the stream's id, time and model.
type Manner struct {
	parts []string // one more than holes
	holes []hole
	head  string // the members that all chunks of a stream have in common
	usage bool   // every chunk has usage
}

// hole is what stands between two parts of a Manner.
type hole uint8

const (
	holeText       hole = iota // as a JSON string
	holeFinish                 // why the answer ended, or null
	holeFinishLast             // the same as a member, where chunks have none before the end
	holeCompletion             // number of tokens of the answer
	holeTotal                  // and of the prompt
)

// MannerOf returns the manner of an event; nil when it is not a chunk with one choice that has text of the answer and nothing
// else that was generated. Of a chunk with a role none is made: the role comes once.
func MannerOf(event []byte) *Manner {
	lo, hi := dataOf(event)
	d, err := scan(event[lo:hi], answerDepth)
	if err != nil || d.kind(d.root()) != kindObject {
		return nil
	}
	var m mannerReader
	m.d = &d
	if !m.top() {
		return nil
	}
	return m.manner(event, lo)
}

// mannerReader finds the holes of a chunk.
type mannerReader struct {
	d     *doc
	found []found
	head  []byte
	usage bool
}

// found is a hole and where it is in the data.
type found struct {
	at   span
	what hole
}

func (m *mannerReader) hole(at span, what hole) { m.found = append(m.found, found{at, what}) }

func (m *mannerReader) manner(event []byte, lo int) *Manner {
	slices.SortFunc(m.found, func(a, b found) int { return int(a.at.lo) - int(b.at.lo) })
	out, at := &Manner{head: string(m.head), usage: m.usage}, 0
	for _, f := range m.found {
		out.parts = append(out.parts, string(event[at:lo+int(f.at.lo)]))
		out.holes = append(out.holes, f.what)
		at = lo + int(f.at.hi)
	}
	out.parts = append(out.parts, string(event[at:]))
	return out
}

// top reads the chunk and reports whether it is one of text.
func (m *mannerReader) top() bool {
	d, ok := m.d, false
	for c := d.in(d.root()); ; {
		key, v, more := c.member()
		if !more {
			return ok
		}
		switch string(key) {
		case "choices":
			if ok = m.choices(v); !ok {
				return false
			}
		case "usage":
			m.readUsage(v)
		case "id", "object", "created", "model":
			m.head = append(append(append(m.head, '"'), key...), `":`...)
			m.head = append(append(m.head, d.b[v.lo:v.hi]...), ',')
		}
	}
}

// choices reads the list of choices, which must have one.
func (m *mannerReader) choices(v span) bool {
	d := m.d
	if d.kind(v) != kindArray {
		return false
	}
	c := d.in(v)
	choice, ok := c.elem()
	if _, more := c.elem(); !ok || more || d.kind(choice) != kindObject {
		return false
	}
	text, finish := false, false
	for c := d.in(choice); ; {
		key, v, more := c.member()
		if !more {
			break
		}
		switch string(key) {
		case "text":
			text = d.kind(v) == kindString
			m.hole(v, holeText)
		case "delta":
			text = m.delta(v)
		case "finish_reason":
			if finish = d.kind(v) == 0; !finish {
				return false
			}
			m.hole(v, holeFinish)
		}
	}
	if !finish {
		m.hole(span{choice.hi - 1, choice.hi - 1}, holeFinishLast)
	}
	return text
}

// delta reads what a chunk of a chat adds to the answer: text alone, even if it is empty.
func (m *mannerReader) delta(v span) bool {
	d, text := m.d, false
	if d.kind(v) != kindObject {
		return false
	}
	for c := d.in(v); ; {
		key, v, more := c.member()
		switch {
		case !more:
			return text
		case string(key) == "content" && d.kind(v) == kindString:
			text = true
			m.hole(v, holeText)
		case !d.empty(v) && !d.emptyArray(v):
			return false
		}
	}
}

func (m *mannerReader) readUsage(v span) {
	d := m.d
	if m.usage = d.kind(v) == kindObject; !m.usage {
		return
	}
	for c := d.in(v); ; {
		key, v, more := c.member()
		if !more {
			return
		}
		switch string(key) {
		case "completion_tokens":
			m.hole(v, holeCompletion)
		case "total_tokens":
			m.hole(v, holeTotal)
		}
	}
}

// chunk appends a chunk with a text and a reason to finish, both as JSON.
func (m *Manner) chunk(out, text, finish []byte, prompt, completion int) []byte {
	for i, h := range m.holes {
		out = append(out, m.parts[i]...)
		switch h {
		case holeText:
			out = append(out, text...)
		case holeFinish:
			out = append(out, finish...)
		case holeFinishLast:
			if finish[0] == '"' {
				out = append(append(out, `,"finish_reason":`...), finish...)
			}
		case holeCompletion:
			out = strconv.AppendInt(out, int64(completion), 10)
		case holeTotal:
			out = strconv.AppendInt(out, int64(prompt+completion), 10)
		}
	}
	return append(out, m.parts[len(m.holes)]...)
}

// end appends the chunk with the usage of the whole answer, and nothing else.
func (m *Manner) end(out []byte, prompt, completion int) []byte {
	out = append(append(out, "data: {"...), m.head...)
	out = append(out, `"choices":[],"usage":{"prompt_tokens":`...)
	out = strconv.AppendInt(out, int64(prompt), 10)
	out = append(out, `,"total_tokens":`...)
	out = strconv.AppendInt(out, int64(prompt+completion), 10)
	out = append(out, `,"completion_tokens":`...)
	out = strconv.AppendInt(out, int64(completion), 10)
	return append(out, "}}\n\n"...)
}

// Splicer writes what an engine answers to a Continuation as the rest of the stream that another engine began. It is for one
// attempt.
type Splicer struct {
	Manner  *Manner
	Usage   bool // the stream ends with usage
	Counted bool // the client has that already
	Prompt  int  // tokens of the original prompt
	Before  int  // tokens of the answer that other engines made
	Now     int  // and those with what is given to Event next

	made     int // tokens that the engine says it made
	finished bool
	done     bool
}

// Done reports whether the stream is complete.
func (s *Splicer) Done() bool { return s.done }

// End appends the end of a stream whose last chunk of text has come.
func (s *Splicer) End(out []byte) []byte {
	if (s.Usage || s.Manner.usage) && !s.Counted {
		total := s.Before + s.made
		if s.made == 0 {
			total = s.Now
		}
		out = s.Manner.end(out, s.Prompt, total)
	}
	s.done = true
	return append(append(append(out, "data: "...), doneMarker...), "\n\n"...)
}

// Event appends what the client is to get of an event: a chunk of text, the end, or nothing. It is false when the event is
// not what may follow: an error, a thought, a call of a tool, or nothing that is understood.
func (s *Splicer) Event(out, raw []byte) ([]byte, bool) {
	lo, hi := dataOf(raw)
	data := raw[lo:hi]
	switch {
	case hi == 0: // a comment
		return out, !bytes.Contains(raw, []byte("data:"))
	case bytes.Equal(bytes.TrimSpace(data), doneMarker):
		if !s.finished || s.done {
			return out, false
		}
		return s.End(out), true
	}
	d, err := scan(data, answerDepth)
	if err != nil || d.kind(d.root()) != kindObject {
		return out, false
	}
	var top members
	d.fill(d.root(), &top)
	if top[nError].ok() || string(d.word(top[nObject])) == "error" {
		return out, false
	}
	var u Usage
	if u.merge(&d, top[nUsage]) {
		s.made = max(s.made, u.CompletionTokens)
	}
	if d.emptyArray(top[nChoices]) {
		return out, true
	}
	return s.choice(out, &d, top[nChoices])
}

var (
	noText = []byte(`""`)
	null   = []byte("null")
)

// choice appends the chunk for the only one of a list of choices.
func (s *Splicer) choice(out []byte, d *doc, list span) ([]byte, bool) {
	if d.kind(list) != kindArray {
		return out, false
	}
	c := d.in(list)
	v, _ := c.elem()
	if _, more := c.elem(); more {
		return out, false
	}
	var choice, delta members
	d.fill(v, &choice)
	d.fill(choice[nDelta], &delta)
	text := choice.firstOf(nText)
	if content := delta[nContent]; !text.ok() {
		text = content
	}
	delta[nContent] = span{}
	if d.carries(&delta) || text.ok() && d.kind(text) != kindString {
		return out, false
	}
	finish := choice[nFinishReason]
	if s.finished || d.empty(text) && !finish.ok() {
		return out, true
	}
	words, reason := noText, null
	if text.ok() {
		words = d.b[text.lo:text.hi]
	}
	if finish.ok() {
		if d.kind(finish) != kindString {
			return out, false
		}
		reason, s.finished = d.b[finish.lo:finish.hi], true
	}
	return s.Manner.chunk(out, words, reason, s.Prompt, max(s.Now, s.Before+s.made)), true
}
