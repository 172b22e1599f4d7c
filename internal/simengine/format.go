package simengine

import (
	"bytes"
	"encoding/json"
	"slices"
)

// format writes one API's answer.
type format interface {
	// open writes what comes before any token, right after the headers.
	open(s *sse)
	// token writes token i of the answer of job number choice.
	token(s *sse, choice, i int)
	// close writes what comes after the last token.
	close(s *sse)
	// whole returns the body of an answer that is not streamed.
	whole() any
}

// writer is what all formats of the OpenAI routes have in common.
type writer struct {
	e *Engine
	c *call
	// plain is the chunk of an ordinary token before and after its text: most of what an engine writes differs in
	// nothing else, and making it anew each time costs as much as sending it.
	plain [2][]byte
}

func (w *writer) open(*sse) {}

// null is the value of fields where an engine says null; they are nil where it leaves the key out.
var null = json.RawMessage("null")

// ordinary reports whether a token's chunk is the plain one. Calls with several choices have none.
func (w *writer) ordinary(thought string, last bool) bool {
	return thought == "" && !last && len(w.c.jobs) == 1 && !w.c.wantOutput && !w.e.continuousUsage(w.c)
}

// ordinaryText writes the chunk of an ordinary token; chunk makes one with a given text.
func (w *writer) ordinaryText(s *sse, text string, chunk func(text string) any) {
	if w.plain[0] == nil {
		const mark = "\x00text"
		b := marshal([]byte("data: "), chunk(mark))
		before, after, _ := bytes.Cut(b, marshal(nil, mark))
		w.plain = [2][]byte{slices.Clone(before), append(slices.Clone(after), "\n\n"...)}
	}
	s.plain(w.plain, text)
}

// ids is a field with token ids: the list when wanted, else null or nothing.
func (w *writer) ids(wanted bool, ids []Token) json.RawMessage {
	switch {
	case wanted:
		return marshal(nil, ids)
	case w.c.nullIDs:
		return null
	}
	return nil
}

func (w *writer) promptIDs(j *job) json.RawMessage {
	return w.ids(w.c.wantPrompt, j.seq.tokens[:j.prompt])
}

// isLast reports whether token i is the last of its answer.
func isLast(j *job, i int) bool { return i+1 == len(j.answer()) }

// usageAfter counts a choice after its token i, for usage in the middle of a stream.
func (w *writer) usageAfter(choice, i int) counts { return w.e.countChoice(w.c.jobs[choice], i+1) }

// matchedStop is SGLang's field for the token that ended an answer.
func (w *writer) matchedStop(j *job) json.RawMessage {
	if !j.stopped {
		return null
	}
	return marshal(nil, w.e.tok.id(tokenEnd))
}

// textOrNull is a field that is null when there is no text.
func textOrNull(s string) json.RawMessage {
	if s == "" {
		return null
	}
	return marshal(nil, s)
}
