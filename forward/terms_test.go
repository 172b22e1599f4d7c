package forward

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// ownerAnswers serves one call at b's owner as a peer's and returns the frames that it sends back.
func ownerAnswers(t *testing.T, b *memAgent, c *call, body string) (types []frameType, last verdict) {
	t.Helper()
	here, there := memStreams()
	out := newFrameWriter(here)
	if err := out.write(frameRequest, appendCall(c)); err != nil {
		t.Fatal(err)
	}
	if err := out.write(frameBody, []byte(body)); err != nil {
		t.Fatal(err)
	}
	if err := out.flush(); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = b.Owner.ServeRequest(context.Background(), there)
	}()
	in := newFrameReader(here)
	for {
		typ, payload, err := in.read()
		if err != nil {
			<-served
			return types, last
		}
		types = append(types, typ)
		if typ == frameBounce || typ == frameFail {
			if last, err = parseVerdict(payload); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func chatCall() *call {
	return &call{
		Engine: "0", ID: "id", Method: http.MethodPost, Path: "/v1/chat/completions", QueuedAtProbe: -1, BodySize: len(chatBody),
		Header: http.Header{"Content-Type": {"application/json"}}, Hops: 1,
	}
}

func TestOwnerBouncesWhatItCannotServe(t *testing.T) {
	short := false
	for _, tt := range []struct {
		name   string
		change func(*memAgent, *call)
		want   string // reason of the bounce; "" for none
	}{
		{"first hop", func(*memAgent, *call) {}, ""},
		{"of an earlier version", func(_ *memAgent, c *call) { c.Hops = 0 }, ""},
		{"second hop", func(_ *memAgent, c *call) { c.Hops = 2 }, "loop"},
		{"time for the queue", func(b *memAgent, c *call) { b.book.queued, c.Left = 2, 3*time.Second }, ""},
		{"no time for the queue", func(b *memAgent, c *call) { b.book.queued, c.Left = 2, time.Second }, "deadline"},
		{"no bound on its time", func(b *memAgent, _ *call) { b.book.queued = 2 }, ""},
		{"no memory", func(*memAgent, *call) { short = true }, "memory"},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemMesh(t, "b")
			b, c := m.agents["b"], chatCall()
			short = false
			b.Owner.short = func() bool { return short }
			tt.change(b, c)
			types, last := ownerAnswers(t, b, c, chatBody)
			if end := types[len(types)-1]; tt.want == "" && end != frameEnd || tt.want != "" && (end != frameBounce || last.Reason != tt.want || len(types) != 1) {
				t.Errorf("%s: got frames %v, %q; want %q", tt.name, types, last.Reason, tt.want)
			}
			m.idle()
		})
	}
}

// The ingress gives up by itself. An owner whose ingress no longer can does not work for ever.
func TestOwnerEndsARequestWhoseTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, "b")
		b, c := m.agents["b"], chatCall()
		gone := make(chan struct{})
		b.engine = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			close(gone)
		})
		c.Left = 5 * time.Second
		start := time.Now()
		types, last := ownerAnswers(t, b, c, chatBody)
		if took := time.Since(start); took != c.Left || types[len(types)-1] != frameFail || last.Reason != "reset" {
			t.Errorf("after %v: got frames %v, %q", took, types, last.Reason)
		}
		<-gone
		m.idle()
	})
}

func TestIngressTellsTheTermsOfARequest(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "draining"
		a.Timeout = 90 * time.Second
		if err := a.SetPolicy(&Policy{Classes: []Class{{Name: "night"}}}); err != nil {
			t.Fatal(err)
		}
		var got *call
		seen := &spyPeers{Peers: a.Peers, request: func(payload []byte) {
			c, err := parseCall(payload, 1<<20)
			if err != nil {
				t.Error(err)
			}
			got = c
		}}
		a.Peers = seen
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK {
			t.Fatalf("got %d", w.Code)
		}
		if got == nil || got.Class != "night" || got.Hops != 1 || got.Left <= 80*time.Second || got.Left > 90*time.Second {
			t.Errorf("the owner was told %+v", got)
		}
		_ = b
	})
}

// spyPeers shows the REQUEST frames that are sent.
type spyPeers struct {
	Peers
	request func(payload []byte)
}

func (p *spyPeers) OpenRequest(ctx context.Context, agent string) (Stream, error) {
	s, err := p.Peers.OpenRequest(ctx, agent)
	if err != nil {
		return nil, err
	}
	return &spyStream{Stream: s, request: p.request}, nil
}

type spyStream struct {
	Stream
	buf     bytes.Buffer
	request func(payload []byte)
}

func (s *spyStream) Write(b []byte) (int, error) {
	s.buf.Write(b)
	if typ, payload, err := newFrameReader(bytes.NewReader(s.buf.Bytes())).read(); err == nil && typ == frameRequest && s.request != nil {
		s.request(payload)
		s.request = nil
	}
	return s.Stream.Write(b)
}

func TestAgentIsNoEngineOfAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, "a", "b")
		a, b := m.agents["a"], m.agents["b"]
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.ServeHTTP(w, r) })
		b.book.refuse = "draining"
		w := a.post(t.Context(), chatBody)
		if w.Code != http.StatusLoopDetected || !strings.Contains(w.Body.String(), "loop_detected") {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
		synctest.Wait()
		m.idle()
	})
}

func TestShortOfMemoryRefusesNewRequestsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, "a")
		a := m.agents["a"]
		short := false
		a.ShortOfMemory = func() bool { return short }
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, roleChunk+chunkOf("one"))
			short = true
			_, _ = io.WriteString(w, doneChunk)
		})
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK || !strings.HasSuffix(w.Body.String(), doneChunk) {
			t.Errorf("the accepted request got %d %q", w.Code, w.Body)
		}
		w := a.post(t.Context(), chatBody)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || a.last().Outcome != "memory" {
			t.Errorf("the next got %d %v, outcome %q", w.Code, w.Header(), a.last().Outcome)
		}
		short = false
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK {
			t.Errorf("later: got %d", w.Code)
		}
		m.idle()
	})
}
