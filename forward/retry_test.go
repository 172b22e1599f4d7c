package forward

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAllowanceBoundsEverySpan asks for far more than is allowed, at changing rates, and looks at every span of time.
func TestAllowanceBoundsEverySpan(t *testing.T) {
	const share, floor, seconds = 0.2, 1, 400
	rng := rngOfTests()
	var a allowance
	requests, spent := make([]float64, seconds), make([]float64, seconds)
	at := time.Unix(0, 0)
	for i := range seconds {
		for range []int{0, 3, 100}[rng.IntN(3)] {
			a.request(at)
			requests[i]++
			for a.take(at, share, floor) {
				spent[i]++
			}
		}
		at = at.Add(time.Second)
	}
	total := 0.0
	for from := range seconds {
		before, n, done := 0.0, 0.0, 0.0 // before is at most what is left of all requests before
		for i := range from {
			before += requests[i] * decayOver(time.Duration(from-i)*time.Second)
		}
		for to := from; to < seconds; to++ {
			n, done = n+requests[to], done+spent[to]
			span := float64(to - from + 1)
			if limit := share*(n+before) + floor*(span+allowanceTime.Seconds()); done > limit {
				t.Fatalf("seconds %d to %d: %v done, want at most %v", from, to, done, limit)
			}
		}
		total = max(total, done)
	}
	if total == 0 {
		t.Error("nothing was allowed")
	}
}

// TestPausesStayShort: races for a slot count as no attempts, so a stream that goes on may pause very often.
func TestPausesStayShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &exchange{ctx: t.Context(), rng: rngOfTests()}
		for n := range 200 {
			start := time.Now()
			if err := x.backOff(); err != nil {
				t.Fatal(err)
			}
			if took, most := time.Since(start), time.Duration(min(20<<min(n, 10), 320))*time.Millisecond; took >= most {
				t.Fatalf("pause %d took %v, want less than %v", n, took, most)
			}
		}
	})
}

func TestAllowanceGivesBack(t *testing.T) {
	var a allowance
	now := time.Unix(0, 0)
	a.request(now)
	if !a.take(now, 1, 0) || a.take(now, 1, 0) {
		t.Fatal("want one of one request")
	}
	a.give()
	if !a.take(now, 1, 0) {
		t.Error("what was given back cannot be taken")
	}
}

// meshOf runs a test with agents of these names, and looks that nothing is left behind.
func meshOf(t *testing.T, names []string, test func(t *testing.T, m *memMesh)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, names...)
		test(t, m)
		synctest.Wait()
		m.idle()
	})
}

// TestRetriesAreNoStorm has every engine fail half of what it gets.
func TestRetriesAreNoStorm(t *testing.T) {
	ways := map[string]func(w http.ResponseWriter){
		"503":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		"reset": func(w http.ResponseWriter) { startStream(w, roleChunk); panic("reset") },
		"error event": func(w http.ResponseWriter) {
			startStream(w, `data: {"error":{"message":"out of memory","code":500}}`+"\n\n")
		},
	}
	for name, fail := range ways {
		t.Run(name, func(t *testing.T) {
			meshOf(t, []string{"a", "b", "c", "d"}, func(t *testing.T, m *memMesh) {
				var sent atomic.Int64
				var mu sync.Mutex
				rng := rand.New(rand.NewPCG(1, 2))
				for name, a := range m.agents {
					a.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						sent.Add(1)
						mu.Lock()
						bad := rng.IntN(2) == 0
						mu.Unlock()
						if bad {
							fail(w)
							return
						}
						echoEngine{name}.ServeHTTP(w, r)
					})
				}
				const n, gap = 2000, 40 * time.Millisecond
				a := m.agents["a"]
				var clients sync.WaitGroup
				start := time.Now()
				for range n {
					clients.Go(func() {
						w := a.post(t.Context(), chatBody)
						if w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
							t.Errorf("got %d %q without Retry-After", w.Code, w.Body)
						}
					})
					time.Sleep(gap)
				}
				clients.Wait()
				limit := (1+retryShare)*n + retryFloor*(time.Since(start)+allowanceTime).Seconds()
				if got := float64(sent.Load()); got > limit || got < 0.9*limit {
					t.Errorf("the engines got %v requests for %d of clients, want at most %v, and nearly as many", got, n, limit)
				}
			})
		})
	}
}

// TestAllWhoWaitAtAnEngineThatDiesAreServed has an engine die under thirty requests that have no token yet.
func TestAllWhoWaitAtAnEngineThatDiesAreServed(t *testing.T) {
	meshOf(t, []string{"a", "b", "c"}, func(t *testing.T, m *memMesh) {
		a, b := m.agents["a"], m.agents["b"]
		for _, other := range []string{"a", "c"} {
			m.agents[other].book.refuse = "draining"
		}
		dead := make(chan struct{})
		b.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			startStream(w, roleChunk)
			<-dead
			panic("reset")
		})
		var mu sync.Mutex
		arrivals := map[time.Duration]int{} // of second attempts
		start := time.Now()
		for _, other := range []string{"a", "c"} {
			m.agents[other].engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				arrivals[time.Since(start)]++
				mu.Unlock()
				echoEngine{"b"}.ServeHTTP(w, r)
			})
		}
		var clients sync.WaitGroup
		for range 30 {
			clients.Go(func() {
				if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK || w.Body.String() != (echoEngine{"b"}).answer() {
					t.Errorf("got %d %q", w.Code, w.Body)
				}
			})
		}
		synctest.Wait()
		for _, other := range []string{"a", "c"} {
			m.agents[other].book.set(func(b *memBooker) { b.refuse = "" })
		}
		m.tell()
		close(dead)
		clients.Wait()
		if len(arrivals) < 20 {
			t.Errorf("thirty retries came at %d moments, want them spread", len(arrivals))
		}
	})
}

func TestRequestThatKillsEnginesIsGivenUp(t *testing.T) {
	meshOf(t, []string{"a", "b", "c", "d", "e"}, func(t *testing.T, m *memMesh) {
		killed := 0
		for _, a := range m.agents {
			a.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				killed++
				panic("reset")
			})
		}
		a := m.agents["a"]
		w := a.post(t.Context(), chatBody)
		if killed != maxDeaths || w.Code != http.StatusBadGateway || a.last().Outcome != "reset" {
			t.Errorf("%d engines were killed, then %d %q, outcome %s", killed, w.Code, w.Body, a.last().Outcome)
		}
		if !strings.Contains(w.Body.String(), "do not send it again unchanged") {
			t.Errorf("advice is %s", w.Body)
		}
	})
}

func TestAdviceIsToSendAgainOnlyWhatMayBeDoneTwice(t *testing.T) {
	for body, again := range map[string]bool{
		`{"model":"m","input":"hello","stream":true,"store":false}`:     true,
		`{"model":"m","input":"hello","stream":true,"store":true}`:      false,
		`{"model":"m","input":"hello","stream":true,"background":true}`: false,
	} {
		mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
			dead := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {\"type\":\"response.output_text.delta\",\"delta\":\"one\"}\n\n")
				w.(http.Flusher).Flush()
				panic("reset")
			})
			a.engine, b.engine = dead, dead
			w := httptest.NewRecorder()
			a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/responses", strings.NewReader(body)))
			got := w.Body.String()
			if !strings.Contains(got, "engine_failed") || strings.Contains(got, "; send the request again") != again {
				t.Errorf("for %s got %d %s", body, w.Code, got)
			}
		})
	}
}

func TestEnginesErrorForWhatMustNotBeDoneTwiceGoesToTheClient(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		busy := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "busy")
		})
		a.engine, b.engine = busy, busy
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/responses",
			strings.NewReader(`{"model":"m","input":"hello","background":true}`)))
		if w.Code != http.StatusServiceUnavailable || w.Body.String() != "busy" || w.Header().Get("Retry-After") != "1" || len(a.last().Attempts) != 1 {
			t.Errorf("got %d %q %v after %+v", w.Code, w.Body, w.Header(), a.last().Attempts)
		}
	})
}

func TestClientThatGoesAwayInAPauseIsNotRetried(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var sent atomic.Int64
		for _, agent := range []*memAgent{a, b} {
			agent.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				sent.Add(1)
				cancel()
				w.WriteHeader(http.StatusServiceUnavailable)
			})
		}
		a.post(ctx, chatBody)
		if e := a.last(); sent.Load() != 1 || e.Outcome != outcomeCanceled {
			t.Errorf("%d engines got it; outcome %s", sent.Load(), e.Outcome)
		}
	})
}
