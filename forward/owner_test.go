package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

func TestOwnerGivesPeersOnlyWhatClientsMayUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMemMesh(t, "a").agents["a"]
		var got *http.Request
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r.Clone(context.Background())
			echoEngine{"a"}.ServeHTTP(w, r)
		})
		ask := func(method, path string) error {
			got = nil
			c := &call{Engine: "0", Method: method, Path: path, QueuedAtProbe: -1, Header: http.Header{
				"X-Data-Parallel-Rank": {"1"}, "Authorization": {"Bearer other"}, "Content-Type": {"application/json"},
			}}
			_, err := a.Owner.serve(t.Context(), c, func() ([]byte, error) { return []byte(chatBody), nil }, laneOf(t))
			return err
		}
		for _, path := range []string{"@evil.example/x", "/flush_cache", "/v1/load_lora_adapter", "/v1/../metrics", "//evil.example/v1/models", ""} {
			refused, ok := errors.AsType[*bounce](ask(http.MethodPost, path))
			if !ok || refused.Reason != "not_allowed" || got != nil {
				t.Errorf("%q: got %v, and the engine saw %v", path, refused, got)
			}
		}
		if err := ask(http.MethodPost, "/v1/chat/completions?x=1"); err != nil || got.URL.String() != "http://a/v1/chat/completions?x=1" {
			t.Fatalf("got %v, the engine saw %v", err, got)
		}
		if h := got.Header; h.Get("X-Data-Parallel-Rank") != "" || h.Get("Authorization") != "Bearer engine-key" {
			t.Errorf("the engine got the header %v", h)
		}
	})
}

func TestRequestsAreAddressedToTheEnginesRank(t *testing.T) {
	rank := 3
	for _, tt := range []struct {
		kind         engine.Kind
		path         string
		header, body string
	}{
		{engine.KindVLLM, "/v1/chat/completions", "3", chatBody},
		{engine.KindVLLM, "/v1/responses", "3", chatBody},
		{engine.KindSGLang, "/v1/chat/completions", "", `{"routed_dp_rank":3,` + chatBody[1:]},
		{engine.KindSGLang, "/v1/responses", "", chatBody}, // there is no such field there
		{"", "/v1/chat/completions", "3", chatBody},        // not known yet
	} {
		local := LocalEngine{Rank: &rank, Kind: func() engine.Kind { return tt.kind }}
		h := http.Header{}
		body := local.address(h, &call{Method: http.MethodPost, Path: tt.path + "?x=1"}, []byte(chatBody))
		if string(body) != tt.body || h.Get("X-data-parallel-rank") != tt.header {
			t.Errorf("%s of %s: got %v and %s", tt.path, tt.kind, h, body)
		}
	}
	h := http.Header{}
	if body := new(LocalEngine).address(h, &call{}, []byte(chatBody)); string(body) != chatBody || len(h) > 0 {
		t.Errorf("an engine without rank: got %v and %s", h, body)
	}
}

func TestEngineGetsTheRankThatItsAgentSays(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		rank := 0
		local := b.Owner.engines["0"]
		local.Rank, local.Kind = &rank, func() engine.Kind { return engine.KindVLLM }
		b.Owner.engines["0"] = local
		a.book.refuse = "draining"
		var got http.Header
		b.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r.Header.Clone()
			echoEngine{"b"}.ServeHTTP(w, r)
		})
		a.post(t.Context(), chatBody, func(r *http.Request) { r.Header.Set("X-Data-Parallel-Rank", "1") })
		if ranks := got.Values("X-Data-Parallel-Rank"); len(ranks) != 1 || ranks[0] != "0" {
			t.Errorf("the engine got the ranks %q, want its own", ranks)
		}
	})
}

type discardWriter struct{ header http.Header }

func (w discardWriter) Header() http.Header         { return w.header }
func (w discardWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w discardWriter) WriteHeader(int)             {}
func (w discardWriter) Flush()                      {}

func TestSuspectServesAfterItAnsweredAProbe(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "draining"
		a.View.Missed("b", time.Now(), time.Now())
		if s := a.View.StateOf("b", time.Now()); s != Suspect {
			t.Fatalf("b is %v", s)
		}
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK {
			t.Errorf("got %d %q, want the answer of the suspect", w.Code, w.Body)
		}
		if s := a.View.StateOf("b", time.Now()); s != Fresh {
			t.Errorf("b is %v after its answer", s)
		}
	})
}

func TestOnePauseIsOneMiss(t *testing.T) {
	v, _, now := testView(t)
	v.Hear("b", report(1, 0), now)
	asked, later := now.Add(time.Second/2), now.Add(time.Second/2+acceptFloor)
	for range 5 {
		v.Missed("b", asked, later)
	}
	v.Missed("b", now.Add(-time.Second), later) // asked before it was heard last
	if s := v.StateOf("b", now); s != Suspect {
		t.Errorf("five requests met one pause: b is %v, want suspect", s)
	}
}

// bouncingPeer has answered and stopped reading before it is asked.
type bouncingPeer struct{ Peers }

func (bouncingPeer) RTT(string) time.Duration { return 0 }

func (bouncingPeer) OpenRequest(context.Context, string) (Stream, error) {
	here, there := memStreams()
	frames := newFrameWriter(there)
	err := errors.Join(frames.write(frameBounce, appendVerdict(verdict{Reason: "full"})), frames.flush(), there.Close())
	return here, err
}

func TestBounceIsReadAlthoughTheBodyCannotBeWritten(t *testing.T) {
	for _, size := range []int{100, earlyBody, earlyBody + 1} {
		c := exampleCall()
		c.BodySize = size
		g := &Ingress{Config: Config{Peers: bouncingPeer{}, View: NewView("a", nil)}}
		_, err := g.askPeer(t.Context(), "b", c, make([]byte, size), 1, laneOf(t))
		if refused, ok := errors.AsType[*bounce](err); !ok || refused.Reason != "full" {
			t.Errorf("body of %d bytes: got %v, want the bounce", size, err)
		}
	}
}

// No heartbeat comes in this mesh: only what the stream carries tells of the agent.
func TestLongStreamOutlivesLostHeartbeats(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "draining"
		b.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			a.View.Hear("b", Report{Period: 500 * time.Millisecond}, time.Now()) // the last heartbeat
			startStream(w, roleChunk)
			for range 20 {
				time.Sleep(500 * time.Millisecond)
				if _, err := io.WriteString(w, chunkOf("word")); err != nil {
					return
				}
			}
			_, _ = io.WriteString(w, doneChunk)
		})
		ctx, cancel := context.WithCancel(t.Context())
		var ticks sync.WaitGroup
		ticks.Go(func() {
			for ctx.Err() == nil {
				a.View.Tick(time.Now())
				time.Sleep(silenceOfDead / 12)
			}
		})
		w := a.post(t.Context(), chatBody)
		if want := roleChunk + strings.Repeat(chunkOf("word"), 20) + doneChunk; w.Body.String() != want {
			t.Errorf("got %q, want twenty words", w.Body)
		}
		if s := a.View.StateOf("b", time.Now()); s != Fresh {
			t.Errorf("b is %v", s)
		}
		cancel()
		ticks.Wait()
		time.Sleep(time.Second) // an engine that was given up notices
	})
}

func TestStreamGivesASignOfLifeOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signs := 0
		h := &hop{heard: func(time.Time) { signs++ }}
		for range 101 { // a second of tokens, at both ends
			h.hear()
			time.Sleep(heardGap / 10)
		}
		if signs != 11 {
			t.Errorf("got %d signs in a second, want 11", signs)
		}
	})
}

func TestPreambleOfAnyLengthIsPassedOn(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		preamble := `data: {"id":"c","choices":[],"prompt_token_ids":[` + strings.Repeat("12345,", maxHeld/3) + "1]}\n\n"
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			startStream(w, roleChunk+preamble+chunkOf("one")+doneChunk)
		})
		if w := a.post(t.Context(), chatBody); w.Body.String() != roleChunk+preamble+chunkOf("one")+doneChunk {
			t.Errorf("got %d and %d bytes, want 200 and %d", w.Code, w.Body.Len(), len(preamble))
		}
	})
}

func TestRefusalAfterTheStreamWasAnnouncedIsAnErrorEvent(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(holdLimit + time.Second)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"too long"}}`)
		})
		w := a.post(t.Context(), chatBody)
		if got := w.Body.String(); w.Code != 200 || !strings.HasPrefix(got, ": waiting") || !strings.Contains(got, `data: {"error"`) {
			t.Errorf("got %d %q", w.Code, got)
		}
	})
}

func TestErrorEventBeforeContentGetsAnotherEngine(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		failing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			startStream(w, roleChunk+"data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n"+doneChunk)
		})
		a.engine = failing
		for range 20 {
			m.tell()
			if w := a.post(t.Context(), chatBody); w.Body.String() != (echoEngine{"b"}).answer() {
				t.Fatalf("got %q", w.Body)
			}
		}
		b.engine = failing
		if w := a.post(t.Context(), chatBody); !strings.Contains(w.Body.String(), "out of memory") || a.last().Outcome != outcomeEngineError {
			t.Errorf("got %q with outcome %q, want the engine's own error", w.Body, a.last().Outcome)
		}
	})
}

func TestEmptyAnswerIsNone(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		a.engine = empty
		for range 5 {
			m.tell()
			if w := a.post(t.Context(), chatBody); w.Body.String() != (echoEngine{"b"}).answer() {
				t.Fatalf("got %d %q with the attempts %v", w.Code, w.Body, a.last().Attempts)
			}
		}
		b.engine = empty
		if w := a.post(t.Context(), chatBody); w.Code < http.StatusInternalServerError {
			t.Errorf("got %d %q from engines that answer nothing", w.Code, w.Body)
		}
	})
}

func TestBodyIsLetGoAtTheFirstContent(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		for _, remote := range []bool{false, true} {
			owner := a
			if a.book.refuse, b.book.refuse = "", "draining"; remote {
				a.book.refuse, b.book.refuse, owner = "draining", "", b
			}
			var before, after int64
			owner.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				before = a.bodies.held.Load()
				startStream(w, roleChunk+chunkOf("one"))
				synctest.Wait()
				after = a.bodies.held.Load() + b.bodies.held.Load()
				_, _ = io.WriteString(w, doneChunk)
			})
			a.post(t.Context(), chatBody)
			if before < int64(len(chatBody)) || after != 0 {
				t.Errorf("remote %t: %d bytes held before the first content, %d after", remote, before, after)
			}
		}
	})
}

func TestRequestOnAHangingEngineIsServedElsewhere(t *testing.T) {
	for _, remote := range []bool{false, true} {
		mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
			hung, other := a, b
			if remote {
				hung, other = b, a
			}
			other.book.refuse = "draining"
			hung.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				startStream(w, roleChunk)
				other.book.set(func(b *memBooker) { b.refuse = "" })
				hung.book.set(func(b *memBooker) { b.hang(errors.New("engine does not answer")) })
				<-r.Context().Done()
			})
			if w := a.post(t.Context(), chatBody); !strings.HasSuffix(w.Body.String(), doneChunk) {
				t.Errorf("remote %t: got %d %q", remote, w.Code, w.Body)
			}
		})
	}
}

func TestInternalErrorIsTriedOnceMore(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		m.add("c")
		m.tell()
		asked := 0
		failing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked++
			w.WriteHeader(http.StatusInternalServerError)
		})
		for _, agent := range m.agents {
			agent.engine = failing
		}
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusInternalServerError || asked != 2 {
			t.Errorf("got %d after %d engines, want 500 after two: it may be the request's fault", w.Code, asked)
		}
		if a.last().Outcome != outcomeEngineError {
			t.Errorf("outcome %q", a.last().Outcome)
		}
	})
}

func TestRequestWaitsForAnAgentThatPauses(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		a.book.down = true
		m.tell()
		b.mu.Lock()
		b.mute = true
		b.mu.Unlock()
		go func() {
			time.Sleep(time.Second)
			b.mu.Lock()
			b.mute = false
			b.mu.Unlock()
			m.tell()
		}()
		start := time.Now()
		w := a.post(t.Context(), chatBody)
		if took := time.Since(start); w.Code != http.StatusOK || took < time.Second || took > 2*time.Second {
			t.Errorf("got %d after %v, want the answer of the only engine soon after its agent is back", w.Code, took)
		}
		a.View.PeerDown("b", errors.New("gone"))
		start = time.Now()
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusServiceUnavailable || time.Since(start) > time.Second {
			t.Errorf("got %d after %v, want 503 at once for an agent that is gone", w.Code, time.Since(start))
		}
	})
}

func TestCutRequestsEndWithAnErrorEvent(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			startStream(w, chunkOf("one"))
			a.Cut()
			<-r.Context().Done()
		})
		w := a.post(t.Context(), chatBody)
		if got := w.Body.String(); !strings.HasPrefix(got, chunkOf("one")) || !strings.Contains(got, "agent_stopped") {
			t.Errorf("got %q", got)
		}
	})
}

func TestOnlyEngineIsAskedAgainWhenItsCacheIsAnother(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "draining"
		body := strings.Replace(chatBody, "hello", strings.Repeat("long ", 1000), 1)
		p := keysOf(t, openai.RouteChat, body)
		d := digestOf("b/0", 1, p.Keys...)
		a.Index.Apply(&d)
		b.book.set(func(b *memBooker) { b.generation = 2 })
		if w := a.post(t.Context(), body); w.Code != http.StatusOK || w.Header().Get("X-Kvmesh-Overlap") != "0" {
			t.Errorf("got %d with overlap %s: %v", w.Code, w.Header().Get("X-Kvmesh-Overlap"), a.last().Attempts)
		}
	})
}
