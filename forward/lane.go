package forward

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// maxHeld bounds the bytes held before the first content. Above it they go out, and no other engine is tried: a prompt's
// token ids, or instructions that are repeated, can be that long.
const maxHeld = 1 << 20

// lane is the receiver of one attempt. It holds what comes before the first content, so that until then the request can go
// to another engine; then it claims the answer, and what it gets goes to the client. Only one lane has the answer: one that
// comes later gets errLost, and its attempt is stopped. One goroutine at a time calls its methods.
type lane struct {
	answer   *answer
	ctx      context.Context // of the attempt
	stop     context.CancelCauseFunc
	onAccept func(engine.Load)
	explain  func(http.Header) // sets the explain headers of the attempt; nil for none
	another  func() bool       // reports whether another engine may answer instead: an error of this one then does not count
	part     *part             // what is kept, so that another engine can go on; nil for nothing

	top    *head
	held   []byte
	claims bool // it has claimed the answer
	done   bool // what went to the client ends as a stream that is complete
}

// doneEvent ends the streams of chats and completions.
var doneEvent = []byte("data: [DONE]\n\n")

// lane opens a lane; whoever does so closes it when the attempt has ended.
func (a *answer) lane(ctx context.Context, l lane) *lane {
	l.answer = a
	l.ctx, l.stop = context.WithCancelCause(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open, a.explain = append(a.open, &l), l.explain
	if a.holder != nil {
		l.stop(errLost)
	}
	return &l
}

func (l *lane) close() {
	l.stop(nil)
	l.part.close(l.claims)
	l.answer.mu.Lock()
	defer l.answer.mu.Unlock()
	l.answer.open = slices.DeleteFunc(l.answer.open, func(o *lane) bool { return o == l })
}

// lost reports whether the attempt was stopped because another lane has the answer.
func (l *lane) lost() bool { return errors.Is(context.Cause(l.ctx), errLost) }

func (l *lane) accepted(load engine.Load) error {
	l.onAccept(load)
	return nil
}

func (l *lane) head(h *head) error {
	if l.part.splices() && (h.Status != http.StatusOK || !isEvents(h)) {
		return errTryNext
	}
	if l.answer.skipNotFound && h.Status == http.StatusNotFound {
		return errNotHere
	}
	if l.answer.retryable(h.Status) {
		if err := l.yield(); err != nil {
			return err
		}
		askToRetry(h)
	}
	if l.explain != nil {
		l.explain(h.Header)
	}
	l.top = h
	return nil
}

// yield drops the answer, which is an error, if another engine may answer: then it returns errConceded when that one runs
// already, else errTryNext.
func (l *lane) yield() error {
	switch {
	case l.answer.concede(l):
		return errConceded
	case l.another():
		return errTryNext
	default:
		return nil
	}
}

func (l *lane) tokens(t *tokens) error {
	if l.part != nil {
		l.part.tokens(t)
	}
	return nil
}

func (l *lane) data(b []byte, content bool) error {
	if l.part.splices() {
		if !content {
			return nil
		}
		var err error
		if b, err = l.part.spliced(b); err != nil || len(b) == 0 {
			return err
		}
	}
	err := l.pass(b, content)
	if err != nil || !content {
		return err
	}
	l.done = bytes.HasSuffix(b, doneEvent)
	if l.part != nil {
		l.part.sent(b)
	}
	return nil
}

// pass writes b to the client, or holds it.
func (l *lane) pass(b []byte, content bool) error {
	switch {
	case l.claims:
		return l.answer.write(nil, b)
	case !content && len(l.held)+len(b) <= maxHeld:
		l.held = append(l.held, b...)
		return nil
	default:
		return l.claim(b, false)
	}
}

// end writes what is still held: an answer without content.
func (l *lane) end() error {
	if l.part.splices() && !l.part.splice.Done() {
		return &failure{"truncated", errNoEnd}
	}
	if l.claims {
		return nil
	}
	return l.claim(nil, true)
}

// claim takes the answer and writes what was held, then b.
func (l *lane) claim(b []byte, whole bool) error {
	h, err := l.answer.claim(l, whole)
	if err != nil {
		return err
	}
	l.claims = true
	if l.part != nil {
		l.part.begun()
	}
	if len(l.held) > 0 {
		b, l.held = append(l.held, b...), nil
	}
	return l.answer.write(h, b)
}

// status returns the status of the engine's answer; 0 when there is none.
func (l *lane) status() int {
	if l.top == nil {
		return 0
	}
	return l.top.Status
}
