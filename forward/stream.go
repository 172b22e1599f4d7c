package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Stream is one stream between two agents. Whoever has one ends it with Close, which delivers what was written and drops
// what was not read, or with Cancel, which breaks both directions off: a stream that is not ended keeps its place among
// those that the peer allows.
type Stream interface {
	io.ReadWriteCloser
	CloseWrite() error
	Cancel(code uint64)
	// Context is done when the peer has cancelled or closed, or the connection is lost.
	Context() context.Context
	// SetDeadline bounds reads and writes, those that wait included; zero lifts the bound.
	SetDeadline(time.Time) error
}

// Codes of a cancelled stream. Those below 16 belong to the mesh.
const (
	codeCanceled uint64 = 16 + iota // nobody waits for the answer any more
	codeProtocol                    // the other side broke the protocol
)

// requestDeadline is how long a peer may take to send the REQUEST frame of a stream that it opened.
const requestDeadline = 5 * time.Second

// ServeRequest serves a request stream that a peer opened. It returns when the answer is sent or given up, and leaves
// the stream finished in both directions.
func (o *Owner) ServeRequest(ctx context.Context, s Stream) error {
	_ = s.SetDeadline(time.Now().Add(requestDeadline))
	frames := newFrameReader(s)
	t, payload, err := frames.read()
	if err != nil || t != frameRequest {
		s.Cancel(codeProtocol)
		return fmt.Errorf("read request frame: type %d: %w", t, err)
	}
	c, err := parseCall(payload, o.maxBody)
	if err != nil {
		s.Cancel(codeProtocol)
		return err
	}
	_ = s.SetDeadline(time.Time{})
	ctx, done := within(ctx, c.Left)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.Context(), func() { cancel(context.Cause(s.Context())) })()
	defer context.AfterFunc(o.cut, func() { cancel(context.Cause(o.cut)) })()
	out := &frameSink{frames: newFrameWriter(s)}
	if why := o.unfit(c); why != "" {
		return out.finish(s, ending{}, &bounce{verdict{Reason: why, Load: o.load(c.Engine, engine.Load{})}})
	}
	c.sent = sync.OnceFunc(func() { o.bodies.give(int64(c.BodySize)) })
	defer c.sent()
	end, err := o.serve(ctx, c, func() ([]byte, error) { return receiveBody(s, frames, c.BodySize) }, out)
	out.load = func() engine.Load { return o.load(c.Engine, engine.Load{}) }
	return out.finish(s, end, stopped(ctx, err))
}

// stopped makes whatever a request failed with the cause that ended it, where that is the end of this agent. One that was
// not sent to its engine has bounced, and stays so.
func stopped(ctx context.Context, err error) error {
	_, bounced := errors.AsType[*bounce](err)
	if cause := context.Cause(ctx); err != nil && !bounced && isStop(cause) {
		return cause
	}
	return err
}

// within returns a context that ends after left, the time that the ingress said it has; 0 is no bound. The ingress gives
// up by itself: this is for one that no longer can.
func within(ctx context.Context, left time.Duration) (context.Context, context.CancelFunc) {
	if left <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, left)
}

// unfit says why a peer's request cannot be taken whatever its engine says; "" when it can be. Then its body is counted.
func (o *Owner) unfit(c *call) string {
	switch {
	case c.Hops > maxHops:
		return "loop"
	case o.short():
		return "memory"
	case !o.bodies.take(int64(c.BodySize)):
		return "body_budget"
	default:
		return ""
	}
}

// bodyDeadline is how long a peer may take to send a body that it holds already.
const bodyDeadline = 30 * time.Second

// receiveBody reads the body within its deadline: the engine's slot is booked meanwhile.
func receiveBody(s Stream, frames *frameReader, size int) ([]byte, error) {
	_ = s.SetDeadline(time.Now().Add(bodyDeadline))
	defer func() { _ = s.SetDeadline(time.Time{}) }()
	return readBody(frames, size)
}

// readBody gathers the BODY frames of a request. It allocates as the bytes come, not as the peer announces them: twice as much
// whenever what there is is full, so that no more than half of it is there in vain.
func readBody(frames *frameReader, size int) ([]byte, error) {
	body := make([]byte, 0, min(size, maxFrame))
	for len(body) < size {
		t, n, err := frames.next()
		if err != nil {
			return nil, fmt.Errorf("read body: %w", unexpectedEOF(err))
		}
		if t != frameBody || len(body)+n > size {
			return nil, fmt.Errorf("read body: frame of type %d and %d bytes is not part of it", t, n)
		}
		if len(body)+n > cap(body) {
			body = append(make([]byte, 0, min(size, 2*cap(body)+n)), body...)
		}
		if body, err = frames.appendTo(body, n); err != nil {
			return nil, fmt.Errorf("read body: %w", err)
		}
	}
	return body, nil
}

// frameSink is the receiver that sends an answer to a peer.
type frameSink struct {
	frames *frameWriter
	load   func() engine.Load // of the engine; nil before it was asked
}

func (k *frameSink) send(t frameType, payload []byte) error {
	if err := k.frames.write(t, payload); err != nil {
		return err
	}
	return k.frames.flush()
}

func (k *frameSink) accepted(l engine.Load) error {
	return k.send(frameAccept, appendVerdict(verdict{Load: l}))
}

// head is not flushed: it goes out with the first bytes of the answer, which the ingress waits for anyway.
func (k *frameSink) head(h *head) error { return k.frames.write(frameHead, appendHead(h)) }

// tokens is not flushed but for those of the prompt, which may come after the first content.
func (k *frameSink) tokens(t *tokens) error {
	err := k.frames.write(frameTokens, appendTokens(nil, t))
	if err == nil && t.Flags&(tokensPrompt|tokensMore) == tokensPrompt {
		err = k.frames.flush()
	}
	return err
}

func (k *frameSink) data(b []byte, content bool) error {
	t := frameData
	if content {
		t = frameContent
	}
	for len(b) > maxFrame {
		if err := k.frames.write(t, b[:maxFrame]); err != nil {
			return err
		}
		b = b[maxFrame:]
	}
	return k.send(t, b)
}

// finish sends the last frame, as err says, and finishes the stream.
func (k *frameSink) finish(s Stream, end ending, err error) error {
	var refused *bounce
	var failed *failure
	switch {
	case s.Context().Err() != nil:
		s.Cancel(codeCanceled)
		return err
	case err == nil:
		err = k.send(frameEnd, appendEnding(end))
	case errors.As(err, &refused):
		err = k.send(frameBounce, appendVerdict(refused.verdict))
	case errors.As(err, &failed):
		err = errors.Join(err, k.send(frameFail, appendVerdict(verdict{Reason: failed.Reason, Load: k.load()})))
	default: // the stream itself failed
		s.Cancel(codeCanceled)
		return err
	}
	return errors.Join(err, s.Close())
}

// ServeProbe answers a probe stream: the loads of all engines, read from memory.
func (o *Owner) ServeProbe(s Stream, period time.Duration) error {
	if _, err := s.Write(AppendReport(nil, o.Report(period))); err != nil {
		s.Cancel(codeCanceled)
		return fmt.Errorf("answer probe: %w", err)
	}
	return s.Close()
}
