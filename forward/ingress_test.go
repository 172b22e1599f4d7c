package forward

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

func mesh2(t *testing.T, test func(t *testing.T, m *memMesh, a, b *memAgent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, "a", "b")
		test(t, m, m.agents["a"], m.agents["b"])
		synctest.Wait()
		m.idle()
	})
}

func TestAnswerIsByteForByteTheEngines(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		for _, local := range []bool{true, false} {
			want := echoEngine{"b"}.answer()
			if local {
				want = echoEngine{"a"}.answer()
				b.book.refuse = "draining"
			} else {
				a.book.refuse, b.book.refuse = "draining", ""
			}
			w := a.post(t.Context(), chatBody)
			if w.Code != http.StatusOK || w.Body.String() != want {
				t.Errorf("local %t: got %d %q, want %q", local, w.Code, w.Body, want)
			}
		}
		e := a.last()
		if e.Outcome != outcomeOK || e.PromptTokens != 10 || *e.CachedTokens != 3 {
			t.Errorf("event %+v does not hold what the engine reported", e)
		}
	})
}

func TestExplainHeadersNameTheEngine(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "draining"
		w := a.post(t.Context(), chatBody, func(r *http.Request) { r.Header.Set("X-Request-Id", "my-id") })
		h := w.Header()
		if h.Get("X-Kvmesh-Engine") != "b/0" || h.Get("X-Kvmesh-Overlap") != "0" || h.Get("X-Request-Id") != "my-id" {
			t.Errorf("got header %v", h)
		}
	})
}

func TestClientsCredentialsStayAtTheIngress(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "draining"
		var got http.Header
		b.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r.Header.Clone()
			echoEngine{"b"}.ServeHTTP(w, r)
		})
		a.post(t.Context(), chatBody, func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer client")
			r.Header.Set("X-Api-Key", "client")
			r.Header.Set("X-Data-Parallel-Rank", "1")
			r.Header.Set("Traceparent", "trace")
		})
		if got.Get("Authorization") != "Bearer engine-key" || got.Get("X-Api-Key") != "" || got.Get("X-Data-Parallel-Rank") != "" {
			t.Errorf("the engine got %v", got)
		}
		if got.Get("Traceparent") != "trace" || got.Get("Content-Type") != "application/json" {
			t.Errorf("the engine did not get what it may: %v", got)
		}
	})
}

// TestRequestWithoutContentGetsAnotherEngine breaks engine a in every way before its first content.
func TestRequestWithoutContentGetsAnotherEngine(t *testing.T) {
	ways := map[string]http.HandlerFunc{
		"refused":        func(http.ResponseWriter, *http.Request) { panic("connection refused") },
		"503":            func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"429":            func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"role, then cut": func(w http.ResponseWriter, _ *http.Request) { startStream(w, roleChunk); panic("reset") },
		"role, then end": func(w http.ResponseWriter, _ *http.Request) { startStream(w, roleChunk) },
		"half an event":  func(w http.ResponseWriter, _ *http.Request) { startStream(w, roleChunk[:20]) },
	}
	for name, broken := range ways {
		t.Run(name, func(t *testing.T) {
			mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
				for range 60 { // until chance has chosen the broken one first
					a.engine = broken
					m.tell()
					w := a.post(t.Context(), chatBody)
					if w.Code != http.StatusOK || w.Body.String() != (echoEngine{"b"}).answer() {
						t.Fatalf("got %d %q", w.Code, w.Body)
					}
					a.book.set(func(b *memBooker) { b.down = false })
					if len(a.last().Attempts) == 2 {
						return
					}
				}
				t.Error("the broken engine was never chosen first")
			})
		})
	}
}

func startStream(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, text)
}

func TestLastEnginesStatusGoesToTheClient(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		busy := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, "busy")
		})
		a.engine, b.engine = busy, busy
		w := a.post(t.Context(), chatBody)
		if w.Code != http.StatusTooManyRequests || w.Body.String() != "busy" || w.Header().Get("Retry-After") != "7" {
			t.Errorf("got %d %q %v", w.Code, w.Body, w.Header())
		}
		if n := len(a.last().Attempts); n != 2 {
			t.Errorf("%d engines were tried, want each once", n)
		}
	})
}

// TestAnswerIsWholeWithoutTheOwnersLastWord loses the owner when the client has all of the stream.
func TestAnswerIsWholeWithoutTheOwnersLastWord(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "draining"
		b.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			startStream(w, roleChunk+chunkOf("word"))
			_, _ = io.WriteString(w, doneChunk)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Second)
			a.View.PeerDown("b", errors.New("cut"))
			<-r.Context().Done()
		})
		w := a.post(t.Context(), chatBody)
		if want := roleChunk + chunkOf("word") + doneChunk; w.Body.String() != want {
			t.Errorf("got %q, want %q", w.Body, want)
		}
		if e := a.last(); e.Outcome != outcomeOK {
			t.Errorf("outcome %q", e.Outcome)
		}
		time.Sleep(time.Second) // an engine that was given up notices
	})
}

func TestEngineThatDiesInMidStreamEndsWithAnErrorEvent(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		dying := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			startStream(w, roleChunk+chunkOf("one")+chunkOf("two")[:30])
			panic("reset")
		})
		for _, remote := range []bool{false, true} {
			a.book.refuse, b.book.refuse = "", "draining"
			if remote {
				a.book.refuse, b.book.refuse = "draining", ""
			}
			a.engine, b.engine = dying, dying
			w := a.post(t.Context(), chatBody)
			got, ok := strings.CutPrefix(w.Body.String(), roleChunk+chunkOf("one"))
			if !ok || !strings.HasPrefix(got, `data: {"error":`) || !strings.HasSuffix(got, "\n\n") {
				t.Errorf("remote %t: got %q", remote, w.Body)
			}
			if a.last().Outcome != "reset" {
				t.Errorf("outcome %q, want reset", a.last().Outcome)
			}
		}
	})
}

func TestPlainAnswerThatBreaksIsCut(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"id":`)
			panic("reset")
		})
		defer func() {
			if p, _ := recover().(error); !errors.Is(p, http.ErrAbortHandler) {
				t.Errorf("got %v, want the connection to be cut", p)
			}
		}()
		a.post(t.Context(), strings.Replace(chatBody, "true", "false", 1))
	})
}

func TestMutePeerIsPassedOverAndNoted(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		b.mute = true
		start := time.Now()
		if a.post(t.Context(), chatBody); len(a.last().Attempts) != 1 || a.last().Engine != "a/0" || time.Since(start) != probeFloor {
			t.Errorf("got %+v after %v, want the idle engine that is known to be there, %v later", a.last(), time.Since(start), probeFloor)
		}
		m.tell()
		a.book.set(func(b *memBooker) { b.n = 2 }) // 100 ms by the score: b is worth a try that costs 50
		start = time.Now()
		w := a.post(t.Context(), chatBody)
		a.book.set(func(b *memBooker) { b.n = 0 })
		if w.Body.String() != (echoEngine{"a"}).answer() || len(a.last().Attempts) != 2 {
			t.Fatalf("got %d %q after %+v, want an answer after the mute peer was tried", w.Code, w.Body, a.last().Attempts)
		}
		if took := time.Since(start); took != probeFloor+acceptFloor {
			t.Errorf("passed over after %v, want %v", took, probeFloor+acceptFloor)
		}
		if s := a.View.StateOf("b", time.Now()); s != Suspect {
			t.Errorf("the mute peer is %v, want suspect", s)
		}
	})
}

func TestSilentHolderIsTriedUntilItMissesOrIsDead(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("what is held. ", 2000) + `"}]}`
	const period = 30 * time.Second // of heartbeats, as they tell
	for silent, tried := range map[time.Duration][]engine.ID{3 * period: {"b/0", "a/0"}, 4*period + 1: {"a/0", "a/0"}} {
		mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
			p := keysOf(t, openai.RouteChat, body)
			held := digestOf("b/0", 1, p.Keys...)
			a.Index.Apply(&held)
			a.View.Heard("b", time.Now())
			b.mute = true
			time.Sleep(silent)
			for _, id := range tried {
				a.post(t.Context(), body)
				if e := a.last(); e.Attempts[0].Engine != id || e.Outcome != outcomeOK {
					t.Errorf("silent for %v: got %s after %+v, want %s tried first", silent, e.Outcome, e.Attempts, id)
				}
			}
			if s := a.View.StateOf("b", time.Now()); s != Unreachable {
				t.Errorf("silent for %v: the holder is %v in the end, want unreachable", silent, s)
			}
		})
	}
}

func TestClientThatGoesAwayUndoesTheBookingAndEndsTheEnginesRequest(t *testing.T) {
	for _, remote := range []bool{false, true} {
		mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
			owner := a
			if a.book.refuse, b.book.refuse = "", "draining"; remote {
				a.book.refuse, b.book.refuse, owner = "draining", "", b
			}
			aborted := make(chan struct{})
			owner.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				startStream(w, roleChunk)
				<-r.Context().Done()
				close(aborted)
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			a.post(ctx, chatBody)
			<-aborted
			if e := a.last(); e.Outcome != outcomeCanceled {
				t.Errorf("remote %t: outcome %q, want canceled", remote, e.Outcome)
			}
		})
	}
}

func TestSilentPeersStreamIsServedElsewhere(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		hung := make(chan struct{})
		b.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			startStream(w, roleChunk)
			close(hung)
			<-r.Context().Done()
		})
		a.book.refuse = "draining"
		go func() {
			<-hung
			a.book.set(func(b *memBooker) { b.refuse = "" })
			a.View.Tick(time.Now().Add(beatsOfDead*30*time.Second + time.Millisecond)) // at the period of memMesh
		}()
		if w := a.post(t.Context(), chatBody); w.Body.String() != (echoEngine{"a"}).answer() {
			t.Errorf("got %d %q", w.Code, w.Body)
		}
	})
}

func TestFullMeshHoldsRequestsThenRefuses(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		a.book.limit, b.book.limit = 1, 1
		a.book.n, b.book.n = 1, 1
		m.tell()
		start := time.Now()
		w := a.post(t.Context(), chatBody)
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" || time.Since(start) < a.QueueTimeout {
			t.Errorf("got %d after %v with Retry-After %q", w.Code, time.Since(start), w.Header().Get("Retry-After"))
		}
		if e := a.last(); e.Refused != refusedTimeout || e.Waited != a.QueueTimeout {
			t.Errorf("refused for %q after waiting %v", e.Refused, e.Waited)
		}
		go func() {
			time.Sleep(2 * time.Second)
			b.book.set(func(b *memBooker) { b.n = 0 })
			m.tell()
		}()
		start = time.Now()
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK || time.Since(start) > 2*time.Second+200*time.Millisecond {
			t.Errorf("got %d after %v, want 200 soon after an engine became free", w.Code, time.Since(start))
		}
		synctest.Wait()
		a.book.set(func(b *memBooker) { b.n = 0 })
	})
}

// TestEnginesThatAnswerThatTheyAreFullAreWaitedFor has engines become full without a heartbeat that says so.
func TestEnginesThatAnswerThatTheyAreFullAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Replace(chatBody, "hello", strings.Repeat("hello ", 200), 1)
		m := newMemMesh(t, "a", "b", "c")
		a, b, c := m.agents["a"], m.agents["b"], m.agents["c"]
		a.book.down = true
		m.tell()
		fill := func(b *memBooker) { b.limit, b.n = 1, 1 }
		b.book.set(fill)
		c.book.set(fill)
		go func() {
			time.Sleep(2 * time.Second)
			b.book.set(func(b *memBooker) { b.n = 0 })
			m.tell()
		}()
		if w := a.post(t.Context(), long); w.Code != http.StatusOK {
			t.Errorf("got %d %q, want the answer of the engine that became free", w.Code, w.Body)
			time.Sleep(2 * time.Second)
		}
		c.book.set(func(b *memBooker) { b.n = 0 })
		synctest.Wait()
		m.idle()
	})
}

func TestNoEngineIs503(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		a.book.down, b.book.down = true, true
		m.tell()
		w := a.post(t.Context(), chatBody)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("got %d %q", w.Code, w.Body)
		}
	})
}

// TestFullEngineThatTakesNothingIsNotWaitedFor: it would still be down, or cordoned, when it is no longer full.
func TestFullEngineThatTakesNothingIsNotWaitedFor(t *testing.T) {
	for name, change := range map[string]func(a, b *memAgent){
		"down":     func(_, b *memAgent) { b.book.down = true },
		"cordoned": func(a, _ *memAgent) { a.View.SetCordons(func(id engine.ID) bool { return id.Agent() == "b" }) },
	} {
		mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
			a.book.down, b.book.limit = true, 1
			b.book.occupy(1)
			change(a, b)
			m.tell()
			start := time.Now()
			if w := a.post(t.Context(), chatBody); w.Code != http.StatusServiceUnavailable || time.Since(start) > time.Second {
				t.Errorf("%s: got %d %q after %v", name, w.Code, w.Body, time.Since(start))
			}
			b.book.occupy(-1)
		})
	}
}

func TestBounceGoesToAnotherOwner(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "queue"
		w := a.post(t.Context(), chatBody)
		if w.Body.String() != (echoEngine{"b"}).answer() {
			t.Errorf("got %d %q", w.Code, w.Body)
		}
	})
}

func TestHeldHeaderGoesOutWithCommentsAfterAWhile(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.refuse = "draining"
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			startStream(w, roleChunk)
			time.Sleep(holdLimit + commentPeriod + time.Second)
			_, _ = io.WriteString(w, chunkOf("late")+doneChunk)
		})
		w := a.post(t.Context(), chatBody)
		const comment = ": waiting for the first token\n\n"
		if want := comment + comment + roleChunk + chunkOf("late") + doneChunk; w.Body.String() != want {
			t.Errorf("got %q, want %q", w.Body, want)
		}
	})
}

func TestBadRequestsAreRefusedBeforeAnyEngineSeesThem(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("an engine saw a bad request") })
		a.engine, b.engine = never, never
		a.MaxBody = 1000
		tests := []struct {
			name, method, path, body string
			status                   int
			change                   func(*http.Request)
		}{
			{"malformed JSON", "POST", "/v1/chat/completions", `{"model":`, 400, nil},
			{"wrong type", "POST", "/v1/chat/completions", `{"model":"m","messages":"x"}`, 400, nil},
			{"unknown model", "POST", "/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"nope"`, 1), 404, nil},
			{"empty messages", "POST", "/v1/chat/completions", `{"model":"m","messages":[]}`, 400, nil},
			{"body over the limit", "POST", "/v1/chat/completions", strings.Repeat(" ", 1001), 413, nil},
			{
				"body over the limit without length", "POST", "/v1/chat/completions", strings.Repeat(" ", 1001), 413,
				func(r *http.Request) { r.ContentLength = -1 },
			},
			{
				"truncated body", "POST", "/v1/chat/completions", `{"mod`, 400,
				func(r *http.Request) { r.Body = io.NopCloser(io.MultiReader(r.Body, brokenReader{})) },
			},
			{
				"header over the limit", "POST", "/v1/chat/completions", chatBody, 431,
				func(r *http.Request) { r.Header.Set("X-Long", strings.Repeat("x", maxHeaderBytes)) },
			},
			{"route not allowed", "POST", "/v1/load_lora_adapter", `{}`, 404, nil},
			{"engine's admin route", "POST", "/reset_prefix_cache", ``, 404, nil},
			{"method not allowed", "DELETE", "/v1/models", ``, 405, nil},
			{"field not allowed", "POST", "/v1/chat/completions", strings.Replace(chatBody, `{`, `{"priority":1,`, 1), 400, nil},
		}
		for _, tt := range tests {
			r := httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, strings.NewReader(tt.body))
			if tt.change != nil {
				tt.change(r)
			}
			w := httptest.NewRecorder()
			a.ServeHTTP(w, r)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), `"error"`) || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s: got %d %q, want %d in the API's error shape", tt.name, w.Code, w.Body, tt.status)
			}
			if allow := w.Header().Get("Allow"); (allow == http.MethodGet) != (tt.status == http.StatusMethodNotAllowed) {
				t.Errorf("%s: allows %q", tt.name, allow)
			}
			if e := a.last(); e.Outcome != outcomeBadRequest || e.Reason == "" {
				t.Errorf("%s: event has outcome %q, reason %q", tt.name, e.Outcome, e.Reason)
			}
		}
	})
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestModelsAreTheUnionOfTheMesh(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
		other := described("b/0", 1)
		other.Models = []engine.Model{{Name: "n", MaxContext: 7}}
		a.View.Announce("b", []engine.Engine{other}, time.Now())
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/models", nil))
		for _, want := range []string{`"id":"alias"`, `"id":"m"`, `"id":"n"`, `"max_model_len":7`} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s is missing in %s", want, w.Body)
			}
		}
	})
}

func TestStoredResponseIsFoundWhereItIs(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.engine = http.NotFoundHandler()
		b.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
		const path = "/v1/responses/resp_1"
		ask := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			return w
		}
		if w := ask(); w.Code != http.StatusOK || w.Body.String() != path {
			t.Errorf("got %d %q", w.Code, w.Body)
		}
		b.book.set(func(b *memBooker) { b.refuse = "full" })
		if w := ask(); w.Code != http.StatusOK {
			t.Errorf("got %d from a full engine, which a look-up does not burden", w.Code)
		}
		b.engine = http.NotFoundHandler()
		if w := ask(); w.Code != http.StatusNotFound {
			t.Errorf("got %d %q, want 404 when no engine has it", w.Code, w.Body)
		}
		if got := a.last().Outcome; !slices.Contains(quietOutcomes, got) {
			t.Errorf("outcome %s of a client's wrong id is a warning", got)
		}
		a.View.PeerDown("b", errors.New("gone"))
		if w := ask(); w.Code != http.StatusServiceUnavailable {
			t.Errorf("got %d %q, want 503 when the engine that may have it cannot be asked", w.Code, w.Body)
		}
	})
}

func TestContinuedResponseGoesWhereTheFirstIs(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		const body = `{"model":"m","input":"go on","previous_response_id":"resp_1"}`
		ask := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/responses", strings.NewReader(body)))
			return w
		}
		a.engine = http.NotFoundHandler()
		for range 10 {
			if w := ask(); w.Code != http.StatusOK {
				t.Fatalf("got %d %q, want the answer of the engine that has it", w.Code, w.Body)
			}
		}
		b.engine = http.NotFoundHandler()
		if w := ask(); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "not_found") {
			t.Errorf("got %d %q, want 404 when no engine has it", w.Code, w.Body)
		}
		b.engine = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("reset") })
		for range 10 {
			if w := ask(); w.Code == http.StatusNotFound {
				t.Errorf("got %d %q when the engine that may have it has failed", w.Code, w.Body)
			}
		}
		a.View.PeerDown("b", errors.New("gone"))
		if w := ask(); w.Code != http.StatusServiceUnavailable {
			t.Errorf("got %d %q, want 503 when the engine that may have it cannot be asked", w.Code, w.Body)
		}
	})
}

func TestAbortedRequestsLeaveNothingBehind(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		for _, agent := range []*memAgent{a, b} {
			agent.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for range 50 {
					startStream(w, chunkOf("x"))
					select {
					case <-time.After(10 * time.Millisecond):
					case <-r.Context().Done():
						return
					}
				}
			})
		}
		done := make(chan struct{})
		for i := range 200 {
			go func() {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(i)*time.Millisecond, errors.New("gone"))
				defer cancel()
				[]*memAgent{a, b}[i%2].post(ctx, chatBody)
				done <- struct{}{}
			}()
		}
		for range 200 {
			<-done
		}
	})
}

func TestClassOfASessionSendsItToOneEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, "a", "b", "c", "d")
		for _, a := range m.agents {
			a.setPolicy(Policy{Classes: []Class{{Name: "chat", Strategy: StrategySession, Match: Match{Header: map[string]string{"x-team": "chat"}}}}})
		}
		engines := map[engine.ID]bool{}
		for i := range 20 {
			a := m.agents[string(rune('a'+i%4))]
			a.post(t.Context(), chatBody, func(r *http.Request) {
				r.Header.Set("X-Team", "chat")
				r.Header.Set("X-Session-Id", "s1")
			})
			e := a.last()
			engines[e.Engine] = true
			if e.Class != "chat" || e.Reason != "hash" {
				t.Fatalf("got class %q, reason %q", e.Class, e.Reason)
			}
		}
		if len(engines) != 1 {
			t.Errorf("one session went to %v", engines)
		}
		a := m.agents["a"]
		if a.post(t.Context(), chatBody); a.last().Class != DefaultClass || a.last().Reason == "hash" {
			t.Errorf("another request: got %+v", a.last())
		}
		synctest.Wait()
		m.idle()
		chat := a.Classes()[0]
		if chat.Name != "chat" || chat.Strategy != StrategySession || chat.Requests != 5 || math.Abs(chat.Reuse-0.3) > 1e-9 || chat.NoReuse {
			t.Errorf("got %+v of the class, want 5 requests with 3 of 10 tokens cached", chat)
		}
	})
}

func TestOverlapCountsUnlessTheClassIgnoresIt(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("what is held. ", 2000) + `"}]}`
	mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
		p := keysOf(t, openai.RouteChat, body)
		held := digestOf("b/0", 1, p.Keys...)
		a.Index.Apply(&held)
		a.post(t.Context(), body)
		if e := a.last(); e.Engine != "b/0" || e.Reason != "prefix" || e.OverlapTokens == 0 {
			t.Errorf("auto: got %s because of %s, %d tokens", e.Engine, e.Reason, e.OverlapTokens)
		}
		a.setPolicy(Policy{Classes: []Class{{Name: "batch", Strategy: StrategyLoad}}})
		a.post(t.Context(), body)
		if e := a.last(); e.Reason != "load" || e.OverlapTokens != 0 || len(e.Candidates) != 2 || e.Candidates[1].OverlapTokens != 0 {
			t.Errorf("load: got %+v", e)
		}
	})
}

func TestDecisionUsesWhatTheEnginesLearned(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.View.SetLoad("b/0", engine.Load{Seq: 1 << 20, PrefillRate: 8000, BytesPerToken: 4}, time.Now())
		x := &exchange{g: a.Ingress, rng: rngOfTests(), request: &openai.Request{Model: "m"}, q: *ask(40000)}
		if x.shortlist(time.Now()); x.q.Learned.PrefillRate != 12000 {
			t.Errorf("got %+v, want the mean of 8,000 and 16,000 tokens/s", x.q.Learned)
		}
	})
}

func TestClassWithoutReuseIsShownAsSuch(t *testing.T) {
	var c reuse
	if s := c.status(&Class{}); s.Reuse >= 0 || s.Strategy != StrategyAuto {
		t.Errorf("before any request: %+v", s)
	}
	zero, some := 0, 50
	for i := range reuseSample {
		if s := c.status(&Class{}); s.NoReuse {
			t.Fatalf("after %d requests: %+v", i, s)
		}
		c.note(&Event{PromptTokens: 100, CachedTokens: &zero})
	}
	if s := c.status(&Class{}); !s.NoReuse || s.Reuse != 0 {
		t.Errorf("got %+v", s)
	}
	c.note(&Event{PromptTokens: 100}) // tells nothing
	c.note(&Event{PromptTokens: 100, CachedTokens: &some})
	for range 10 {
		c.note(&Event{PromptTokens: 100, CachedTokens: &some})
	}
	if s := c.status(&Class{}); s.NoReuse || s.Requests != reuseSample+12 || s.Reuse < 0.05 {
		t.Errorf("got %+v after some reuse", s)
	}
}
