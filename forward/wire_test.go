package forward

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// pipeListener is a listener of connections in memory.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// wireMesh has HTTP as bytes on both ends of a hop: the client's connection to a, and b's to the engine, which writes what it
// likes.
type wireMesh struct {
	*memMesh
	client *http.Client
	http2  bool
}

func onTheWire(t *testing.T, engine func(w *bufio.Writer), test func(t *testing.T, m *wireMesh)) {
	t.Helper()
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &wireMesh{memMesh: newMemMesh(t, "a", "b"), http2: http2}
				a, b := m.agents["a"], m.agents["b"]
				a.book.refuse = "draining"
				engines := serveBytes(t, engine)
				transport := NewEngineTransport()
				transport.DialContext = engines.dial
				b.Owner.client.Transport = transport
				protocols := new(http.Protocols)
				protocols.SetHTTP1(!http2)
				protocols.SetUnencryptedHTTP2(http2)
				front := newPipeListener()
				server := &http.Server{Handler: a, Protocols: protocols}
				var serving sync.WaitGroup
				serving.Go(func() { _ = server.Serve(front) })
				caller := &http.Transport{DialContext: front.dial, Protocols: protocols, DisableCompression: true}
				m.client = &http.Client{Transport: caller}
				test(t, m)
				caller.CloseIdleConnections()
				transport.CloseIdleConnections()
				_ = server.Close()
				_ = engines.Close()
				serving.Wait()
				synctest.Wait()
				m.idle()
			})
		})
	}
}

// serveBytes answers each request with bytes, and closes its connection.
func serveBytes(t *testing.T, answer func(w *bufio.Writer)) *pipeListener {
	l := newPipeListener()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					t.Error(err)
				}
				w := bufio.NewWriter(c)
				answer(w)
				_ = w.Flush()
			}()
		}
	}()
	return l
}

// ask returns what the client got, and how it ended.
func (m *wireMesh) ask(t *testing.T, body string) (*http.Response, []byte, error) {
	t.Helper()
	resp, err := m.client.Post((&url.URL{Scheme: "http", Host: "mesh", Path: "/v1/chat/completions"}).String(), "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return resp, got, err
}

const wholeChat = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`

func TestTrailersReachTheClient(t *testing.T) {
	want := http.Header{"X-Declared": {"1"}, "X-Undeclared": {"2", "3"}}
	for _, events := range []bool{false, true} {
		onTheWire(t, func(w *bufio.Writer) {
			kind, text := "application/json", "{}"
			if events {
				kind, text = "text/event-stream", chunkOf("one")+doneChunk
			}
			fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTrailer: X-Declared, X-Missing\r\nTransfer-Encoding: chunked\r\n\r\n", kind)
			fmt.Fprintf(w, "%x\r\n%s\r\n0\r\nX-Declared: 1\r\nX-Undeclared: 2\r\nX-Undeclared: 3\r\nConnection: close\r\n\r\n", len(text), text)
		}, func(t *testing.T, m *wireMesh) {
			resp, got, err := m.ask(t, wholeChat)
			if err != nil || cmp.Diff(want, resp.Trailer) != "" {
				t.Errorf("events %v: got %q, %v, trailer %v", events, got, err, resp.Trailer)
			}
			if h := resp.Header; slicesOf(h, "Trailer", "X-Declared", "Connection") != "" {
				t.Errorf("the header is %v", h)
			}
		})
	}
}

func slicesOf(h http.Header, names ...string) string {
	var all []string
	for _, name := range names {
		all = append(all, h.Values(name)...)
	}
	return strings.Join(all, ",")
}

// An answer that breaks off is an error to the client, also where the protocol would let it pass for whole.
func TestAnswerThatBreaksOffIsAnError(t *testing.T) {
	for _, tt := range []struct{ name, answer string }{
		{"shorter than its length", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":"},
		{"chunks without the last", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"half\":\r\n"},
		{"broken chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"half\":\r\nno number\r\n"},
	} {
		onTheWire(t, func(w *bufio.Writer) { _, _ = w.WriteString(tt.answer) }, func(t *testing.T, m *wireMesh) {
			_, got, err := m.ask(t, wholeChat)
			if err == nil || string(got) != `{"half":` {
				t.Errorf("%s: got %q, %v", tt.name, got, err)
			}
			if e := m.agents["a"].last(); e.Outcome != "reset" {
				t.Errorf("%s: outcome %q", tt.name, e.Outcome)
			}
		})
	}
}

func TestStreamThatBreaksOffEndsWithAnErrorEvent(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n",          // cut
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", // ends in order
	} {
		onTheWire(t, func(w *bufio.Writer) { fmt.Fprintf(w, answer, len(chunkOf("one")), chunkOf("one")) }, func(t *testing.T, m *wireMesh) {
			_, got, err := m.ask(t, chatBody)
			rest, ok := strings.CutPrefix(string(got), chunkOf("one"))
			if err != nil || !ok || !strings.HasPrefix(rest, "data: {\"error\":") || strings.Contains(rest, "[DONE]") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// An engine whose answer is longer than it said has said the rest to nobody.
func TestAnswerIsNoLongerThanItsLength(t *testing.T) {
	onTheWire(t, func(w *bufio.Writer) { _, _ = w.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}and more") }, func(t *testing.T, m *wireMesh) {
		if resp, got, err := m.ask(t, wholeChat); err != nil || string(got) != "{}" || resp.ContentLength != 2 {
			t.Errorf("got %q of %d bytes, %v", got, resp.ContentLength, err)
		}
	})
}

func TestAnyBytesPassAsTheyAre(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	sound := make([]byte, 3<<20+17)
	for i := range sound {
		sound[i] = byte(rng.Uint32())
	}
	want := map[string]string{"Content-Type": "audio/mpeg", "Content-Encoding": "gzip", "X-Odd": "ä"}
	onTheWire(t, func(w *bufio.Writer) {
		_, _ = w.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
		for k, v := range want {
			fmt.Fprintf(w, "%s: %s\r\n", k, v)
		}
		_, _ = w.WriteString("\r\n")
		for rest := sound; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(100_000))
			fmt.Fprintf(w, "%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		_, _ = w.WriteString("0\r\n\r\n")
	}, func(t *testing.T, m *wireMesh) {
		resp, got, err := m.ask(t, wholeChat)
		if err != nil || !bytes.Equal(got, sound) {
			t.Errorf("got %d bytes of %d, %v", len(got), len(sound), err)
		}
		have := map[string]string{}
		for k := range want {
			have[k] = resp.Header.Get(k)
		}
		if !maps.Equal(have, want) {
			t.Errorf("the header is %v, want %v", have, want)
		}
	})
}

func TestLargeEventPasses(t *testing.T) {
	event := chunkOf(strings.Repeat("x", 20<<20))
	onTheWire(t, func(w *bufio.Writer) {
		_, _ = w.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event + doneChunk)
	}, func(t *testing.T, m *wireMesh) {
		if _, got, err := m.ask(t, chatBody); err != nil || string(got) != event+doneChunk {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
	})
}

// Its header would not fit what an ingress reads of one.
func TestHugeHeaderOfAnEngineIsItsFailure(t *testing.T) {
	onTheWire(t, func(w *bufio.Writer) {
		_, _ = w.WriteString("HTTP/1.1 200 OK\r\nX-Huge: " + strings.Repeat("x", 1<<20) + "\r\nContent-Length: 2\r\n\r\n{}")
	}, func(t *testing.T, m *wireMesh) {
		resp, got, err := m.ask(t, wholeChat)
		if err != nil || resp.StatusCode < 500 {
			t.Errorf("got %d %q, %v", resp.StatusCode, got, err)
		}
	})
}
