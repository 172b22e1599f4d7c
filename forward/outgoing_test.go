package forward

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// forgetting looks, when the first content comes, whether the body is still in memory.
type forgetting struct {
	body   weak.Pointer[byte]
	seen   bool
	kept   bool
	looked func()
}

func (*forgetting) accepted(engine.Load) error { return nil }
func (*forgetting) head(*head) error           { return nil }
func (*forgetting) tokens(*tokens) error       { return nil }

func (f *forgetting) data(_ []byte, content bool) error {
	if f.seen || !content {
		return nil
	}
	f.seen = true
	defer f.looked()
	for by := time.Now().Add(10 * time.Second); f.body.Value() != nil; runtime.GC() { // what sends it may need a moment to end
		if f.kept = time.Now().After(by); f.kept {
			return nil
		}
	}
	return nil
}

// TestLongBodyIsNotKeptWhileItsAnswerComes has a real transport and server: it is they who might keep it.
func TestLongBodyIsNotKeptWhileItsAnswerComes(t *testing.T) {
	const size = 1 << 20
	got := make(chan int64, 1)
	finish := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got <- n
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunkOf("one"))
		_ = http.NewResponseController(w).Flush()
		<-finish
		_, _ = io.WriteString(w, doneChunk)
	}))
	defer server.Close()
	o := newMemMesh(t, "a").agents["a"].Owner
	transport := NewEngineTransport()
	defer transport.CloseIdleConnections()
	o.client = &http.Client{Transport: transport}
	e := o.engines["0"]
	e.URL, _ = url.Parse(server.URL)
	o.engines["0"] = e
	to := &forgetting{looked: func() { close(finish) }}
	body := func() ([]byte, error) {
		b := bytes.Repeat([]byte("x"), size)
		to.body = weak.Make(&b[0])
		return b, nil
	}
	c := &call{Engine: "0", Method: http.MethodPost, Path: "/v1/chat/completions", BodySize: size}
	_, err := o.serve(t.Context(), c, body, to)
	if n := <-got; err != nil || n != size || !to.seen || to.kept {
		t.Errorf("the engine got %d bytes, %v; the body is kept: %t", n, err, to.kept)
	}
}

func TestOutgoingBodyIsSentAndForgotten(t *testing.T) {
	want := strings.Repeat("body", 10_000)
	o := newOutgoing([]byte(want))
	if got, err := io.ReadAll(o); err != nil || string(got) != want {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	_ = o.Close()
	if n, err := o.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("read %d, %v of what is closed", n, err)
	}
}
