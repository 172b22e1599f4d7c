package forward

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kvmesh/kvmesh/internal/openai"
)

// learner is what one answer is to teach: it adds to the request what the booking asks for, and takes it out of the
// answer before the client gets it.
type learner struct {
	b     Booking
	ask   openai.Ask
	strip *openai.Stripper // nil when nothing was added
	body  []byte           // of a request whose prompt is token ids
}

// maxRefusal bounds how much of an engine's refusal is read.
const maxRefusal = 64 << 10

// maxStripped bounds an answer that is no stream and from which something must be taken out: it has to be read whole.
const maxStripped = 64 << 20

// askAndLearn sends the request with what the booking asks for. When the engine refuses it for that, it is sent again as it
// came.
func (o *Owner) askAndLearn(
	ctx context.Context, e LocalEngine, target string, c *call, body []byte, l *learner,
) (*http.Response, error) {
	if c.Traits.Has(openai.TraitTokenPrompt) && l.b.WantsPrompt() {
		l.body = body
	}
	if l.ask.Empty() {
		return o.ask(ctx, e, target, c, body)
	}
	resp, err := o.ask(ctx, e, target, c, l.ask.Apply(body))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusUnprocessableEntity {
		l.strip = openai.NewStripper(l.ask)
		return resp, nil
	}
	refusal, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	field, ours := l.ask.RefusedIn(refusal)
	if !ours {
		resp.Body = readCloser{io.MultiReader(bytes.NewReader(refusal), resp.Body), resp.Body}
		return resp, nil
	}
	resp.Body.Close()
	l.b.AskRefused(field)
	l.ask = openai.Ask{}
	return o.ask(ctx, e, target, c, body)
}

type readCloser struct {
	io.Reader
	io.Closer
}

// prepare takes what was added out of an answer that is no stream, before its header goes out with its length.
func (l *learner) prepare(resp *http.Response) error {
	if l.strip == nil || streams(resp) || resp.StatusCode >= 300 {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStripped+1))
	if err != nil {
		return err
	}
	if len(body) > maxStripped {
		return fmt.Errorf("answer with token ids is above %d bytes", maxStripped)
	}
	body = l.strip.Whole(body)
	if resp.Header.Get("Content-Length") != "" {
		resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	resp.ContentLength = int64(len(body))
	resp.Body = readCloser{bytes.NewReader(body), resp.Body}
	return nil
}

// event appends what the client is to get of an event.
func (l *learner) event(out, raw []byte) []byte {
	if l.strip == nil {
		return append(out, raw...)
	}
	return l.strip.Event(out, raw)
}

// flush appends what was held back when the stream has ended.
func (l *learner) flush(out []byte) []byte {
	if l.strip == nil {
		return out
	}
	return l.strip.Flush(out)
}

// learn reads the prompt's token ids, once they have come, after what was before them has gone to the client.
func (l *learner) learn() {
	switch {
	case l.body != nil:
		begin := time.Now()
		ids := openai.PromptIDs(l.body)
		l.body = nil
		l.b.Learn(ids, time.Since(begin))
	case l.strip != nil && l.b.WantsPrompt():
		if list := l.strip.Prompt(); list != nil {
			begin := time.Now()
			l.b.Learn(openai.ParseIDs(list), time.Since(begin))
		}
	}
}
