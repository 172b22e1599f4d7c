package simengine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// memNet is a network of one address in memory.
type memNet struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newMemNet() *memNet { return &memNet{conns: make(chan net.Conn), done: make(chan struct{})} }

func (n *memNet) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *memNet) Close() error {
	n.once.Do(func() { close(n.done) })
	return nil
}

func (n *memNet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (n *memNet) dial() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case n.conns <- server:
		return client, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

// rig is an engine served in memory; it ends with its test.
type rig struct {
	*Engine
	t      *testing.T
	client *http.Client
	posts  sync.WaitGroup
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Seed = 1
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln := newMemNet()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := e.Serve(ctx, ln); err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return ln.dial() }}
	r := &rig{Engine: e, t: t, client: &http.Client{Transport: transport}}
	t.Cleanup(func() {
		r.posts.Wait()
		transport.CloseIdleConnections()
		cancel()
		wg.Wait()
	})
	return r
}

// open sends a request and returns when headers are there.
func (r *rig) open(ctx context.Context, method, path, body string, contentType ...string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", append(contentType, "application/json")[0])
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	r.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (r *rig) do(method, path, body string, contentType ...string) (int, string) {
	r.t.Helper()
	resp := r.open(r.t.Context(), method, path, body, contentType...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(b)
}

func (r *rig) post(path, body string) (int, string) { r.t.Helper(); return r.do("POST", path, body) }

// start posts one body after the other and lets the answers be; the test ends after them.
func (r *rig) start(path string, bodies ...string) {
	r.posts.Go(func() {
		for _, body := range bodies {
			resp, err := r.client.Post("http://engine"+path, "application/json", strings.NewReader(body))
			if err != nil {
				r.t.Errorf("POST %s: %v", path, err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
}

// ok posts and decodes the answer to a request that must succeed.
func (r *rig) ok(path, body string) map[string]any {
	r.t.Helper()
	status, got := r.post(path, body)
	if status != http.StatusOK {
		r.t.Fatalf("POST %s = %d %s", path, status, got)
	}
	return decode(r.t, got)
}

func decode(t *testing.T, s string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("decode %s: %v", s, err)
	}
	return v
}

// at walks a decoded JSON value by keys and indexes; nil where nothing is.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

// event is one server-sent event and when it came.
type event struct {
	name string
	data string
	at   time.Time
}

// events reads a stream to its end.
func readEvents(t *testing.T, r io.Reader) []event {
	t.Helper()
	var out []event
	name := ""
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		line := sc.Text()
		if n, ok := strings.CutPrefix(line, "event: "); ok {
			name = n
		}
		if d, ok := strings.CutPrefix(line, "data: "); ok {
			out = append(out, event{name, d, time.Now()})
			name = ""
		}
	}
	return out
}

// stream posts and reads the whole stream.
func (r *rig) stream(path, body string) []event {
	r.t.Helper()
	resp := r.open(r.t.Context(), "POST", path, body)
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		r.t.Fatalf("POST %s = %d %s", path, resp.StatusCode, b)
	}
	return readEvents(r.t, resp.Body)
}

// chat is a chat request about n bytes of text; more is spliced into the object.
func chat(n int, more string) string {
	return `{"model":"sim-model","messages":[{"role":"user","content":"` + textOf(n) + `"}]` + more + `}`
}

// textOf is n bytes of English that need no escape in JSON.
func textOf(n int) string { return strings.Repeat(english, n/len(english)+1)[:n] }

func jsonOf(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(b.String())
}

func readAll(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// metric is the value of the first series of a name on vLLM's metrics page.
func metric(t *testing.T, r *rig, name string) float64 {
	t.Helper()
	_, body := r.do("GET", "/metrics", "")
	for line := range strings.Lines(body) {
		if series, value, _ := strings.Cut(strings.TrimSpace(line), " "); series == name || strings.HasPrefix(series, name+"{") {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatalf("read %q: %v", line, err)
			}
			return v
		}
	}
	t.Fatalf("no %s in\n%s", name, body)
	return 0
}
