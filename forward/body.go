package forward

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvmesh/kvmesh/internal/openai"
)

// bodyIdle is how long a client may pause while it sends a body.
const bodyIdle = 30 * time.Second

// patientReader reads a body and gives the client bodyIdle for each piece of it.
type patientReader struct {
	io.Reader
	rc *http.ResponseController
}

func (p patientReader) Read(b []byte) (int, error) {
	_ = p.rc.SetReadDeadline(time.Now().Add(bodyIdle))
	return p.Reader.Read(b)
}

// firstRead is what is allocated for a body on the client's word alone; the rest follows the bytes that come.
const firstRead = 1 << 20

// readBody reads a request's body within the limit of one and the budget of all. Release gives the bytes back.
func (g *Ingress) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), bad *openai.Error) {
	claim := r.ContentLength
	if claim > int64(g.MaxBody) {
		return nil, func() {}, bodyTooLarge(claim, g.MaxBody)
	}
	var held int64
	release = func() { g.bodies.give(held) }
	rc := http.NewResponseController(w)
	src := io.LimitReader(patientReader{r.Body, rc}, int64(g.MaxBody)+1)
	for {
		body = roomier(body, claim)
		n, err := src.Read(body[len(body):cap(body)])
		if !g.bodies.take(int64(n)) {
			return nil, release, errBodyBudget
		}
		held += int64(n)
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, release, bodyBroken(err)
		}
	}
	_ = rc.SetReadDeadline(time.Time{})
	if len(body) > g.MaxBody {
		return nil, release, bodyTooLarge(int64(len(body)), g.MaxBody)
	}
	return body, release, nil
}

// roomier returns a body with room for more of it: twice what there is when that is full, and no more than the client claims
// the whole has, so that in the end none is there in vain.
func roomier(body []byte, claim int64) []byte {
	if len(body) < cap(body) {
		return body
	}
	size := max(2*int64(cap(body)), min(claim, firstRead))
	if claim >= 0 {
		size = min(size, max(claim, int64(len(body)))) // a longer one is refused, or ends there
	}
	return append(make([]byte, 0, size+bytes.MinRead), body...)
}

// heldBody is the body of a request until no other engine can be tried any more. It is safe for concurrent use.
type heldBody struct {
	mu      sync.Mutex
	b       []byte
	release func() // gives its bytes back to the budget
}

func (h *heldBody) hold(b []byte, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b, h.release = b, release
}

// bytes returns the body; nil once it was let go.
func (h *heldBody) bytes() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b
}

// letGo may be called more than once.
func (h *heldBody) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.release != nil {
		h.release()
	}
	h.b, h.release = nil, nil
}

// budget bounds the bytes of all request bodies that an agent holds, of its clients and of peers. It is safe for
// concurrent use.
type budget struct {
	limit int64
	held  atomic.Int64
}

// take reports whether n more bytes fit, and counts them if so.
func (b *budget) take(n int64) bool {
	if b.held.Add(n) > b.limit {
		b.held.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.held.Add(-n) }

var errBodyBudget = &openai.Error{
	Status: http.StatusServiceUnavailable, Type: "server_error", Code: "busy", Reason: "body_budget",
	Message: "this agent holds as many bytes of request bodies as it may; try again later",
}

var errMemory = &openai.Error{
	Status: http.StatusServiceUnavailable, Type: "server_error", Code: "busy", Reason: "memory",
	Message: "this agent is short of memory; try again later",
}

func bodyTooLarge(size int64, limit int) *openai.Error {
	return &openai.Error{
		Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "body_too_large", Reason: "body_size",
		Message: fmt.Sprintf("the request's body has %d bytes or more; the limit is %d", size, limit),
	}
}

func bodyBroken(err error) *openai.Error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &openai.Error{
			Status: http.StatusRequestTimeout, Type: "invalid_request_error", Code: "body_timeout", Reason: "body_timeout",
			Message: fmt.Sprintf("the request's body stopped coming for %v", bodyIdle),
		}
	}
	return &openai.Error{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "body_truncated", Reason: "body_truncated",
		Message: "the request's body ended before its length: " + err.Error(),
	}
}
