package openai

import "bytes"

// Event is one event of a stream.
type Event struct {
	Raw     []byte // the whole event with the blank line that ends it; valid until the yield returns
	Content bool   // the first event of the stream that carries generated content; no later one is marked
	Done    bool   // the event that ends the answer: [DONE], response.completed and its like, message_stop
	Failed  bool   // the engine reports an error inside the stream
}

// finding is what an event's data says.
type finding struct {
	content, done, failed bool
}

var doneMarker = []byte("[DONE]")

// hints are the texts of which data of the route must hold one to be worth reading once the first content is known.
// That an event holds one proves nothing; that it holds none proves that it has no usage, no error and no end.
func hints(route Route) [][]byte {
	hints := [][]byte{[]byte(`"usage"`), []byte(`"error"`)}
	switch route {
	case RouteResponses, RouteResponseByID:
		for _, s := range []string{"response.completed", "response.incomplete", "response.failed"} {
			hints = append(hints, []byte(s))
		}
	case RouteMessages:
		hints = append(hints, []byte("message_stop"))
	default: // the others end with doneMarker
	}
	// A name or type may be written with escapes, which no engine does: then the whole event is read.
	return append(hints, []byte(`\u00`))
}

// look reads the data of one event.
func (s *Stream) look(data []byte) finding {
	if bytes.Equal(bytes.TrimSpace(data), doneMarker) {
		return finding{done: true}
	}
	if s.started && !s.hinted(data) {
		return finding{}
	}
	d, err := scan(data, answerDepth)
	if err != nil || d.kind(d.root()) != kindObject {
		// What cannot be read may be content: after it nothing is sent again.
		return finding{content: true}
	}
	var top members
	d.fill(d.root(), &top)
	switch s.route {
	case RouteResponses, RouteResponseByID:
		return s.lookResponse(&d, &top)
	case RouteMessages:
		return s.lookMessage(&d, &top)
	default:
		return s.lookChunk(&d, &top)
	}
}

func (s *Stream) hinted(data []byte) bool {
	for _, h := range s.hints {
		if bytes.Contains(data, h) {
			return true
		}
	}
	return false
}

// lookChunk reads a chunk of the chat or completions route.
func (s *Stream) lookChunk(d *doc, top *members) finding {
	s.take(d, top[nUsage])
	f := finding{failed: top[nError].ok() || string(d.word(top[nObject])) == "error"}
	if s.started || d.kind(top[nChoices]) != kindArray {
		return f
	}
	for c := d.in(top[nChoices]); !f.content; {
		v, ok := c.elem()
		if !ok {
			break
		}
		var choice, delta members
		d.fill(v, &choice)
		d.fill(choice[nDelta], &delta)
		f.content = choice[nFinishReason].ok() || !d.empty(choice[nText]) || d.carries(&delta)
	}
	return f
}

// carries reports whether a delta of the chat route has anything that was generated.
func (d *doc) carries(delta *members) bool {
	for _, n := range []name{nContent, nReasoning, nReasoningContent, nRefusal} {
		if !d.empty(delta[n]) {
			return true
		}
	}
	return !d.emptyArray(delta[nToolCalls]) || delta[nFunctionCall].ok() || delta[nAudio].ok()
}

// lookResponse reads an event of the Responses route.
func (s *Stream) lookResponse(d *doc, top *members) finding {
	var response, item members
	d.fill(top[nResponse], &response)
	s.take(d, response[nUsage])
	switch t := d.word(top[nType]); string(t) {
	case "response.completed", "response.incomplete":
		return finding{content: true, done: true}
	case "response.failed":
		return finding{done: true, failed: true}
	case "error":
		return finding{failed: true}
	case "response.output_item.added":
		d.fill(top[nItem], &item)
		return finding{content: d.itemType(&item) == itemCall}
	default:
		delta := bytes.HasSuffix(t, []byte(".delta")) && !d.empty(top[nDelta])
		return finding{content: delta || bytes.HasSuffix(t, []byte(".done")), failed: top[nError].ok()}
	}
}

// lookMessage reads an event of the Messages route.
func (s *Stream) lookMessage(d *doc, top *members) finding {
	var message, block, delta members
	d.fill(top[nMessage], &message)
	s.take(d, message[nUsage])
	s.take(d, top[nUsage])
	d.fill(top[nDelta], &delta)
	switch string(d.word(top[nType])) {
	case "content_block_start":
		d.fill(top[nContentBlock], &block)
		tool := string(d.word(block[nType])) == "tool_use"
		return finding{content: tool || !d.empty(block[nText]) || !d.empty(block[nThinking])}
	case "content_block_delta":
		return finding{content: !d.empty(delta[nText]) || !d.empty(delta[nThinking]) || !d.empty(delta[nPartialJSON])}
	case "message_delta":
		return finding{content: delta[nStopReason].ok()}
	case "message_stop":
		return finding{done: true}
	case "error":
		return finding{failed: true}
	}
	return finding{failed: top[nError].ok()}
}

// take keeps the usage that v says.
func (s *Stream) take(d *doc, v span) {
	if d.kind(v) == kindObject && s.usage.merge(d, v) {
		s.hasUsage = true
	}
}
