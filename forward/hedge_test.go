package forward

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// hedging is a policy whose only class is called h.
func hedging() Policy {
	return Policy{Classes: []Class{{Name: "h", Hedge: true}}}
}

// hedgeMesh runs a test with three agents that hedge. Requests number n at all engines are served by serve; agent a has seen
// enough to know what is late.
func hedgeMesh(t *testing.T, serve func(n int, name string, w http.ResponseWriter, r *http.Request), test func(t *testing.T, m *memMesh)) {
	t.Helper()
	meshOf(t, []string{"a", "b", "c"}, func(t *testing.T, m *memMesh) {
		for _, a := range m.agents {
			a.setPolicy(hedging())
		}
		for range delaysNeeded {
			m.agents["a"].post(t.Context(), chatBody)
		}
		synctest.Wait()
		m.tell()
		var n atomic.Int64
		for name, a := range m.agents {
			a.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(int(n.Add(1)), name, w, r) })
		}
		test(t, m)
	})
}

func (a *memAgent) hedged(result string) float64 {
	return testutil.ToFloat64(a.metrics.hedges.WithLabelValues("h", result))
}

func hang(r *http.Request) { <-r.Context().Done() }

// answerAfter is an engine that takes so long.
func answerAfter(d time.Duration, name string, w http.ResponseWriter, r *http.Request) {
	select {
	case <-time.After(d):
		echoEngine{name}.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// whole is chatBody for an answer that is no stream.
var whole = strings.Replace(chatBody, "true", "false", 1)

func TestLateEngineIsHedgedAndStopped(t *testing.T) {
	for name, body := range map[string]string{"stream": chatBody, "whole": whole} {
		t.Run(name, func(t *testing.T) {
			for range 4 { // the late one is the agent's own, or a peer's
				var stopped chan string
				hedgeMesh(t, func(n int, name string, w http.ResponseWriter, r *http.Request) {
					if n == 1 {
						if body == chatBody {
							startStream(w, roleChunk)
						}
						hang(r)
						stopped <- name
						return
					}
					answerAfter(time.Millisecond, name, w, r)
				}, func(t *testing.T, m *memMesh) {
					a := m.agents["a"]
					stopped = make(chan string, 1)
					if body == whole {
						for range delaysNeeded {
							a.classes.with("h", func(s *classState) { s.delays[0].note(0) })
						}
					}
					start := time.Now()
					posted := make(chan *httptest.ResponseRecorder)
					go func() { posted <- a.post(t.Context(), body) }()
					late := m.agents[<-stopped]
					synctest.Wait()
					if took := time.Since(start); took > acceptFloor+10*time.Millisecond || late.book.booked() != 0 {
						t.Errorf("stopped after %v, %d booked there", took, late.book.booked())
					}
					w := <-posted
					e := a.last()
					if w.Body.String() != (echoEngine{e.Engine.Agent()}).answer() || e.Engine.Agent() == late.Agent || e.Outcome != outcomeOK {
						t.Errorf("got %q of %s, outcome %s", w.Body, e.Engine, e.Outcome)
					}
					want := []Attempt{{engine.MakeID(late.Agent, "0"), "lost", false}, {e.Engine, outcomeOK, true}}
					slices.SortFunc(e.Attempts, func(a, b Attempt) int { return strings.Compare(a.Result, b.Result) })
					if !slices.Equal(e.Attempts, want) || a.hedged("won") != 1 {
						t.Errorf("attempts %+v, want %+v; %v hedges won", e.Attempts, want, a.hedged("won"))
					}
					if h := w.Header(); h.Get("X-Kvmesh-Engine") != string(e.Engine) || h.Get("X-Kvmesh-Reason") != "hedge" {
						t.Errorf("header %v", h)
					}
				})
			}
		})
	}
}

func TestHedgeThatIsSlowerIsStopped(t *testing.T) {
	hedgeMesh(t, func(n int, name string, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			answerAfter(time.Second, name, w, r)
			return
		}
		hang(r)
	}, func(t *testing.T, m *memMesh) {
		a := m.agents["a"]
		a.post(t.Context(), chatBody)
		e := a.last()
		lost := slices.IndexFunc(e.Attempts, func(t Attempt) bool { return t.Hedge && t.Result == "lost" })
		if len(e.Attempts) != 2 || lost < 0 || e.Attempts[1-lost] != (Attempt{e.Engine, outcomeOK, false}) || a.hedged("lost") != 1 {
			t.Errorf("got %+v, %v hedges lost", e.Attempts, a.hedged("lost"))
		}
	})
}

func TestNothingIsHedgedBeforeEnoughIsKnown(t *testing.T) {
	meshOf(t, []string{"a", "b"}, func(t *testing.T, m *memMesh) {
		a := m.agents["a"]
		a.setPolicy(hedging())
		for range delaysNeeded - 1 {
			a.post(t.Context(), chatBody)
		}
		for _, agent := range m.agents {
			agent.engine = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hang(r) })
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if a.post(ctx, chatBody); len(a.last().Attempts) != 1 {
			t.Errorf("got %+v", a.last().Attempts)
		}
	})
}

func TestHedgesStayWithinTheirBudget(t *testing.T) {
	hedgeMesh(t, func(n int, name string, w http.ResponseWriter, r *http.Request) {
		answerAfter(time.Duration(200+10*n)*time.Millisecond, name, w, r) // each is later than all before
	}, func(t *testing.T, m *memMesh) {
		a := m.agents["a"]
		const n = 40
		for range n {
			a.post(t.Context(), chatBody)
		}
		started := a.hedged("won") + a.hedged("lost")
		if limit := hedgeShare * (n + delaysNeeded); started > limit || started < limit-2 || a.hedged("budget") != n-started {
			t.Errorf("%v hedges of %d requests, want at most %v; %v without budget", started, n, limit, a.hedged("budget"))
		}
	})
}

func TestWhatMustNotBeDoneTwiceIsNotHedged(t *testing.T) {
	hedgeMesh(t, func(n int, name string, w http.ResponseWriter, _ *http.Request) {
		if n > 1 {
			t.Errorf("%s got it too", name)
		}
		time.Sleep(time.Minute)
		_, _ = io.WriteString(w, "{}")
	}, func(t *testing.T, m *memMesh) {
		a := m.agents["a"]
		a.classes.with("h", func(s *classState) { s.delays[0] = s.delays[1] })
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/responses",
			strings.NewReader(`{"model":"m","input":"hello","store":true}`)))
		if w.Code != http.StatusOK || a.last().Class != "h" {
			t.Errorf("got %d %q, class %q", w.Code, w.Body, a.last().Class)
		}
	})
}

func TestLongPromptIsNotLateForItsLength(t *testing.T) {
	long := strings.Replace(chatBody, "hello", strings.Repeat("hello ", 100_000), 1) // some 9 s at 16,000 tokens/s
	for took, hedges := range map[time.Duration]float64{8 * time.Second: 0, 12 * time.Second: 1} {
		hedgeMesh(t, func(_ int, name string, w http.ResponseWriter, r *http.Request) {
			answerAfter(took, name, w, r)
		}, func(t *testing.T, m *memMesh) {
			a := m.agents["a"]
			a.post(t.Context(), long)
			if got := a.hedged("lost") + a.hedged("won"); got != hedges {
				t.Errorf("first token after %v: %v hedges, want %v", took, got, hedges)
			}
		})
	}
}

// TestLateEngineAndHedgeMayFail has each of the two fail before, with and after the other.
func TestLateEngineAndHedgeMayFail(t *testing.T) {
	const never = -1
	refuse := func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }
	for _, tt := range []struct {
		name              string
		firstIn, secondIn time.Duration // until it fails; never: it answers later
		fail              func(http.ResponseWriter)
		status            int
	}{
		{"first, then an answer", time.Second, never, refuse, 200},
		{"second, then an answer", never, time.Second, refuse, 200},
		{"first breaks, then an answer", time.Second, never, func(http.ResponseWriter) { panic("reset") }, 200},
		{"second breaks, then an answer", never, time.Second, func(http.ResponseWriter) { panic("reset") }, 200},
		{"first, then second", time.Second, 2 * time.Second, refuse, 503},
		{"second, then first", 2 * time.Second, time.Second, refuse, 503},
		{"at once", time.Second, time.Second - acceptFloor, refuse, 503},
	} {
		hedgeMesh(t, func(n int, name string, w http.ResponseWriter, r *http.Request) {
			if n > 2 {
				refuse(w)
				return
			}
			if in := []time.Duration{tt.firstIn, tt.secondIn}[n-1]; in != never {
				time.Sleep(in)
				tt.fail(w)
				return
			}
			answerAfter(10*time.Second, name, w, r)
		}, func(t *testing.T, m *memMesh) {
			a := m.agents["a"]
			w := a.post(t.Context(), chatBody)
			if w.Code != tt.status || tt.status == 200 && w.Body.String() != (echoEngine{a.last().Engine.Agent()}).answer() {
				t.Errorf("%s: got %d %q after %+v", tt.name, w.Code, w.Body, a.last().Attempts)
			}
		})
	}
}

// TestHedgeThatBouncesCostsNoBudget has all but the late engine refuse what comes.
func TestHedgeThatBouncesCostsNoBudget(t *testing.T) {
	hedgeMesh(t, func(_ int, name string, w http.ResponseWriter, r *http.Request) {
		answerAfter(time.Second, name, w, r)
	}, func(t *testing.T, m *memMesh) {
		a := m.agents["a"]
		spent := func() (n float64) {
			a.classes.with("h", func(s *classState) { n = s.hedges.spent })
			return n
		}
		for _, peer := range []string{"b", "c"} {
			m.agents[peer].book.set(func(b *memBooker) { b.refuse = "queue" })
		}
		w := a.post(t.Context(), chatBody)
		if w.Code != http.StatusOK || a.hedged("failed") != 1 || spent() != 0 {
			t.Errorf("got %d after %+v; %v hedges failed, %v of the budget spent", w.Code, a.last().Attempts, a.hedged("failed"), spent())
		}
	})
}

// TestSlowClientKeepsNoLoser has both engines answer at once to a client that reads nothing.
func TestSlowClientKeepsNoLoser(t *testing.T) {
	var at time.Time
	hedgeMesh(t, func(_ int, name string, w http.ResponseWriter, r *http.Request) {
		answerAfter(time.Until(at), name, w, r)
	}, func(t *testing.T, m *memMesh) {
		a := m.agents["a"]
		at = time.Now().Add(time.Second)
		client := stuckWriter{httptest.NewRecorder(), make(chan struct{})}
		done := make(chan struct{})
		go func() {
			a.ServeHTTP(client, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(chatBody)))
			close(done)
		}()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		booked := 0
		for _, agent := range m.agents {
			booked += agent.book.booked()
		}
		if booked > 1 {
			t.Errorf("%d booked while the client does not read, want that of the winner at most", booked)
		}
		close(client.free)
		<-done
		if e := a.last(); client.Body.String() != (echoEngine{e.Engine.Agent()}).answer() || len(e.Attempts) != 2 {
			t.Errorf("got %q after %+v", client.Body, e.Attempts)
		}
	})
}

// TestHedgesInAnyOrderLeaveOneAnswer has engines answer, fail and hang at random moments about the time of a hedge, and some
// clients go away.
func TestHedgesInAnyOrderLeaveOneAnswer(t *testing.T) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(3, 4))
	chance := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	hedgeMesh(t, func(_ int, name string, w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Duration(chance(120)) * time.Millisecond)
		switch chance(8) {
		case 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 1:
			startStream(w, roleChunk)
			panic("reset")
		case 2:
			startStream(w, roleChunk)
			time.Sleep(time.Duration(chance(120)) * time.Millisecond)
			_, _ = io.WriteString(w, strings.TrimPrefix(echoEngine{name}.answer(), roleChunk))
		default:
			echoEngine{name}.ServeHTTP(w, r)
		}
	}, func(t *testing.T, m *memMesh) {
		a := m.agents["a"]
		a.classes.with("h", func(s *classState) { s.hedges.requests = 1e9 }) // budget for all
		var clients sync.WaitGroup
		for range 1000 { // of which some 30 hedges win
			clients.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+chance(1000))*time.Millisecond)
				defer cancel()
				w := a.post(ctx, chatBody)
				whole := slices.ContainsFunc([]string{"a", "b", "c"}, func(name string) bool { return w.Body.String() == echoEngine{name}.answer() })
				if w.Code == http.StatusOK && ctx.Err() == nil && !whole {
					t.Errorf("got %d %q", w.Code, w.Body)
				}
			})
			time.Sleep(5 * time.Millisecond)
		}
		clients.Wait()
		time.Sleep(time.Second) // until the engines have noticed
		if won, lost := a.hedged("won"), a.hedged("lost"); won < 3 || lost < 3 {
			t.Errorf("%v hedges won and %v lost: too few to say anything", won, lost)
		}
	})
}

func TestDelaysAreOfTheLastRequests(t *testing.T) {
	var d delays
	for i := range delaysNeeded {
		if p, ok := d.p95(); ok {
			t.Fatalf("%v known after %d", p, i)
		}
		d.note(time.Duration(i))
	}
	if p, _ := d.p95(); p != delaysNeeded*19/20 {
		t.Errorf("got %v of 0 to %d", p, delaysNeeded-1)
	}
	for i := range 2 * delaysKept {
		d.note(time.Duration(1000 + i))
	}
	if p, _ := d.p95(); p != 1000+delaysKept+delaysKept*19/20 {
		t.Errorf("got %v of the last %d", p, delaysKept)
	}
}

func TestExplanationSaysWhetherARequestIsHedged(t *testing.T) {
	hedgeMesh(t, nil, func(t *testing.T, m *memMesh) {
		a := m.agents["a"]
		for body, want := range map[string]string{
			chatBody: "yes: when it has no content after 50ms",
			whole:    "no: fewer than 64 such requests",
			strings.Replace(chatBody, `"model"`, `"store":true,"model"`, 1): "no: it must not be done twice",
		} {
			if got := a.ExplainRequest(t.Context(), chatPath, nil, []byte(body)); !strings.HasPrefix(got.Hedged, want) {
				t.Errorf("%s: %q, want %q", body, got.Hedged, want)
			}
		}
		if got := m.agents["b"].ExplainRequest(t.Context(), chatPath, nil, []byte(chatBody)); !strings.HasPrefix(got.Hedged, "no: fewer") {
			t.Errorf("where nothing came: %q", got.Hedged)
		}
		a.setPolicy(Policy{})
		if got := a.ExplainRequest(t.Context(), chatPath, nil, []byte(chatBody)); got.Hedged != "no: the class does not say hedge" {
			t.Errorf("without a class: %q", got.Hedged)
		}
	})
}

// TestErrorIsNoAnswerWhileTheOtherEngineRuns has no third engine.
func TestErrorIsNoAnswerWhileTheOtherEngineRuns(t *testing.T) {
	for fails := 1; fails <= 2; fails++ {
		hedgeMesh(t, func(n int, name string, w http.ResponseWriter, r *http.Request) {
			if n == fails {
				time.Sleep(time.Second)
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			answerAfter(2*time.Second, name, w, r)
		}, func(t *testing.T, m *memMesh) {
			m.agents["c"].book.set(func(b *memBooker) { b.down = true })
			m.tell()
			a := m.agents["a"]
			w := a.post(t.Context(), chatBody)
			if retries := testutil.ToFloat64(a.metrics.retries.WithLabelValues("h")); w.Code != http.StatusOK || retries != 0 {
				t.Errorf("engine %d fails: got %d %q after %+v, %v retries", fails, w.Code, w.Body, a.last().Attempts, retries)
			}
		})
	}
}
