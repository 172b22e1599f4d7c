package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// network is servers in memory: a dial to "name:80" is a pipe to the server of that name.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
}

type listener struct {
	name  string
	conns chan net.Conn
	done  chan struct{}
	close func()
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.close(); return nil }
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.name, Net: "unix"} }

// serve starts a server and returns its base URL; it ends with the test.
func (n *network) serve(t *testing.T, name string, h http.HandlerFunc) string {
	t.Helper()
	l := &listener{name: name, conns: make(chan net.Conn), done: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.done) })
	n.mu.Lock()
	n.listeners[name+":80"] = l
	n.mu.Unlock()
	s := &http.Server{Handler: h}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		_ = s.Close()
		serving.Wait()
	})
	return "http://" + name
}

func (n *network) client(t *testing.T) *http.Client {
	transport := &http.Transport{DialContext: n.dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func newNetwork() *network { return &network{listeners: map[string]*listener{}} }

// engineStub answers each prompt with its last user message in capitals, after the given times; it records bodies.
type engineStub struct {
	mu            sync.Mutex
	bodies        []completion
	first, second time.Duration
}

func (e *engineStub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c completion
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	e.bodies = append(e.bodies, c)
	e.mu.Unlock()
	flush := w.(http.Flusher).Flush
	flush()
	pause(r.Context(), e.first)
	content, _ := json.Marshal(strings.ToUpper(c.Messages[len(c.Messages)-1].Content[:4]))
	fmt.Fprintf(w, `data: {"choices":[{"delta":{"content":%s}}]}`+"\n\n", content)
	flush()
	pause(r.Context(), e.second)
	fmt.Fprintf(w, counted+end)
}

// pause sleeps, but not beyond its client.
func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

func oneSession(turns ...Turn) *Workload {
	return &Workload{Text: NewText(1), Sessions: []Session{{ID: "s", Class: "c", Start: time.Second, Turns: turns}}}
}

func turnOf(id uint64, think time.Duration) Turn {
	return Turn{Think: think, User: []Passage{{ID: id, Bytes: 40}}, MaxTokens: 9}
}

func TestTimesAreMeasuredFromSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		e := &engineStub{first: 300 * time.Millisecond, second: 700 * time.Millisecond}
		got, err := Run(t.Context(), Config{
			Targets: []string{n.serve(t, "a", e.ServeHTTP)}, Client: n.client(t), Model: "m",
			Workload: oneSession(turnOf(1, 0), turnOf(2, 5*time.Second)),
		})
		if err != nil {
			t.Fatal(err)
		}
		sample := Sample{
			Session: "s", Class: "c", Sent: time.Second, TTFT: 300 * time.Millisecond, Total: time.Second,
			Usage: true, PromptTokens: 9, CachedTokens: 8, OutputTokens: 2,
		}
		second := sample
		second.Turn, second.Sent = 1, 7*time.Second
		if diff := cmp.Diff([]Sample{sample, second}, got.Samples); diff != "" {
			t.Errorf("samples (-want +got):\n%s", diff)
		}
		if got.Requests != 2 || got.Skipped != 0 || got.Seconds != 8 || got.CachedTokenRatio != 8.0/9 {
			t.Errorf("result is %+v", got)
		}
	})
}

func TestNextTurnHoldsTheRealAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		e := &engineStub{}
		w := oneSession(turnOf(1, 0), turnOf(2, 0))
		_, err := Run(t.Context(), Config{Targets: []string{n.serve(t, "a", e.ServeHTTP)}, Client: n.client(t), Workload: w})
		if err != nil {
			t.Fatal(err)
		}
		first, second := e.bodies[0], e.bodies[1]
		user := first.Messages[0].Content
		want := []message{{"user", user}, {"assistant", strings.ToUpper(user[:4])}, {"user", w.text(w.Sessions[0].Turns[1].User)}}
		if diff := cmp.Diff(want, second.Messages); diff != "" {
			t.Errorf("second prompt (-want +got):\n%s", diff)
		}
		if !first.Stream || !first.StreamOptions.IncludeUsage || first.MaxTokens != 9 {
			t.Errorf("body asks for %+v", first)
		}
	})
}

func TestFailuresAreCountedByKind(t *testing.T) {
	write := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	tests := []struct {
		name  string
		serve http.HandlerFunc
		want  ErrorKind
	}{
		{"nobody there", nil, ErrorDial},
		{"429", write(429, "{}"), ErrorStatus4x},
		{"503", write(503, "{}"), ErrorStatus5x},
		{"stream cut", write(200, hello), ErrorStream},
		{"no SSE", write(200, "data: <html>"), ErrorStream},
		{"error event", write(200, `data: {"error":{}}`+"\n\n"), ErrorEvent},
		{"no content", write(200, role+end), ErrorEmpty},
		{"silence", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then does a server notice that its client has gone
			<-r.Context().Done()
		}, ErrorTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				target := "http://nobody"
				if tt.serve != nil {
					target = n.serve(t, "a", tt.serve)
				}
				got, err := Run(t.Context(), Config{
					Targets: []string{target}, Client: n.client(t), Workload: oneSession(turnOf(1, 0), turnOf(2, 0)),
				})
				if err != nil {
					t.Fatal(err)
				}
				if got.Requests != 1 || got.Errors[tt.want] != 1 || got.Skipped != 1 {
					t.Errorf("result is %+v, want one error of kind %s and the next turn skipped", got, tt.want)
				}
			})
		})
	}
}

// manySessions start one a second.
func manySessions(n int) *Workload {
	w := &Workload{Text: NewText(1)}
	for i := range n {
		w.Sessions = append(w.Sessions, Session{ID: fmt.Sprint(i), Start: time.Duration(i) * time.Second, Turns: []Turn{turnOf(uint64(i), 0)}})
	}
	return w
}

func TestArrivalsDoNotWaitForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		e := &engineStub{first: time.Minute}
		var settled []int
		got, err := Run(t.Context(), Config{
			Targets: []string{n.serve(t, "a", e.ServeHTTP), n.serve(t, "b", e.ServeHTTP)}, Client: n.client(t),
			Workload: manySessions(10), Progress: func(done, _ int) { settled = append(settled, done) },
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range got.Samples {
			if s.Sent != time.Duration(i)*time.Second || s.Late != 0 || s.Target != i%2 {
				t.Errorf("request %d: %+v", i, s)
			}
		}
		if diff := cmp.Diff([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, settled); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
	})
}

func TestRequestsAboveTheBoundAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		e := &engineStub{first: 10 * time.Second}
		got, err := Run(t.Context(), Config{
			Targets: []string{n.serve(t, "a", e.ServeHTTP)}, Client: n.client(t),
			Workload: manySessions(3), MaxInFlight: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if late := got.Samples[1].Late + got.Samples[2].Late; late != 27*time.Second || got.TTFT.P99 != 10 {
			t.Errorf("late by %v in all with a TTFT of %v s, want 9 s + 18 s and 10 s", late, got.TTFT.P99)
		}
	})
}

func TestDurationEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		e := &engineStub{first: time.Minute}
		got, err := Run(t.Context(), Config{
			Targets: []string{n.serve(t, "a", e.ServeHTTP)}, Client: n.client(t),
			Workload: manySessions(10), Duration: 3500 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.Requests != 4 || got.Skipped != 6 || len(got.Errors) != 0 {
			t.Errorf("result is %+v, want 4 requests answered and 6 skipped", got)
		}
	})
}

func TestCanceledRunReturnsWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		e := &engineStub{first: 2500 * time.Millisecond}
		stop := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3200*time.Millisecond, func() { cancel(stop) })
		got, err := Run(ctx, Config{
			Targets: []string{n.serve(t, "a", e.ServeHTTP)}, Client: n.client(t), Workload: manySessions(10),
		})
		if !errors.Is(err, stop) {
			t.Errorf("error is %v, want the cause of the end", err)
		}
		if got.Requests != 4 || got.Errors[ErrorCanceled] != 3 || got.Skipped != 6 {
			t.Errorf("result is %+v, want 1 answered, 3 canceled, 6 skipped", got)
		}
	})
}

func TestHeaderIsSentWithEachRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		e := &engineStub{}
		var got http.Header
		target := n.serve(t, "a", func(w http.ResponseWriter, r *http.Request) {
			got = r.Header
			e.ServeHTTP(w, r)
		})
		_, err := Run(t.Context(), Config{
			Targets: []string{target}, Client: n.client(t), Workload: oneSession(turnOf(1, 0)),
			Header: http.Header{"Authorization": {"Bearer k"}},
		})
		if err != nil || got.Get("Authorization") != "Bearer k" || got.Get("Content-Type") != "application/json" {
			t.Errorf("error %v, header %v", err, got)
		}
	})
}

func TestInvalidConfigReportsEveryFault(t *testing.T) {
	_, err := Run(t.Context(), Config{MaxInFlight: -1})
	for _, field := range []string{"Targets", "Workload", "MaxInFlight"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}
