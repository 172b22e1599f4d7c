package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// memMesh is a mesh in memory: agents that open streams to each other, each with one engine.
type memMesh struct {
	t      *testing.T
	agents map[string]*memAgent
}

type memAgent struct {
	*Ingress
	mesh   *memMesh
	book   *memBooker
	engine http.Handler
	kind   engine.Kind
	mu     sync.Mutex
	mute   bool // accepts streams and never answers, and drops datagrams
	far    bool // no stream to it is ever open

	lose      func(b []byte) bool // which of its datagrams are lost; nil for none
	blocked   bool                // it can send no datagram
	streams   int                 // that it opened
	served    []*memStream        // its ends of those that peers opened
	datagrams int                 // that it sent

	events []Event
}

func newMemMesh(t *testing.T, names ...string) *memMesh {
	m := &memMesh{t: t, agents: map[string]*memAgent{}}
	for _, name := range names {
		m.add(name)
	}
	m.tell()
	return m
}

func (m *memMesh) add(name string) {
	a := &memAgent{mesh: m, book: &memBooker{}, engine: echoEngine{name}}
	index := cachestate.NewTiers(cachestate.DefaultGeometry())
	c := DefaultConfig()
	c.Agent, c.Index, c.View, c.Peers = name, index, NewView(name, index), a
	c.Transport = handlerTransport{a}
	c.Engines = []LocalEngine{{Name: "0", URL: &url.URL{Scheme: "http", Host: name}, APIKey: "engine-key", Booker: a.book, Kind: func() engine.Kind { return a.kind }}}
	c.Record = func(e Event) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.events = append(a.events, e)
	}
	g, err := New(c)
	if err != nil {
		m.t.Fatal(err)
	}
	a.Ingress = g
	m.agents[name] = a
}

// tell makes every agent hear of every other.
func (m *memMesh) tell() {
	for _, to := range m.agents {
		for name, from := range m.agents {
			to.View.Announce(name, []engine.Engine{described(engine.MakeID(name, "0"), 1)}, time.Now())
			to.View.Hear(name, from.Owner.Report(30*time.Second), time.Now())
		}
	}
}

// idle fails the test unless every counter of every agent is zero.
func (m *memMesh) idle() {
	m.t.Helper()
	for name, a := range m.agents {
		a.Wait()
		inFlight, waiting := a.Active()
		if booked := a.book.booked(); inFlight != 0 || waiting != 0 || booked != 0 || a.bodies.held.Load() != 0 {
			m.t.Errorf("%s: %d in flight, %d waiting, %d booked, %d body bytes; want none", name, inFlight, waiting, booked, a.bodies.held.Load())
		}
	}
}

func (a *memAgent) last() Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.events[len(a.events)-1]
}

func (a *memAgent) OpenRequest(ctx context.Context, agent string) (Stream, error) {
	return a.open(ctx, agent, func(ctx context.Context, o *Owner, s Stream) { _ = o.ServeRequest(ctx, s) })
}

func (a *memAgent) OpenProbe(ctx context.Context, agent string) (Stream, error) {
	return a.open(ctx, agent, func(_ context.Context, o *Owner, s Stream) { _ = o.ServeProbe(s, 30*time.Second) })
}

// SendDatagram implements Peers.
func (a *memAgent) SendDatagram(agent string, b []byte) error {
	peer := a.mesh.agents[agent]
	if peer == nil || a.blocked || len(b) > 1100 {
		return errors.New("not sent")
	}
	a.mu.Lock()
	a.datagrams++
	a.mu.Unlock()
	peer.mu.Lock()
	defer peer.mu.Unlock()
	if peer.mute || a.lose != nil && a.lose(b) {
		return nil
	}
	go func() { _ = peer.ServeDatagram(a.Agent, b, 30*time.Second) }()
	return nil
}

func (a *memAgent) RTT(string) time.Duration { return 100 * time.Microsecond }

func (a *memAgent) open(ctx context.Context, agent string, serve func(context.Context, *Owner, Stream)) (Stream, error) {
	peer := a.mesh.agents[agent]
	if peer == nil {
		return nil, errors.New("no connection")
	}
	a.mu.Lock()
	a.streams++
	a.mu.Unlock()
	here, there := memStreams()
	peer.mu.Lock()
	defer peer.mu.Unlock()
	if peer.far {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if peer.mute {
		go func() { _, _ = io.Copy(io.Discard, there) }()
		return here, nil
	}
	peer.served = append(peer.served, there)
	go serve(context.Background(), peer.Owner, there)
	return here, nil
}

// memStream is one end of a stream in memory.
type memStream struct {
	in, out *memPipe
	ctx     context.Context
	cancel  context.CancelFunc // of this end
	peer    context.CancelFunc // of the other end
}

func memStreams() (a, b *memStream) {
	ab, ba := newMemPipe(), newMemPipe()
	ctxA, cancelA := context.WithCancel(context.Background())
	ctxB, cancelB := context.WithCancel(context.Background())
	return &memStream{ba, ab, ctxA, cancelA, cancelB}, &memStream{ab, ba, ctxB, cancelB, cancelA}
}

func (s *memStream) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *memStream) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s *memStream) CloseWrite() error           { s.out.end(io.EOF); return nil }
func (s *memStream) Context() context.Context    { return s.ctx }
func (s *memStream) SetDeadline(t time.Time) error {
	s.in.setDeadline(t)
	return nil
}

func (s *memStream) Close() error {
	s.cancel()
	s.out.end(io.EOF)
	s.in.end(io.ErrClosedPipe)
	return nil
}

func (s *memStream) Cancel(uint64) {
	s.peer()
	s.cancel()
	s.out.end(io.ErrClosedPipe)
	s.in.end(io.ErrClosedPipe)
}

// memPipe is one direction: writes never wait, as on a QUIC stream with an open window.
type memPipe struct {
	mu       sync.Mutex
	ready    *sync.Cond
	buf      []byte
	err      error // what readers get after the bytes, and writers at once
	deadline time.Time
}

func newMemPipe() *memPipe {
	p := &memPipe{}
	p.ready = sync.NewCond(&p.mu)
	return p
}

func (p *memPipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case errors.Is(p.err, io.ErrClosedPipe):
			return 0, p.err
		case len(p.buf) > 0:
			n := copy(b, p.buf)
			p.buf = p.buf[n:]
			return n, nil
		case p.err != nil:
			return 0, p.err
		case !p.deadline.IsZero() && !time.Now().Before(p.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		p.ready.Wait()
	}
}

func (p *memPipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, io.ErrClosedPipe
	}
	p.buf = append(p.buf, b...)
	p.ready.Broadcast()
	return len(b), nil
}

func (p *memPipe) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil || errors.Is(err, io.ErrClosedPipe) {
		p.err = err
	}
	p.ready.Broadcast()
}

func (p *memPipe) setDeadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), p.ready.Broadcast)
	}
	p.ready.Broadcast()
}

// memBooker counts bookings. Limit bounds them; the next is refused as full.
type memBooker struct {
	mu     sync.Mutex
	n      int
	seq    uint64
	limit  int
	down   bool
	lie    bool    // tells impossible loads
	queued float64 // seconds
	refuse Refused
	eject  bool // it is ejected: only who must go there may
	stuck  context.Context
	choke  context.CancelCauseFunc // gives up what it was booked for
	ends   []Outcome
	alive  context.Context
	hang   context.CancelCauseFunc

	turn func(context.Context) error // waits for a booking's turn; nil for at once

	generation engine.Generation // of the cache; 0 for any

	ask           openai.Ask // of every booking, until one is refused
	askTokens     openai.Ask // likewise, where the ingress wants them
	wantsPrompt   bool
	lessons       [][]uint32
	refusedFields []string
	bodies        []string // of the bookings
}

// occupy adds n requests that nobody sent.
func (b *memBooker) occupy(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n += n
}

func (b *memBooker) booked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// set changes the booker under its lock.
func (b *memBooker) set(change func(*memBooker)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

func (b *memBooker) Admit(ad Admission) (Booking, engine.Load, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.generation != 0 && ad.Generation != 0 && ad.Generation != b.generation {
		return nil, b.loadLocked(), Refused("generation")
	}
	if b.refuse != "" {
		return nil, b.loadLocked(), b.refuse
	}
	if b.eject && !ad.Forced {
		return nil, b.loadLocked(), Refused("ejected")
	}
	if b.limit > 0 && b.n >= b.limit {
		return nil, b.loadLocked(), Refused("full")
	}
	b.n++
	return &memBooking{b: b}, b.loadLocked(), nil
}

// outcomes returns how the bookings ended so far.
func (b *memBooker) outcomes() []Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.ends)
}

func (b *memBooker) Load() engine.Load {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loadLocked()
}

func (b *memBooker) loadLocked() engine.Load {
	b.seq++
	l := engine.Load{Seq: b.seq, InFlight: b.n, QueuedSeconds: b.queued, PrefillRate: 16000, BytesPerToken: 4}
	if b.limit > 0 && b.n >= b.limit {
		l.Flags |= engine.Full
	}
	if b.down {
		l.Flags |= engine.Down
	}
	if b.eject {
		l.Flags |= engine.Ejected
	}
	if b.lie {
		l.KVUsage = impossible.KVUsage
	}
	return l
}

func (b *memBooker) Alive() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.alive == nil {
		b.alive, b.hang = context.WithCancelCause(context.Background())
	}
	return b.alive
}

func (b *memBooker) NoteUnreachable() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = true
}

type memBooking struct {
	b    *memBooker
	once sync.Once

	learned bool
}

func (k *memBooking) Turn(ctx context.Context) error {
	if k.b.turn == nil {
		return nil
	}
	return k.b.turn(ctx)
}

// GivenUp implements Booking: all bookings of a booker are given up together.
func (k *memBooking) GivenUp() context.Context {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	if k.b.stuck == nil {
		k.b.stuck, k.b.choke = context.WithCancelCause(context.Background())
	}
	return k.b.stuck
}

func (k *memBooking) FirstContent() {}

func (k *memBooking) Ask() openai.Ask { return k.b.ask }

func (k *memBooking) AskTokens() openai.Ask { return k.b.askTokens }

func (k *memBooking) AskRefused(field string) {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	k.b.refusedFields, k.b.ask = append(k.b.refusedFields, field), openai.Ask{}
}

func (k *memBooking) NoteBody(body []byte) {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	k.b.bodies = append(k.b.bodies, string(body))
}

func (k *memBooking) WantsPrompt() bool { return k.b.wantsPrompt && !k.learned }

func (k *memBooking) Learn(ids []uint32, _ time.Duration) {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	k.learned = true
	k.b.lessons = append(k.b.lessons, ids)
}

func (k *memBooking) Finish(o Outcome) {
	k.once.Do(func() {
		k.b.mu.Lock()
		defer k.b.mu.Unlock()
		k.b.n--
		k.b.ends = append(k.b.ends, o)
	})
}

// handlerTransport runs an agent's engine as a handler, streaming.
type handlerTransport struct {
	a *memAgent
}

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, w := io.Pipe()
	rw := &pipeWriter{header: http.Header{}, w: w, ready: make(chan struct{})}
	go func() {
		defer func() {
			if p := recover(); p != nil {
				rw.abort(fmt.Errorf("%v", p))
				return
			}
			rw.WriteHeader(http.StatusOK)
			_ = w.Close()
		}()
		h.a.engine.ServeHTTP(rw, r)
	}()
	context.AfterFunc(r.Context(), func() { _ = body.CloseWithError(r.Context().Err()) })
	select {
	case <-rw.ready:
		if rw.err != nil {
			return nil, rw.err
		}
		return &http.Response{StatusCode: rw.status, Header: rw.sent, Body: body, Request: r}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

type pipeWriter struct {
	header, sent http.Header
	status       int
	w            *io.PipeWriter
	ready        chan struct{}
	once         sync.Once
	err          error
}

func (p *pipeWriter) Header() http.Header { return p.header }

func (p *pipeWriter) WriteHeader(status int) {
	p.once.Do(func() {
		p.status, p.sent = status, p.header.Clone()
		close(p.ready)
	})
}

func (p *pipeWriter) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.w.Write(b)
}

func (p *pipeWriter) Flush() {}

func (p *pipeWriter) abort(err error) {
	p.once.Do(func() {
		p.err = err
		close(p.ready)
	})
	_ = p.w.CloseWithError(err)
}

// echoEngine streams three words and its own name.
type echoEngine struct {
	name string
}

func chunkOf(text string) string {
	return `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"` + text + `"}}]}` + "\n\n"
}

const (
	roleChunk  = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	usageChunk = `data: {"id":"c","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}}` + "\n\n"
	doneChunk  = "data: [DONE]\n\n"
)

func (e echoEngine) answer() string {
	return roleChunk + chunkOf("one") + chunkOf("two") + chunkOf(e.name) + usageChunk + doneChunk
}

func (e echoEngine) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for event := range strings.SplitAfterSeq(e.answer(), "\n\n") {
		_, _ = io.WriteString(w, event)
	}
}

const chatBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`

func (a *memAgent) post(ctx context.Context, body string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}
