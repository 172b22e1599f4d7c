package openai

import (
	"bytes"
	"slices"
)

// Stripper takes out of an answer what an Ask has put there, so that the client gets the bytes that the engine would have
// sent without it. It edits the bytes in place of writing them anew, and leaves alone what it does not understand. It is
// for one answer and one goroutine.
type Stripper struct {
	ask Ask

	prompt []byte // the first list of prompt token ids, as JSON
	held   []byte // an event that ends a choice, while the one with the usage may follow
	edits  []edit
	buf    []byte
}

// edit replaces a part of an event.
type edit struct {
	at   span
	with string
}

// NewStripper returns a Stripper for the answer to a request that had ask added.
func NewStripper(ask Ask) *Stripper { return &Stripper{ask: ask} }

var (
	hintIDs    = []byte(`token_ids"`)
	hintUsage  = []byte(`"usage"`)
	hintFinish = []byte(`"finish_reason":"`)
)

// Event appends to out what the client is to get of a whole event of a stream: often the event itself, sometimes nothing,
// and sometimes one that was held back before it.
func (s *Stripper) Event(out, raw []byte) []byte {
	ids := len(s.ask.Fields) > 0 && bytes.Contains(raw, hintIDs)
	usage := s.ask.Usage && (bytes.Contains(raw, hintUsage) || bytes.Contains(raw, hintFinish))
	if !ids && !usage {
		return append(s.Flush(out), raw...)
	}
	lo, hi, ok := dataSpan(raw)
	if !ok {
		return append(s.Flush(out), raw...)
	}
	c, ok := s.read(raw[lo:hi], false)
	switch {
	case !ok:
		return append(s.Flush(out), raw...)
	case s.ask.Usage && c.onlyUsage:
		return s.release(out, c.fingerprint)
	case ids && c.onlyIDs:
		return out
	}
	out = s.Flush(out)
	s.buf = s.apply(append(s.buf[:0], raw[:lo]...), raw[lo:hi])
	s.buf = append(s.buf, raw[hi:]...)
	if s.ask.Usage && c.finished {
		s.held = append(s.held[:0], s.buf...)
		return out
	}
	return append(out, s.buf...)
}

// Flush appends what is still held back. It is to be called when the stream has ended.
func (s *Stripper) Flush(out []byte) []byte {
	out = append(out, s.held...)
	s.held = s.held[:0]
	return out
}

// release appends the event that ends the choice, with the fingerprint that the engine would have put there: vLLM stamps
// the last chunk of a stream, which is that of the usage when there is one.
func (s *Stripper) release(out, fingerprint []byte) []byte {
	if len(fingerprint) > 0 && s.ask.Style == StyleNull && !bytes.Contains(s.held, []byte(`"system_fingerprint"`)) {
		if i := bytes.LastIndexByte(s.held, '}'); i >= 0 {
			out = append(out, s.held[:i]...)
			out = append(append(out, `,"system_fingerprint":`...), fingerprint...)
			out = append(out, s.held[i:]...)
			s.held = s.held[:0]
			return out
		}
	}
	return s.Flush(out)
}

// Whole returns what the client is to get of an answer that is no stream.
func (s *Stripper) Whole(body []byte) []byte {
	if len(s.ask.Fields) == 0 || !bytes.Contains(body, hintIDs) {
		return body
	}
	if _, ok := s.read(body, true); !ok {
		return body
	}
	return s.apply(make([]byte, 0, len(body)), body)
}

// Prompt returns the JSON list of the prompt's token ids, nil when none has come so far. It is for ParseIDs.
func (s *Stripper) Prompt() []byte { return s.prompt }

// dataSpan returns where the data of an event with one data line is.
func dataSpan(raw []byte) (lo, hi int, ok bool) {
	const name = "data:"
	lo = bytes.Index(raw, []byte(name))
	if lo != 0 && (lo < 0 || raw[lo-1] != '\n') {
		return 0, 0, false
	}
	lo += len(name)
	hi = lo + bytes.IndexByte(raw[lo:], '\n')
	if hi < lo || bytes.Contains(raw[hi:], []byte("\n"+name)) {
		return 0, 0, false
	}
	for hi > lo && raw[hi-1] == '\r' {
		hi--
	}
	for lo < hi && raw[lo] == ' ' {
		lo++
	}
	return lo, hi, true
}

// chunk is what an event says that matters for stripping.
type chunk struct {
	onlyUsage   bool // no choice, but usage
	onlyIDs     bool // nothing but token ids
	finished    bool // a choice ends
	fingerprint []byte
}

// read notes the edits for one JSON object.
func (s *Stripper) read(data []byte, whole bool) (c chunk, ok bool) {
	s.edits = s.edits[:0]
	d, err := scan(data, answerDepth)
	if err != nil || d.kind(d.root()) != kindObject {
		return c, false
	}
	var choices, usage span
	s.object(&d, d.root(), func(key []byte, v span) {
		switch string(key) {
		case "choices":
			choices = v
		case "usage":
			usage = v
		case "system_fingerprint":
			c.fingerprint = d.b[v.lo:v.hi]
		}
	})
	if d.kind(choices) != kindArray {
		return c, true
	}
	n, bare := 0, 0
	for each := d.in(choices); ; n++ {
		v, more := each.elem()
		if !more {
			break
		}
		if d.kind(v) != kindObject {
			continue
		}
		empty, finished := s.choice(&d, v)
		c.finished = c.finished || finished
		if empty && !finished {
			bare++
		}
	}
	c.onlyUsage = n == 0 && d.kind(usage) == kindObject
	c.onlyIDs = !whole && n > 0 && bare == n && d.kind(usage) == 0 && len(s.edits) > 0
	slices.SortFunc(s.edits, func(a, b edit) int { return int(a.at.lo) - int(b.at.lo) })
	return c, true
}

// choice notes the edits for one choice. empty says that its delta is there and has no member.
func (s *Stripper) choice(d *doc, v span) (empty, finished bool) {
	s.object(d, v, func(key []byte, v span) {
		switch string(key) {
		case "delta":
			empty = d.kind(v) == kindObject && d.b[d.space(v.lo+1)] == '}'
		case "finish_reason":
			finished = d.kind(v) == kindString
		}
	})
	return empty, finished
}

// object goes over the members of an object, notes the edits for lists of token ids, and shows the others to see.
func (s *Stripper) object(d *doc, v span, see func(key []byte, v span)) {
	before := v.lo + 1 // where the last member ended
	first := true
	for c := d.in(v); ; {
		key, v, ok := c.member()
		if !ok {
			return
		}
		isPrompt := string(key) == "prompt_token_ids"
		if (isPrompt || string(key) == "token_ids") && d.kind(v) == kindArray {
			if isPrompt && s.prompt == nil {
				s.prompt = bytes.Clone(d.b[v.lo:v.hi])
			}
			s.edits = append(s.edits, s.removal(d, before, v, first))
		} else {
			see(key, v)
		}
		before, first = v.hi, false
	}
}

// removal is the edit for a member that ends with v; the one before it ended at before.
func (s *Stripper) removal(d *doc, before uint32, v span, first bool) edit {
	if s.ask.Style == StyleNull {
		return edit{v, "null"}
	}
	end := v.hi
	if first { // the comma behind it goes
		if i := d.space(end); d.b[i] == ',' {
			end = i + 1
		}
	}
	return edit{span{before, end}, ""}
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
