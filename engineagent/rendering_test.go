package engineagent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/openai"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// renderGate stands before an engine's handler: it counts renderings, and answers them otherwise when it is told to.
type renderGate struct {
	direct
	mu     sync.Mutex
	asked  []time.Time
	answer func(*http.Request) (*http.Response, error) // nil: the engine's
}

func (g *renderGate) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != tokenizePath && r.URL.Path != renderPath {
		return g.direct.RoundTrip(r)
	}
	g.mu.Lock()
	g.asked = append(g.asked, time.Now())
	answer := g.answer
	g.mu.Unlock()
	if answer != nil {
		return answer(r)
	}
	return g.direct.RoundTrip(r)
}

// since returns how many renderings were asked for since it was last called.
func (g *renderGate) since() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.asked)
	g.asked = nil
	return n
}

func (g *renderGate) answers(f func(*http.Request) (*http.Response, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = f
}

// hang answers when the asker has gone.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// rendered is an agent that follows a simulated engine and its KV events.
type rendered struct {
	*Agent
	t    *testing.T
	gate *renderGate
}

// withRendered runs f with an agent that has found the route that renders and has heard a KV event.
func withRendered(t *testing.T, change func(*simengine.Config), f func(r *rendered)) {
	synctest.Test(t, func(t *testing.T) {
		events, web := newPipes(), newPipes()
		cfg := simengine.DefaultConfig()
		cfg.Seed, cfg.CachedTokens, cfg.BlockTokens = 1, true, 16
		cfg.KVEvents.Endpoint = "tcp://127.0.0.1:5557"
		cfg.KVEvents.Listen = func(string, string) (net.Listener, error) { return events, nil }
		change(&cfg)
		e, err := simengine.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = e.Serve(ctx, web) })
		r := &rendered{t: t, gate: &renderGate{direct: direct{e.Handler()}}}
		c := testConfig(newFakeEngine())
		c.Transport, c.Events.Endpoint = r.gate, "tcp://127.0.0.1:5557"
		c.DialEvents = func(ctx context.Context, _, _ string) (net.Conn, error) { return events.dial(ctx) }
		r.Agent = newAgent(t, c)
		stop := follow(t, r.Agent)
		time.Sleep(2 * time.Second)
		r.call("/v1/completions", `{"model":"sim-model","max_tokens":1,"prompt":"`+text("first", 40)+`"}`)
		time.Sleep(2 * time.Second)
		r.gate.since()
		f(r)
		stop()
		cancel()
		wg.Wait()
	})
}

// text is some two tokens a word.
func text(word string, words int) string { return strings.Repeat(word+" river ", words/2) }

func (r *rendered) call(path, body string) []byte {
	r.t.Helper()
	req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	r.gate.ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		r.t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.Bytes()
}

// chat is one request.
type chat struct {
	path, body string
	media      bool
}

func (r *rendered) admission(c chat) Admission {
	r.t.Helper()
	route, _ := openai.RouteFor(http.MethodPost, c.path)
	req, err := openai.Parse(route, []byte(c.body))
	if err != nil {
		r.t.Fatal(err)
	}
	p := &cachestate.Prompt{}
	cachestate.DefaultScheme().Prompt(req.Walk(req.Model, openai.Layout(r.Engine().Models[0].Layout)), p)
	return Admission{
		Prompt: p, QueuedAtProbe: -1, Media: c.media, Route: route, Traits: req.Traits, Model: req.Model,
	}
}

// book books a request and shows its body, as the one who carries it does.
func (r *rendered) book(c chat) *Booking {
	r.t.Helper()
	b := mustAdmit(r.t, r.Agent, r.admission(c))
	body := []byte(c.body)
	b.NoteBody(body)
	clear(body) // it is not ours any more
	return b
}

// serve has the engine answer a request.
func (r *rendered) serve(c chat) (b *Booking, u openai.Usage) {
	r.t.Helper()
	b = r.book(c)
	answer := r.call(c.path, c.body)
	var known bool
	if u, known = openai.ParseUsage(b.lessons.route, answer); !known {
		s := openai.NewStream(b.lessons.route, 1<<20)
		if err := s.Feed(answer, func(openai.Event) bool { return true }); err != nil {
			r.t.Fatal(err)
		}
		u, known = s.Usage()
	}
	b.FirstContent()
	b.Finish(Outcome{Usage: u, HasUsage: known})
	return b, u
}

// state tells the route that renders, and whether a body is kept or being rendered.
func (r *rendered) state() (path string, kept, running bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.layout.path, r.offPath.kept != nil, r.offPath.stop != nil
}

// lessons are how many prompts were learned by renderings.
func (r *rendered) lessons() float64 {
	return testutil.ToFloat64(r.metrics.lessons.WithLabelValues("rendering"))
}

const (
	chatPath      = "/v1/chat/completions"
	messagesPath  = "/v1/messages"
	responsesPath = "/v1/responses"
)

// streamed is a chat whose answer SGLang sends without token ids.
func streamed(word string, words int) chat {
	return chat{path: chatPath, body: fmt.Sprintf(
		`{"model":"sim-model","stream":true,"stream_options":{"include_usage":true},"max_tokens":4,"temperature":0,`+
			`"messages":[{"role":"user","content":"%s"}]}`, text(word, words))}
}

func sglang(c *simengine.Config) { c.Kind = simengine.KindSGLang }

func oldVLLM(c *simengine.Config) { c.Version, c.TokenIDs = "0.10.1", false }

func TestWhatAnswersDoNotTellIsRenderedWhenTheEngineIsIdle(t *testing.T) {
	const (
		turns = `"messages":[{"role":"user","content":"%s"}%s]`
		more  = `,{"role":"assistant","content":"the answer"},{"role":"user","content":"and more"}`
	)
	tests := []struct {
		name   string
		change func(*simengine.Config)
		path   string
		body   string // with a text, and what goes on
	}{
		{"SGLang's chat stream", sglang, chatPath, `{"model":"sim-model","stream":true,"stream_options":{"include_usage":true},"max_tokens":4,` + turns + `}`},
		{"SGLang's chat stream with tools", sglang, chatPath, `{"model":"sim-model","stream":true,"stream_options":{"include_usage":true},"max_tokens":4,` +
			`"tools":[{"type":"function","function":{"name":"measure","parameters":{"type":"object"}}}],` + turns + `}`},
		{"SGLang's Messages", sglang, messagesPath, `{"model":"sim-model","max_tokens":4,"system":"be short",` + turns + `}`},
		{"SGLang's Responses", sglang, responsesPath, `{"model":"sim-model","max_output_tokens":4,"instructions":"be short",` +
			`"input":[{"role":"user","content":"%s"}%s]}`},
		{"vLLM's Messages", func(*simengine.Config) {}, messagesPath, `{"model":"sim-model","max_tokens":4,"stream":true,` + turns + `}`},
		{"vLLM's Responses", func(*simengine.Config) {}, responsesPath, `{"model":"sim-model","max_output_tokens":4,` +
			`"input":[{"role":"user","content":"%s"}%s]}`},
		{"an old vLLM's chat", oldVLLM, chatPath, `{"model":"sim-model","max_tokens":4,` + turns + `}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withRendered(t, tt.change, func(r *rendered) {
				first := chat{path: tt.path, body: fmt.Sprintf(tt.body, text("second", 300), "")}
				if b, _ := r.serve(first); b.WantsPrompt() || len(b.Ask().Fields) > 0 {
					t.Errorf("the answer is to have the ids: %+v", b.Ask())
				}
				time.Sleep(2 * time.Second)
				if e := r.Estimate(r.admission(first).Prompt); !e.Exact || e.Source != "events" || r.lessons() != 1 {
					t.Errorf("estimate %+v after %v lessons", e, r.lessons())
				}
				b, u := r.serve(chat{path: tt.path, body: fmt.Sprintf(tt.body, text("second", 300), more)})
				if u.CachedTokens < 256 || b.Overlap() != u.CachedTokens {
					t.Errorf("%d tokens were predicted and %d cached", b.Overlap(), u.CachedTokens)
				}
			})
		})
	}
}

func TestNothingElseIsRendered(t *testing.T) {
	long := text("second", 300)
	plain := streamed("second", 300)
	tests := []struct {
		name string
		chat chat
		edit func(*rendered)
	}{
		{"a long prompt", streamed("second", 1400), func(*rendered) {}},
		{"a long body", chat{path: chatPath, body: strings.Replace(plain.body, "{", `{"user":"`+strings.Repeat("x", maxRenderedBody)+`",`, 1)}, func(*rendered) {}},
		{"two blocks that are known", streamed("second", 6), func(*rendered) {}},
		{"media", chat{plain.path, plain.body, true}, func(*rendered) {}},
		{"tools in Messages", chat{path: messagesPath, body: `{"model":"sim-model","max_tokens":4,"tools":[{"name":"f","input_schema":{}}],` +
			`"messages":[{"role":"user","content":"` + long + `"}]}`}, func(*rendered) {}},
		{"several answers", chat{path: chatPath, body: strings.Replace(plain.body, "{", `{"n":2,`, 1)}, func(*rendered) {}},
		{"a chat of token ids", chat{path: chatPath, body: strings.Replace(plain.body, "{", `{"input_ids":[1`+strings.Repeat(",2", 200)+`],`, 1)}, func(*rendered) {}},
		{"an engine without the route", plain, func(r *rendered) { r.layout.path = "" }},
		{"without KV events", plain, func(r *rendered) { r.events.heard = false }},
		{"no CPU time left", plain, func(r *rendered) {
			r.teaching.refill(r.cfg.Now())
			r.teaching.spend(10 * time.Second)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withRendered(t, sglang, func(r *rendered) {
				r.mu.Lock()
				tt.edit(r)
				r.mu.Unlock()
				b := r.book(tt.chat)
				if _, kept, _ := r.state(); kept != (tt.name == "tools in Messages") { // seen when it is read
					t.Errorf("kept: %v", kept)
				}
				b.FirstContent()
				b.Finish(Outcome{})
				time.Sleep(time.Minute)
				if n := r.gate.since(); n != 0 {
					t.Errorf("%d renderings", n)
				}
			})
		})
	}
}

func TestRenderingWaitsForItsAnswerAndAnIdleEngine(t *testing.T) {
	withRendered(t, sglang, func(r *rendered) {
		other := chat{path: chatPath, body: `{"model":"sim-model","messages":[{"role":"user","content":"x"}]}`}
		running := r.book(other)
		b := r.book(streamed("second", 300))
		b.FirstContent()
		time.Sleep(5 * time.Second)
		b.Finish(Outcome{})
		time.Sleep(5 * time.Second)
		if n := r.gate.since(); n != 0 {
			t.Errorf("%d renderings while requests run", n)
		}
		running.Finish(Outcome{})
		time.Sleep(2 * time.Second)
		if n := r.gate.since(); n != 1 || r.lessons() != 1 {
			t.Errorf("%d renderings and %v lessons of an idle engine, want 1", n, r.lessons())
		}
	})
}

func TestRenderingIsForgotten(t *testing.T) {
	for name, end := range map[string]func(*Booking){
		"when the answer fails":     func(b *Booking) { b.FirstContent(); b.Finish(Outcome{Failed: true}) },
		"when there is none":        func(b *Booking) { b.Finish(Outcome{}) },
		"when it comes too late":    func(b *Booking) { b.FirstContent(); time.Sleep(renderWithin); b.Finish(Outcome{}) },
		"when the request is wrong": func(b *Booking) { b.FirstContent(); b.Finish(Outcome{Refused: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			withRendered(t, sglang, func(r *rendered) {
				end(r.book(streamed("second", 300)))
				time.Sleep(2 * time.Second)
				if _, kept, _ := r.state(); kept || r.gate.since() != 0 {
					t.Errorf("kept: %v, or rendered", kept)
				}
			})
		})
	}
}

// TestRenderingsAreRare: of many prompts one in ten seconds is rendered, the newest.
func TestRenderingsAreRare(t *testing.T) {
	withRendered(t, sglang, func(r *rendered) {
		for i := range 60 {
			r.serve(streamed(fmt.Sprint("word", i), 300))
			time.Sleep(time.Second)
		}
		r.gate.mu.Lock()
		asked := r.gate.asked
		r.gate.mu.Unlock()
		if len(asked) < 5 || r.lessons() != float64(len(asked)) {
			t.Errorf("%d renderings and %v lessons in a minute, want 6 or so", len(asked), r.lessons())
		}
		for i := 1; i < len(asked); i++ {
			if between := asked[i].Sub(asked[i-1]); between < renderEvery {
				t.Errorf("%v between renderings %d and %d", between, i-1, i)
			}
		}
	})
}

func TestRequestEndsARendering(t *testing.T) {
	withRendered(t, sglang, func(r *rendered) {
		r.gate.answers(hang)
		r.serve(streamed("second", 300))
		time.Sleep(1500 * time.Millisecond)
		if _, kept, running := r.state(); kept || !running || r.gate.since() != 1 {
			t.Fatalf("kept %v, running %v", kept, running)
		}
		b := r.book(streamed("third", 300))
		synctest.Wait()
		if path, _, running := r.state(); path == "" || running {
			t.Errorf("running %v by %q", running, path)
		}
		b.FirstContent()
		b.Finish(Outcome{})
		r.gate.answers(nil)
		time.Sleep(renderEvery + 2*time.Second)
		if n := r.gate.since(); n != 1 || r.lessons() != 1 {
			t.Errorf("%d renderings and %v lessons of the next prompt, want 1", n, r.lessons())
		}
	})
}

func TestRouteThatFailsIsNotAskedAgain(t *testing.T) {
	answer := func(status int, body string) func(*http.Request) (*http.Response, error) {
		return func(*http.Request) (*http.Response, error) { return response(status, body), nil }
	}
	for name, fail := range map[string]func(*http.Request) (*http.Response, error){
		"refusal":  answer(400, ""),
		"failure":  answer(500, ""),
		"timeout":  hang,
		"no ids":   answer(200, "{}"),
		"too many": answer(200, `{"tokens":[`+strings.Repeat("1,", maxTemplateTokens+maxRenderedBody)+`1]}`),
		"too long": answer(200, `{"tokens":[1],"x":"`+strings.Repeat("x", 1<<20)+`"}`),
	} {
		t.Run(name, func(t *testing.T) {
			withRendered(t, sglang, func(r *rendered) {
				r.gate.answers(fail)
				r.serve(streamed("second", 300))
				time.Sleep(5 * time.Second)
				if path, _, _ := r.state(); path != "" || r.gate.since() != 1 {
					t.Fatalf("path %q, or no rendering", path)
				}
				r.gate.answers(nil)
				for i := range 3 {
					r.serve(streamed(fmt.Sprint("word", i), 300))
					time.Sleep(renderEvery)
				}
				if n := r.gate.since(); n != 0 || r.lessons() != 0 {
					t.Errorf("%d renderings, %v lessons", n, r.lessons())
				}
			})
		})
	}
}

// TestPartlyCachedMessagesAreLearned: their usage tells the prompt's length with or without the cached part.
func TestPartlyCachedMessagesAreLearned(t *testing.T) {
	withRendered(t, sglang, func(r *rendered) {
		for _, word := range []string{"second", "third"} {
			_, u := r.serve(chat{path: messagesPath, body: `{"model":"sim-model","max_tokens":4,"system":"` + text("common", 60) +
				`","messages":[{"role":"user","content":"` + text(word, 300) + `"}]}`})
			if cached := u.CachedTokens > 0; cached != (word == "third") {
				t.Errorf("%d tokens were cached of %s", u.CachedTokens, word)
			}
			time.Sleep(renderEvery + 2*time.Second)
		}
		if r.lessons() != 2 {
			t.Errorf("%v lessons, want 2", r.lessons())
		}
	})
}

func TestNothingIsRenderedOnceTheRouteIsGone(t *testing.T) {
	withRendered(t, sglang, func(r *rendered) {
		r.serve(streamed("second", 300))
		r.noteLayout(layoutFinding{})
		time.Sleep(2 * time.Second)
		if _, kept, _ := r.state(); !kept {
			t.Error("it was taken to be rendered")
		}
	})
}

// TestRenderingOfAnotherLengthTeachesNothing is for engines that render the conversations of one route in another way.
func TestRenderingOfAnotherLengthTeachesNothing(t *testing.T) {
	withRendered(t, sglang, func(r *rendered) {
		message := func(word string) chat {
			return chat{path: messagesPath, body: `{"model":"sim-model","max_tokens":4,"messages":[{"role":"user","content":"` + text(word, 300) + `"}]}`}
		}
		r.gate.answers(func(*http.Request) (*http.Response, error) { return response(200, `{"tokens":[1,2,3]}`), nil })
		r.serve(message("second"))
		time.Sleep(2 * time.Second)
		r.gate.answers(nil)
		time.Sleep(renderEvery)
		r.serve(message("third"))
		time.Sleep(2 * time.Second)
		if n := r.gate.since(); n != 1 || r.lessons() != 0 {
			t.Errorf("%d renderings and %v lessons of Messages, want 1 and 0", n, r.lessons())
		}
		r.serve(streamed("fourth", 300))
		time.Sleep(2 * time.Second)
		if r.lessons() != 1 {
			t.Errorf("%v lessons of chats, want 1", r.lessons())
		}
	})
}
