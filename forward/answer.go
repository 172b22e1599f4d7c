package forward

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// holdLimit is how long a client of an event stream waits for the first byte of the header. Engines send their header
// before the first token; it is held so that another engine can still be tried. After this time the header goes out and
// comments follow, so that proxies and clients on the way do not give up.
const holdLimit = 30 * time.Second

// commentPeriod is the time between two such comments.
const commentPeriod = 10 * time.Second

// writeDeadline is how long a client may leave the bytes of an answer unread before its request is given up: an engine
// would otherwise decode for nobody.
const writeDeadline = 2 * time.Minute

// maxHeld bounds the bytes held before the first content. Above it they go out, and no other engine is tried: a prompt's
// token ids, or instructions that are repeated, can be that long.
const maxHeld = 1 << 20

var (
	errTryNext = errors.New("engine answered with a status that another engine may not give")
	errNotHere = errors.New("engine does not have what was named")
	errClient  = errors.New("client is gone")
	// errLateStatus says that an engine refused, or answered without a stream, when the client had been told of a stream.
	errLateStatus = errors.New("engine did not answer with a stream")
)

// answer is the receiver at the ingress: it holds what comes before the first content, so that until then the request
// can go to another engine, and writes to the client from then on.
type answer struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	route openai.Route

	onContent func() // called once, at the first content
	onAccept  func(engine.Load)
	explain   func(http.Header) // sets the explain headers of the attempt
	last      bool              // no other engine is left: any status goes to the client
	// skipNotFound makes 404 a reason to ask the next engine.
	skipNotFound bool

	mu      sync.Mutex
	top     *head
	held    []byte
	wrote   bool      // the header has gone out
	failed  bool      // an engine has answered 500
	events  bool      // as that of a stream of events
	content bool      // content has gone out: no other engine can be tried
	first   time.Time // when the first content was written
	timer   *time.Timer
}

func newAnswer(w http.ResponseWriter, route openai.Route, stream bool) *answer {
	a := &answer{w: w, rc: http.NewResponseController(w), route: route, onContent: func() {}}
	if stream {
		a.timer = time.AfterFunc(holdLimit, a.comment)
	}
	return a
}

// close ends the comments. No byte is written by a afterwards unless its other methods are called.
func (a *answer) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

// comment tells the client that its request is alive.
func (a *answer) comment() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer == nil || a.content {
		return
	}
	a.writeHeadLocked(&head{Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}})
	_ = a.writeLocked([]byte(": waiting for the first token\n\n"))
	a.timer.Reset(commentPeriod)
}

// begin prepares for one attempt: what an earlier one left is dropped.
func (a *answer) begin(last bool, onAccept func(engine.Load), explain func(http.Header)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last, a.onAccept, a.explain = last, onAccept, explain
	a.top, a.held = nil, a.held[:0]
}

func (a *answer) accepted(l engine.Load) error {
	a.onAccept(l)
	return nil
}

func (a *answer) head(h *head) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.skipNotFound && h.Status == http.StatusNotFound {
		return errNotHere
	}
	if !a.last && a.retryable(h.Status) {
		return errTryNext
	}
	a.top = h
	return nil
}

// retryable says which statuses of one engine do not speak for the others: one is full or failing. A 500 may also be the
// request's own fault, so it is tried once more and not at every engine.
func (a *answer) retryable(status int) bool {
	switch status {
	case http.StatusInternalServerError:
		again := !a.failed
		a.failed = true
		return again
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

func (a *answer) data(b []byte, content bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !content && len(a.held)+len(b) <= maxHeld {
		a.held = append(a.held, b...)
		return nil
	}
	if !a.content {
		if a.wrote && !isEvents(a.top) {
			return errLateStatus
		}
		a.content, a.first = true, time.Now()
		a.onContent()
		a.writeHeadLocked(a.top)
		if len(a.held) > 0 {
			b, a.held = append(a.held, b...), nil
		}
	}
	return a.writeLocked(b)
}

// end writes what is still held: an answer without content.
func (a *answer) end() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.content {
		return nil
	}
	if a.wrote && !isEvents(a.top) {
		return errLateStatus
	}
	a.content = true
	a.writeHeadLocked(a.top)
	return a.writeLocked(a.held)
}

// isEvents reports whether an answer is a stream of events.
func isEvents(h *head) bool {
	return h != nil && strings.HasPrefix(h.Header.Get("Content-Type"), "text/event-stream")
}

func (a *answer) writeHeadLocked(h *head) {
	if a.wrote {
		return
	}
	if h == nil {
		h = &head{Status: http.StatusBadGateway}
	}
	a.wrote, a.events = true, isEvents(h)
	out := a.w.Header()
	maps.Copy(out, h.Header)
	if a.explain != nil {
		a.explain(out)
	}
	a.w.WriteHeader(h.Status)
}

func (a *answer) writeLocked(b []byte) error {
	// Over HTTP/2 the deadline is a timer of the stream and not of the write, so it is lifted afterwards.
	_ = a.rc.SetWriteDeadline(time.Now().Add(writeDeadline))
	defer func() { _ = a.rc.SetWriteDeadline(time.Time{}) }()
	_, err := a.w.Write(b)
	if err == nil {
		err = a.rc.Flush()
	}
	if err != nil {
		return errors.Join(errClient, err)
	}
	return nil
}

// started reports whether content has gone to the client.
func (a *answer) started() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.content
}

// status returns the status of the engine's answer; 0 when there is none.
func (a *answer) status() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.top == nil {
		return 0
	}
	return a.top.Status
}

// firstToken returns when the first content of a stream was written; zero when none was, or the answer is no stream: it
// comes whole, long after its first token.
func (a *answer) firstToken() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.events {
		return time.Time{}
	}
	return a.first
}

// fail tells the client of an error: as an answer when nothing has gone out, as an event in a stream that has begun,
// and by cutting the connection where there is no other way to say that the answer is not complete.
func (a *answer) fail(e *openai.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.wrote:
		a.wrote = true
		writeError(a.w, a.route, e)
	case a.events:
		_ = a.writeLocked(openai.ErrorEvent(a.route, e))
	default:
		panic(http.ErrAbortHandler)
	}
}
