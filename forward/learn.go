package forward

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kvmesh/kvmesh/internal/openai"
)

// learner adds to one request what its booking asks for, and takes it out of the answer before the client gets it.
type learner struct {
	b      Booking
	route  openai.Route
	traits openai.Traits
	ask    openai.Ask
	wants  bool             // the prompt's token ids, which the booking gets once
	strip  *openai.Stripper // nil when nothing was added
	body   []byte           // of the request, when the token ids are there
	ids    []uint32         // of the prompt, once they have come, until they are passed on
	tap    *tap             // nil when the ingress does not get the token ids
	plain  bool             // the body is not the client's
}

func newLearner(b Booking, c *call) *learner {
	ask := b.Ask()
	l := &learner{b: b, route: c.route(), traits: c.Traits, plain: c.Continues}
	if c.Tokens && c.Traits.Has(openai.TraitStream) {
		if each := b.AskTokens(); len(each.Fields) > 0 {
			ask.Fields, ask.Style = each.Fields, each.Style
			l.tap = &tap{told: c.Continues}
		}
	}
	l.ask = ask.Within(c.Traits)
	l.wants = b.WantsPrompt() && !c.Continues && !c.Traits.Any(openai.TraitMany|openai.TraitSkipsCache)
	if len(l.ask.Fields) == 0 {
		l.tap = nil
	}
	return l
}

// maxRefusal bounds how much of an engine's refusal is read.
const maxRefusal = 64 << 10

// send sends the request with what is asked. An engine that refuses that is sent the request as it came, and the client
// gets its second answer. Only when that one is good was the field at fault: what a client wrote may be named as well.
func (l *learner) send(body []byte, do func(body []byte) (*http.Response, error)) (*http.Response, error) {
	if !l.plain {
		l.b.NoteBody(body)
	}
	if l.wants && len(l.ask.Fields) == 0 && l.traits.Any(openai.TraitTokenPrompt|openai.TraitChatIDs) {
		l.body = body
	}
	if l.ask.Empty() {
		return do(body)
	}
	resp, err := do(l.ask.Apply(body))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusUnprocessableEntity {
		if l.strip = openai.NewStripper(l.ask); l.tap != nil {
			l.strip.Watch()
		}
		return resp, nil
	}
	refusal, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		resp.Body.Close()
		return nil, fmt.Errorf("read refusal: %w", err)
	}
	field := l.ask.Refusal(refusal)
	l.tap = nil
	if field == "" {
		resp.Body = joinedBody{io.MultiReader(bytes.NewReader(refusal), resp.Body), resp.Body}
		return resp, nil
	}
	resp.Body.Close()
	if resp, err = do(body); err == nil && resp.StatusCode < http.StatusMultipleChoices {
		l.b.AskRefused(field)
	}
	return resp, err
}

// joinedBody is the body of an answer of which a part was read: what is read is not what is closed.
type joinedBody struct {
	io.Reader
	io.Closer
}

// maxStripped bounds an answer that is no stream and out of which something is to be taken: it is read whole before its
// header goes out with its length.
const maxStripped = 64 << 20

// prepare takes what was asked for out of an answer that is no stream.
func (l *learner) prepare(resp *http.Response) error {
	if l.strip == nil || len(l.ask.Fields) == 0 || streams(resp) || resp.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStripped+1))
	if err != nil {
		return fmt.Errorf("read answer with token ids: %w", err)
	}
	if len(body) > maxStripped {
		return fmt.Errorf("answer with token ids is above %d bytes", maxStripped)
	}
	body = l.strip.Whole(body)
	if resp.Header.Get("Content-Length") != "" {
		resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	resp.Body = joinedBody{bytes.NewReader(body), resp.Body}
	return nil
}

// event appends what the client is to get of an event.
func (l *learner) event(out, raw []byte) []byte {
	if l.strip == nil {
		return append(out, raw...)
	}
	before := len(out)
	out = l.strip.Event(out, raw)
	if l.tap != nil {
		l.tap.note(l.strip.Noted(), len(out) > before)
	}
	return out
}

// flush appends what is held back of a stream that has ended.
func (l *learner) flush(out []byte) []byte {
	if l.strip == nil {
		return out
	}
	before := len(out)
	out = l.strip.Flush(out)
	if l.tap != nil {
		l.tap.note(openai.Noted{}, len(out) > before)
	}
	return out
}

// pass hands events on, before them their token ids where the ingress wants these.
func (l *learner) pass(out []byte, content bool, to receiver) error {
	if l.tap == nil || !content {
		return to.data(out, content)
	}
	if len(out) > maxFrame {
		l.tap.next.Flags |= tokensLost // a frame is to have whole events
	}
	if !l.tap.told && l.strip.PromptSize() <= earlyPrompt {
		if err := l.tap.tellPrompt(l.promptIDs(), to); err != nil {
			return err
		}
	}
	if err := l.tap.flush(to); err != nil {
		return err
	}
	if err := to.data(out, content); err != nil {
		return err
	}
	if !l.tap.told {
		return l.tap.tellPrompt(l.promptIDs(), to)
	}
	return nil
}

// promptIDs returns the prompt's token ids once they have come.
func (l *learner) promptIDs() []uint32 {
	switch {
	case l.ids != nil:
	case l.body != nil:
		l.ids, l.body = openai.PromptIDs(l.route, l.body), nil
	case l.strip != nil:
		l.ids = openai.ParseIDs(l.strip.Prompt())
	}
	return l.ids
}

// learn hands the booking the prompt's token ids once they have come. It is to be called when content of the answer has
// been passed on: the prompt was computed then, and nobody waits for its first token any more.
func (l *learner) learn() {
	if l.wants {
		begin := time.Now()
		if ids := l.promptIDs(); len(ids) > 0 {
			l.wants = false
			l.b.Learn(ids, time.Since(begin))
		}
	}
	if !l.wants {
		l.ids = nil
	}
}
