package forward

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// Ways in which an engine, or the way to it, ends in mid-stream.
const (
	deathReset  = "reset"        // its connection breaks
	deathClosed = "truncated"    // its connection ends in order, without the last event
	deathError  = "stream_error" // it says so inside the stream
	deathOwner  = "peer_lost"    // its agent is gone
)

// mortal is an engine that dies after so many events of an answer, as often as it is told.
type mortal struct {
	http.Handler
	*fate
	agent *memAgent
}

// fate is what the engines of a mesh have in common.
type fate struct {
	mu     sync.Mutex
	way    string
	after  int // events
	deaths int // that are still to come
	asked  []string

	onDeath func()
}

func (f *fate) dies(events int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaths == 0 || events < f.after {
		return false
	}
	f.deaths--
	f.onDeath()
	return true
}

func (m mortal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m.mu.Lock()
	m.asked = append(m.asked, r.URL.Path+" "+string(body))
	m.mu.Unlock()
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	m.Handler.ServeHTTP(&mortalWriter{ResponseWriter: w, m: m}, r)
}

type mortalWriter struct {
	http.ResponseWriter
	m      mortal
	events int
	dead   bool
}

func (w *mortalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w *mortalWriter) Flush()                      {}

func (w *mortalWriter) Write(b []byte) (int, error) {
	if w.dead {
		return 0, io.ErrClosedPipe
	}
	if w.m.dies(w.events) {
		w.dead = true
		synctest.Wait() // what it has sent is read
		switch w.m.way {
		case deathReset:
			panic("reset")
		case deathError:
			_, _ = io.WriteString(w.ResponseWriter, `data: {"error":{"message":"engine is dead","code":500}}`+"\n\n")
		case deathOwner:
			w.m.agent.cutStreams()
		}
		return 0, io.ErrClosedPipe
	}
	w.events++
	return w.ResponseWriter.Write(b)
}

// cutStreams breaks every stream that peers have opened to the agent.
func (a *memAgent) cutStreams() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.served {
		s.Cancel(codeCanceled)
	}
}

// seen is what a client sees of a stream.
type seen struct {
	Text, Thought, Finish string
	IDs, Objects, Models  map[string]int
	Created               map[int64]int
	Roles, Ends, Errors   int
	Prompt, Completion    int // tokens
	Usages                int
}

func see(t *testing.T, body string) seen {
	t.Helper()
	s := seen{IDs: map[string]int{}, Objects: map[string]int{}, Models: map[string]int{}, Created: map[int64]int{}}
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			t.Fatalf("event %q", event)
		}
		if data == "[DONE]" {
			s.Ends++
			continue
		}
		var c struct {
			ID, Object, Model string
			Created           int64
			Error             json.RawMessage
			Choices           []struct {
				Text  string
				Delta struct {
					Role, Content, Reasoning string
				}
				FinishReason string `json:"finish_reason"`
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
				Total      int `json:"total_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("event %q: %v", event, err)
		}
		if c.Error != nil {
			s.Errors++
			continue
		}
		s.IDs[c.ID], s.Objects[c.Object], s.Models[c.Model], s.Created[c.Created] = 1, 1, 1, 1
		for _, choice := range c.Choices {
			s.Text += choice.Text + choice.Delta.Content
			s.Thought += choice.Delta.Reasoning
			s.Finish += choice.FinishReason
			if choice.Delta.Role != "" {
				s.Roles++
			}
		}
		if c.Usage != nil {
			if s.Usages++; c.Usage.Total != c.Usage.Prompt+c.Usage.Completion {
				t.Errorf("usage does not add up: %s", data)
			}
			s.Prompt, s.Completion = c.Usage.Prompt, c.Usage.Completion
		}
	}
	return s
}

// same compares what is to be equal of a stream that broke and one that did not.
func (s seen) same() seen {
	for _, m := range []map[string]int{s.IDs, s.Objects, s.Models} {
		if len(m) != 1 {
			s.Errors += 100
		}
	}
	if len(s.Created) != 1 {
		s.Errors += 100
	}
	s.IDs, s.Created = nil, nil
	return s
}

// continueCase is a request, the kind of engine that begins its answer, and the one that goes on.
type continueCase struct {
	first, next string
	template    string
	path, body  string
	force       bool // vLLM's --enable-force-include-usage
}

func (c *continueCase) name() string {
	return fmt.Sprintf("%s to %s %s %s force=%t", c.first, c.next, c.template, c.body, c.force)
}

func (c *continueCase) config(kind string) simengine.Config {
	cfg := simengine.DefaultConfig()
	cfg.Kind, cfg.Template, cfg.Model, cfg.Seed, cfg.AnswerTokens, cfg.ForceIncludeUsage = kind, c.template, "m", 1, 24, c.force
	return cfg
}

func continueCases() []continueCase {
	const chat = `"messages":[{"role":"user","content":"tell me of the prefix, please"}]`
	const (
		vllm, sglang, trtllm = simengine.KindVLLM, simengine.KindSGLang, simengine.KindTRTLLM
		plain, thoughts      = simengine.TemplatePlain, simengine.TemplateDropsThoughts
		usage                = `,"stream_options":{"include_usage":true}`
		text, ids            = `"prompt":"tell me of"`, `"max_tokens":90,"prompt":[5,400]`
	)
	return []continueCase{
		{vllm, vllm, plain, chatPath, chat, false},
		{vllm, vllm, plain, chatPath, chat + usage, false},
		{vllm, vllm, plain, chatPath, chat + usage + `,"max_tokens":11`, false},
		{vllm, vllm, plain, chatPath, chat, true},
		{vllm, vllm, thoughts, chatPath, chat + `,"reasoning_effort":"none"`, false},
		{vllm, vllm, plain, chatPath, chat + `,"ignore_eos":true,"max_tokens":40`, false},
		{vllm, vllm, plain, completionPath, text, false},
		{vllm, vllm, plain, completionPath, ids + usage, false},
		{vllm, sglang, plain, chatPath, chat + usage, false},
		{vllm, trtllm, plain, chatPath, chat + usage, false},
		{vllm, trtllm, plain, completionPath, text + usage, false},
		{sglang, sglang, plain, completionPath, ids + usage, false},
		{sglang, vllm, plain, completionPath, text, false},
		{sglang, trtllm, plain, completionPath, text + usage, false},
	}
}

// mesh makes a mesh of an ingress and two owners whose engines die as f says. The first request goes to b.
func (c *continueCase) mesh(t *testing.T, f *fate) *memMesh {
	m := newMemMesh(t, "a", "b", "c")
	for name, a := range m.agents {
		kind := c.first
		if name == "c" {
			kind = c.next
		}
		a.engine, a.kind = mortal{newEngine(t, c.config(kind)), f, a}, engine.Kind(kind)
		a.book.askTokens = tokensOf(kind, c.path)
		if err := a.SetPolicy(&Policy{Classes: []Class{{Name: "all", Continue: true}}}); err != nil {
			t.Fatal(err)
		}
	}
	c.announce(m)
	m.agents["a"].book.refuse, m.agents["c"].book.refuse = "draining", "draining"
	return m
}

// announce tells every agent how long the model's context is.
func (c *continueCase) announce(m *memMesh) {
	for name := range m.agents {
		described := described(engine.MakeID(name, "0"), 1)
		described.Models[0].MaxContext = 131072
		for _, to := range m.agents {
			to.View.Announce(name, []engine.Engine{described}, time.Now())
		}
	}
}

// tokensOf is what engineagent says of a kind's streams.
func tokensOf(kind, path string) openai.Ask {
	switch {
	case kind == simengine.KindVLLM:
		return openai.Ask{Fields: []string{"return_token_ids"}, Style: openai.StyleNull}
	case kind == simengine.KindSGLang && path == completionPath:
		return openai.Ask{Fields: []string{"return_token_ids"}, Style: openai.StyleAbsent}
	}
	return openai.Ask{}
}

// run sends the request of the case once for each fate, and shows what its client sees, and the event.
func (c *continueCase) run(t *testing.T, fates []*fate, show func(f *fate, body string, e Event)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		current := &fate{}
		m := c.mesh(t, current)
		a := m.agents["a"]
		for _, f := range fates {
			current.way, current.after, current.deaths, current.asked = f.way, f.after, f.deaths, nil
			refuse := func(why Refused) { m.agents["c"].book.set(func(b *memBooker) { b.refuse = why }) }
			refuse("draining")
			current.onDeath = func() { refuse("") }
			w := a.post(t.Context(), `{"model":"m","stream":true,`+c.body+`}`, func(r *http.Request) { r.URL.Path = c.path })
			synctest.Wait()
			m.idle()
			f.asked = current.asked
			show(f, w.Body.String(), a.last())
			time.Sleep(10 * time.Second) // nothing that failed is held against anybody
			m.tell()
			c.announce(m)
		}
	})
}

// TestBrokenStreamsGoOn breaks a stream before each of its events, in each way.
func TestBrokenStreamsGoOn(t *testing.T) {
	for _, c := range continueCases() {
		t.Run(c.name(), func(t *testing.T) {
			whole := engineAnswer(t, c.config(c.first), c.path, `{"model":"m","stream":true,`+c.body+`}`).Body.String()
			want, events := see(t, whole).same(), strings.Count(whole, "\n\n")
			continued := 0
			c.run(t, everywhere(events), func(f *fate, body string, e Event) {
				got := see(t, body).same()
				if c.force { // in every chunk, also where a chunk is missing
					got.Usages = want.Usages
				}
				if diff := cmp.Diff(want, got); diff != "" || e.Outcome != outcomeOK {
					t.Errorf("%s after %d of %d events: %+v\n%s\nasked %q\n%s", f.way, f.after, events, e, diff, f.asked, body)
				}
				continued += e.Continued
			})
			if continued < events-4 {
				t.Errorf("%d of %d streams were continued", continued, events)
			}
		})
	}
}

// everywhere is a death after each number of events, in another way each.
func everywhere(events int) []*fate {
	all := []string{deathReset, deathClosed, deathError, deathOwner}
	out := make([]*fate, events)
	for i := range out {
		out[i] = &fate{way: all[i%len(all)], after: i, deaths: 1}
	}
	return out
}

const plainChat = `"messages":[{"role":"user","content":"tell me of the prefix, please"}]`

// TestAStreamGoesOnAgainAndAgain kills each engine after some tokens, the same two in turn.
func TestAStreamGoesOnAgainAndAgain(t *testing.T) {
	c := continueCase{
		simengine.KindVLLM, simengine.KindVLLM, simengine.TemplatePlain, chatPath,
		plainChat + `,"max_tokens":200,"ignore_eos":true,"stream_options":{"include_usage":true}`, false,
	}
	want := see(t, engineAnswer(t, c.config(c.first), c.path, `{"model":"m","stream":true,`+c.body+`}`).Body.String()).same()
	c.run(t, []*fate{{way: deathReset, after: progress + 3, deaths: 8}}, func(_ *fate, body string, e Event) {
		if diff := cmp.Diff(want, see(t, body).same()); diff != "" || e.Continued != 8 || len(e.Attempts) < 9 {
			t.Errorf("%+v\n%s", e, diff)
		}
	})
}

// TestARequestThatKillsEnginesIsGivenUp: each that goes on dies at once.
func TestARequestThatKillsEnginesIsGivenUp(t *testing.T) {
	c := continueCase{simengine.KindVLLM, simengine.KindVLLM, simengine.TemplatePlain, chatPath, plainChat, false}
	synctest.Test(t, func(t *testing.T) {
		f := &fate{way: deathReset, after: 5, deaths: 100, onDeath: func() {}}
		m := c.mesh(t, f)
		for _, name := range []string{"d", "e", "f", "g"} {
			m.add(name)
			m.agents[name].engine, m.agents[name].kind = mortal{newEngine(t, c.config(c.first)), f, m.agents[name]}, engine.KindVLLM
			m.agents[name].book.askTokens = tokensOf(c.first, c.path)
		}
		m.tell()
		a := m.agents["a"]
		a.book.refuse = "draining"
		w := a.post(t.Context(), `{"model":"m","stream":true,"max_tokens":90,`+c.body+`}`)
		synctest.Wait()
		m.idle()
		if got := see(t, w.Body.String()); got.Errors != 1 || 100-f.deaths != maxDeaths {
			t.Errorf("%d engines died, client sees %+v", 100-f.deaths, got)
		}
		if n := testutil.ToFloat64(a.metrics.continued.WithLabelValues(deathReset, "continued")); n != maxDeaths-1 {
			t.Errorf("%v continued", n)
		}
	})
}

// TestWhatCannotBeContinuedEndsWithAnError breaks streams after their tenth event.
func TestWhatCannotBeContinuedEndsWithAnError(t *testing.T) {
	const vllm, sglang, trtllm = simengine.KindVLLM, simengine.KindSGLang, simengine.KindTRTLLM
	const plain = simengine.TemplatePlain
	for _, tt := range []struct {
		continueCase
		why string // a part of it
	}{
		{continueCase{vllm, vllm, simengine.TemplateDropsThoughts, chatPath, plainChat, false}, "within a thought"},
		{continueCase{sglang, vllm, plain, chatPath, plainChat, false}, "no token ids"},
		{continueCase{trtllm, vllm, plain, chatPath, plainChat, false}, "no token ids"},
		{continueCase{vllm, vllm, plain, chatPath, plainChat + `,"stop":["x"]`, false}, "stop strings"},
		{continueCase{vllm, vllm, plain, chatPath, plainChat + `,"return_token_ids":true`, false}, "token ids"},
		{continueCase{vllm, "other", plain, chatPath, plainChat, false}, ""},
	} {
		t.Run(tt.name(), func(t *testing.T) {
			tt.run(t, []*fate{{way: deathReset, after: 10, deaths: 1}}, func(_ *fate, body string, e Event) {
				got := see(t, body)
				if got.Errors != 1 || got.Ends != 0 || e.Continued != 0 || !strings.Contains(e.NotContinued, tt.why) {
					t.Errorf("%+v: %+v", e, got)
				}
			})
		})
	}
}

// TestABrokenStreamOutlastsSlowAgents: no owner takes anything for longer than a request that has not begun is tried.
func TestABrokenStreamOutlastsSlowAgents(t *testing.T) {
	c := continueCase{simengine.KindVLLM, simengine.KindVLLM, simengine.TemplatePlain, chatPath, plainChat, false}
	synctest.Test(t, func(t *testing.T) {
		f := &fate{way: deathReset, after: 5, deaths: 1}
		m := c.mesh(t, f)
		a := m.agents["a"]
		f.onDeath = func() {
			time.AfterFunc(time.Second, func() { m.agents["c"].book.set(func(b *memBooker) { b.refuse = "" }) })
		}
		w := a.post(t.Context(), `{"model":"m","stream":true,`+c.body+`}`)
		synctest.Wait()
		m.idle()
		if e := a.last(); e.Continued != 1 || len(e.Attempts) <= maxAttempts || see(t, w.Body.String()).Errors > 0 {
			t.Errorf("%+v", e)
		}
	})
}

// TestHalfACharacterIsNotGoneOnFrom: the engine that is to go on says that the last ids are no whole character.
func TestHalfACharacterIsNotGoneOnFrom(t *testing.T) {
	for _, kind := range []string{simengine.KindVLLM, simengine.KindSGLang} {
		c := continueCase{simengine.KindVLLM, kind, simengine.TemplatePlain, chatPath, plainChat, false}
		synctest.Test(t, func(t *testing.T) {
			f := &fate{way: deathReset, after: 5, deaths: 1}
			m := c.mesh(t, f)
			a, other := m.agents["a"], m.agents["c"]
			f.onDeath = func() { other.book.set(func(b *memBooker) { b.refuse = "" }) }
			field := map[string]string{simengine.KindVLLM: "prompt", simengine.KindSGLang: "text"}[kind]
			asked := ""
			engine := other.engine
			other.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/detokenize" {
					engine.ServeHTTP(w, r)
					return
				}
				b, _ := io.ReadAll(r.Body)
				asked = string(b) + r.Header.Get("Authorization")
				_, _ = io.WriteString(w, `{"`+field+`":"half\ufffd"}`)
			})
			w := a.post(t.Context(), `{"model":"m","stream":true,`+c.body+`}`)
			synctest.Wait()
			m.idle()
			e := a.last()
			if got := see(t, w.Body.String()); got.Errors != 1 || !slices.Contains(e.Attempts, Attempt{Engine: "c/0", Result: "bounce_cannot_continue"}) {
				t.Errorf("%+v: %+v", e, got)
			}
			if !strings.Contains(asked, `"model":"m","tokens":[`) || !strings.HasSuffix(asked, "Bearer engine-key") {
				t.Errorf("asked %s", asked)
			}
		})
	}
}

// TestStreamsOfOtherClassesDoNotGoOn: without the class nothing is asked for, and the engine's own error is passed on.
func TestStreamsOfOtherClassesDoNotGoOn(t *testing.T) {
	c := continueCase{simengine.KindVLLM, simengine.KindVLLM, simengine.TemplatePlain, chatPath, plainChat, false}
	synctest.Test(t, func(t *testing.T) {
		f := &fate{way: deathError, after: 5, deaths: 1, onDeath: func() {}}
		m := c.mesh(t, f)
		a := m.agents["a"]
		if err := a.SetPolicy(&Policy{}); err != nil {
			t.Fatal(err)
		}
		w := a.post(t.Context(), `{"model":"m","stream":true,`+c.body+`}`)
		synctest.Wait()
		m.idle()
		if !strings.HasSuffix(w.Body.String(), `data: {"error":{"message":"engine is dead","code":500}}`+"\n\n") || strings.Contains(f.asked[0], "token_ids") {
			t.Errorf("asked %q: %q", f.asked, w.Body)
		}
	})
}

// TestPromptWithoutRoomIsNotGoneOnFrom: of a prompt that is told in two frames one finds room, and the rest is not the prompt.
func TestPromptWithoutRoomIsNotGoneOnFrom(t *testing.T) {
	for name, frames := range map[string][]int{"the last fits": {11, 5}, "the first fits": {5, 11}, "those around fit": {5, 11, 5}} {
		th := &thread{terms: &openai.Continuation{}, bodies: &budget{limit: 4 * 10}}
		p := th.newPart()
		p.begun()
		for i, n := range frames {
			flags := tokensPrompt | tokensMore
			if i == len(frames)-1 {
				flags = tokensPrompt
			}
			p.tokens(&tokens{flags, make([]uint32, n)})
		}
		if held := th.bodies.held.Load(); p.whole || held != 0 || !strings.Contains(th.stop(), "ids of its prompt") {
			t.Errorf("%s: whole %t, %d bytes held, stop %q", name, p.whole, held, th.stop())
		}
	}
}

// TestTokensOfAPeerAreBounded: one tells ids without end, and no text, and ids of a prompt that it was given.
func TestTokensOfAPeerAreBounded(t *testing.T) {
	th := &thread{terms: &openai.Continuation{}, bodies: &budget{limit: 1 << 20}}
	p := th.newPart()
	for range 10 {
		p.tokens(&tokens{0, make([]uint32, maxTokens-1)})
	}
	if n := len(p.next.IDs); n > maxTokens {
		t.Errorf("%d ids are kept", n)
	}
	p.begun()
	if p.sent([]byte(chunkOf("one"))); th.why == "" {
		t.Error("a stream could go on of which ids are missing")
	}
	next := *th
	next.broken = "reset"
	rest := next.newPart()
	rest.tokens(&tokens{tokensPrompt, make([]uint32, 5)})
	if rest.close(true); th.bodies.held.Load() != 0 {
		t.Errorf("%d bytes are held of the prompt of one that went on", th.bodies.held.Load())
	}
}

func TestTokensSurviveTheWire(t *testing.T) {
	for _, want := range []tokens{{}, {tokensThought | tokensLost, []uint32{0, 1, 1 << 20, 1<<32 - 1}}, {tokensPrompt | tokensMore, nil}} {
		var got tokens
		if err := parseTokens(append(appendTokens(nil, &want), "later"...), &got); err != nil || !cmp.Equal(want, got, cmpopts.EquateEmpty()) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte{0, 2, 5, 0x80, 1})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		var got tokens
		if parseTokens(b, &got) != nil {
			return
		}
		var again tokens
		if err := parseTokens(appendTokens(nil, &got), &again); err != nil || !cmp.Equal(got, again, cmpopts.EquateEmpty()) {
			t.Errorf("%+v, again %+v, %v", got, again, err)
		}
	})
}

// TestTap follows which ids the client has the text of.
func TestTap(t *testing.T) {
	type step struct {
		n    openai.Noted
		out  bool
		want []uint32
		f    tokenFlags
	}
	for name, steps := range map[string][]step{
		"text": {
			{openai.Noted{}, true, nil, 0}, // the role
			{openai.Noted{IDs: []uint32{1}, Text: true}, true, []uint32{1}, 0},
			{openai.Noted{IDs: []uint32{2, 3}, Text: true}, true, []uint32{2, 3}, 0},
			{openai.Noted{IDs: []uint32{4}, Finished: true}, true, []uint32{4}, tokensFinished},
		},
		"half a character": {
			{openai.Noted{IDs: []uint32{1}}, true, nil, 0},
			{openai.Noted{IDs: []uint32{2}}, false, nil, 0},
			{openai.Noted{IDs: []uint32{3}, Text: true}, true, []uint32{1, 2, 3}, 0},
		},
		"an end that is held back": {
			{openai.Noted{IDs: []uint32{1}, Text: true, Finished: true}, false, nil, tokensFinished},
			{openai.Noted{}, true, []uint32{1}, tokensFinished},
		},
		"a thought": {
			{openai.Noted{IDs: []uint32{1}, Thought: true}, true, []uint32{1}, tokensThought},
			{openai.Noted{IDs: []uint32{2}}, false, nil, tokensThought},
			{openai.Noted{IDs: []uint32{3}, Text: true}, true, []uint32{2, 3}, 0},
		},
		"text without ids": {
			{openai.Noted{Text: true}, true, nil, tokensLost},
			{openai.Noted{IDs: []uint32{2}, Text: true}, true, []uint32{2}, tokensLost},
		},
		"a call": {{openai.Noted{IDs: []uint32{1}, Other: true}, true, nil, tokensLost}},
	} {
		var p tap
		for i, s := range steps {
			p.note(s.n, s.out)
			if !cmp.Equal(p.next.IDs, s.want, cmpopts.EquateEmpty()) || p.next.Flags != s.f {
				t.Errorf("%s, step %d: %+v, want %v and %b", name, i, p.next, s.want, s.f)
			}
			p.next.IDs = nil
		}
	}
}
