package forward

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

var (
	errTryNext = errors.New("engine answered with a status that another engine may not give")
	// errConceded is like it, and another engine has been asked already.
	errConceded = errors.New("engine answered with a status, and another engine runs")
	errNotHere  = errors.New("engine does not have what was named")
	errClient   = errors.New("client is gone")
	// errLost says that another lane has claimed the answer.
	errLost = errors.New("another attempt answered first")
	// errLateStatus says that an engine refused, or answered without a stream, when the client had been told of a stream.
	errLateStatus = errors.New("engine did not answer with a stream")
)

// answer is what the client of one request sees: one header, then the bytes of the lane that has claimed it. Lanes are its
// attempts: more than one may be open, and one has it at a time. It is safe for concurrent use.
type answer struct {
	route openai.Route
	// skipNotFound makes 404 a reason to ask the next engine.
	skipNotFound bool
	onContent    func() // called once, when the first lane claims the answer, with mu held

	out   sync.Mutex // held while something is written; taken before mu
	w     http.ResponseWriter
	rc    *http.ResponseController
	http2 bool        // it is a stream of a connection
	armed time.Time   // when the write deadline was set; zero while there is none
	gone  atomic.Bool // the client: nothing is written any more

	mu      sync.Mutex        // never held while something is written: a client may be slow
	open    []*lane           // that run
	holder  *lane             // that has claimed the answer
	explain func(http.Header) // sets the explain headers of the lane that was opened last
	wrote   bool              // the header goes out, or has
	events  bool              // as that of a stream of events
	failed  bool              // an engine has answered 500
	content bool              // content goes out, or has: nothing can be tried from the beginning
	first   time.Time         // when the first content was there
	timer   *time.Timer
}

func newAnswer(w http.ResponseWriter, route openai.Route, stream bool) *answer {
	a := &answer{w: w, rc: http.NewResponseController(w), route: route, onContent: func() {}}
	if stream {
		a.timer = time.AfterFunc(holdLimit, a.comment)
	}
	return a
}

// close ends the comments and lifts the write deadline: the connection may serve other requests. No byte is written by a afterwards unless its other methods are called.
func (a *answer) close() {
	a.out.Lock()
	defer a.out.Unlock()
	a.disarmLocked()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

// hangUp ends a write that waits, and all that would follow: the client has gone, or has closed its half of the connection,
// which is how one over HTTP/1.1 goes. Without it a client that does not read would hold its request until writeDeadline.
func (a *answer) hangUp() {
	a.gone.Store(true)
	_ = a.rc.SetWriteDeadline(time.Unix(1, 0))
}

// comment tells the client that its request is alive.
func (a *answer) comment() {
	a.out.Lock()
	defer a.out.Unlock()
	h, ok := a.startComment()
	if !ok {
		return
	}
	a.writeHead(h)
	_ = a.writeLocked([]byte(": waiting for the first token\n\n"))
}

// startComment reports whether a comment is to be written, and after which header, nil for none.
func (a *answer) startComment() (*head, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer == nil || a.content {
		return nil, false
	}
	a.timer.Reset(commentPeriod)
	h := &head{Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}}
	if a.explain != nil {
		a.explain(h.Header)
	}
	return a.headLocked(h), true
}

// claim gives the answer to a lane and says which header is to be written before its bytes, nil for none. The lanes beside
// are stopped. Whole says that there was no content.
func (a *answer) claim(l *lane, whole bool) (*head, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.holder != nil:
		return nil, errLost
	case a.wrote && !isEvents(l.top):
		return nil, errLateStatus
	}
	a.holder = l
	for _, other := range a.open {
		if other != l {
			other.stop(errLost)
		}
	}
	if !a.content {
		a.content = true
		if !whole {
			a.first = time.Now()
		}
		a.onContent()
	}
	return a.headLocked(l.top), nil
}

// concede closes a lane in favour of one beside it. It is false when there is none: two lanes cannot concede to each other.
func (a *answer) concede(l *lane) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.open) < 2 || a.holder != nil {
		return false
	}
	a.open = slices.DeleteFunc(a.open, func(o *lane) bool { return o == l })
	return true
}

// release takes the answer from the lane that has it and has ended in mid-stream: another one may claim it, and its bytes
// follow what has gone out.
func (a *answer) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holder = nil
}

// retryable says which statuses of one engine do not speak for the others: one is full or failing. A 500 may also be the
// request's own fault, so it is tried once more and not at every engine.
func (a *answer) retryable(status int) bool {
	switch status {
	case http.StatusInternalServerError:
		a.mu.Lock()
		defer a.mu.Unlock()
		again := !a.failed
		a.failed = true
		return again
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

// isEvents reports whether an answer is a stream of events.
func isEvents(h *head) bool {
	return h != nil && strings.HasPrefix(h.Header.Get("Content-Type"), "text/event-stream")
}

// headLocked returns the header that is to be written now; nil when one is out.
func (a *answer) headLocked(h *head) *head {
	if a.wrote {
		return nil
	}
	if h == nil {
		h = &head{Status: http.StatusBadGateway}
	}
	a.wrote, a.events = true, isEvents(h)
	return h
}

// write sends a lane's bytes to the client, after the header h unless it is nil.
func (a *answer) write(h *head, b []byte) error {
	a.out.Lock()
	defer a.out.Unlock()
	a.writeHead(h)
	return a.writeLocked(b)
}

// writeHead needs out.
func (a *answer) writeHead(h *head) {
	if h != nil {
		maps.Copy(a.w.Header(), h.Header)
		a.w.WriteHeader(h.Status)
	}
}

// writeLocked needs out.
func (a *answer) writeLocked(b []byte) error {
	a.armLocked()
	if a.gone.Load() { // looked at after the deadline was set, which may have undone that of hangUp
		return errClient
	}
	_, err := a.w.Write(b)
	if err == nil {
		err = a.rc.Flush()
	}
	if a.http2 {
		a.disarmLocked()
	}
	if err != nil {
		return errors.Join(errClient, err)
	}
	return nil
}

// trailer has fields follow the answer. Over HTTP/1 that needs an answer in chunks, as it was when the engine sent them.
func (a *answer) trailer(h http.Header) {
	a.out.Lock()
	defer a.out.Unlock()
	for name, values := range h {
		a.w.Header()[http.TrailerPrefix+name] = values
	}
}

// armLocked gives the client its time for what is written now, give or take the eighth part: to set a deadline for each event
// costs more than it is worth. Over HTTP/2 it is a timer of the stream and not of the write, so it is set and lifted each time.
// It needs out.
func (a *answer) armLocked() {
	if now := time.Now(); now.Sub(a.armed) > writeDeadline/8 {
		a.armed = now
		_ = a.rc.SetWriteDeadline(now.Add(writeDeadline))
	}
}

// disarmLocked needs out.
func (a *answer) disarmLocked() {
	if !a.armed.IsZero() {
		a.armed = time.Time{}
		_ = a.rc.SetWriteDeadline(time.Time{})
	}
}

// started reports whether content has gone to the client.
func (a *answer) started() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.content
}

// firstToken returns when the first content of a stream was there; zero when none was, or the answer is no stream: it
// comes whole, long after its first token.
func (a *answer) firstToken() time.Time {
	if first, events := a.firstContent(); events {
		return first
	}
	return time.Time{}
}

// firstContent returns when the first content was there, zero when none was, and whether it was of a stream.
func (a *answer) firstContent() (at time.Time, events bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.first, a.events
}

// fail tells the client of an error: as an answer when nothing has gone out, as an event in a stream that has begun,
// and by cutting the connection where there is no other way to say that the answer is not complete. After is as for writeError.
func (a *answer) fail(e *openai.Error, after time.Duration) {
	a.out.Lock()
	defer a.out.Unlock()
	a.mu.Lock()
	wrote, events := a.wrote, a.events
	a.wrote = true
	a.mu.Unlock()
	switch {
	case !wrote:
		writeError(a.w, a.route, e, after)
	case events:
		_ = a.writeLocked(openai.ErrorEvent(a.route, e))
	default:
		panic(http.ErrAbortHandler)
	}
}
