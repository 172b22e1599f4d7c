package spread

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// source is an engine whose cache the test fills.
type source struct {
	mu      sync.Mutex
	engine  engine.Engine
	seq     uint64
	tiers   []cachestate.Tier
	digests *cachestate.Digests
	shapes  []cachestate.Geometry
	keys    []cachestate.Key // in the digests, the oldest first
	last    cachestate.Key
}

// newSource returns an engine with digests of the GPU tier, and of others where they are named.
func newSource(id engine.ID, slower ...cachestate.Tier) *source {
	s := &source{
		engine: engine.Engine{ID: id, Models: []engine.Model{{Name: "m"}}},
		tiers:  append([]cachestate.Tier{cachestate.TierGPU}, slower...),
		shapes: []cachestate.Geometry{cachestate.DefaultGeometry()},
	}
	s.restart(1)
	return s
}

// restart begins another life of the engine's cache.
func (s *source) restart(gen engine.Generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.Generation, s.keys = gen, nil
	s.digests = cachestate.NewDigests(s.engine.ID, gen, s.shapes)
}

// use makes it publish digests of these geometries.
func (s *source) use(geometries ...cachestate.Geometry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shapes = geometries
	s.digests.Use(geometries, func(tell func(cachestate.Tier, cachestate.Key)) {
		for _, t := range s.tiers {
			for _, k := range s.keys {
				tell(t, k)
			}
		}
	})
}

// change puts n new keys into each tier, and takes as many out as are above limit.
func (s *source) change(n, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.last += 0x9e3779b97f4a7c15
		s.keys = append(s.keys, s.last)
		for _, t := range s.tiers {
			s.digests.Add(t, s.last)
		}
		if len(s.keys) > limit {
			for _, t := range s.tiers {
				s.digests.Remove(t, s.keys[0])
			}
			s.keys = s.keys[1:]
		}
	}
}

func (s *source) Engine() engine.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine
}

func (s *source) Load() engine.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	return engine.Load{Seq: s.seq}
}

func (s *source) Publish() []cachestate.Delta {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.digests.Publish(time.Now())
}

func (s *source) Digests() []cachestate.Delta {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.digests.Full()
}

func (s *source) DeltasSince(g cachestate.Geometry, t cachestate.Tier, version uint64) (cachestate.Delta, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.digests.Since(g, t, version)
}

// world is agents that reach each other in memory.
type world struct {
	t     *testing.T
	count int // of agents, as those that are told suppose; 0: those there are

	mu     sync.Mutex
	agents map[string]*agent
}

// agent is one of them.
type agent struct {
	name     string
	instance uint64
	sources  []*source
	teller   *Teller
	listener *Listener
	doubts   []string // of the listener: agent, engine, what
	stop     func()

	mu     sync.Mutex
	feeds  map[string]*stream       // by peer: the near end of the last feed to it
	heard  map[string]*bytes.Buffer // by peer: what was read of its feeds
	opened int                      // feeds
	pulled int                      // pulls served
	deaf   bool                     // it reads none of the feeds to it
	mute   bool                     // what it writes into feeds is lost, and so are its datagrams
	beats  int                      // datagrams that came
	hold   chan struct{}            // pulls are served when it is closed; nil: at once
}

// inWorld runs f in fake time.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, &world{t: t, agents: map[string]*agent{}})
	})
}

// add makes an agent and runs it until the end of the test.
func (w *world) add(name string, sources ...*source) *agent { return w.addAs(name, nil, sources...) }

// addAs is add of an agent whose configs are changed.
func (w *world) addAs(name string, change func(*TellerConfig, *ListenerConfig), sources ...*source) *agent {
	w.t.Helper()
	a := &agent{name: name, instance: uint64(len(w.agents) + 1), sources: sources, feeds: map[string]*stream{}, heard: map[string]*bytes.Buffer{}}
	index := cachestate.NewTiers(cachestate.DefaultGeometry())
	view := forward.NewView(name, index)
	log := slog.New(slog.DiscardHandler)
	tc := TellerConfig{Self: name, Instance: a.instance, Scheme: cachestate.DefaultScheme(), Carrier: carrier{w, a}, View: view, Index: index, Logger: log}
	for _, s := range sources {
		tc.Sources = append(tc.Sources, s)
	}
	lc := ListenerConfig{Self: name, Scheme: cachestate.DefaultScheme(), Carrier: carrier{w, a}, View: view, Index: index, Logger: log}
	lc.Doubt = func(agent string, id engine.ID, what string, _ error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.doubts = append(a.doubts, agent+" "+string(id)+" "+what)
	}
	if change != nil {
		change(&tc, &lc)
	}
	a.teller, a.listener = NewTeller(tc), NewListener(lc)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.teller.Run(ctx)
	}()
	a.stop = func() { cancel(); <-done; a.listener.Close() }
	w.t.Cleanup(a.stop)
	synctest.Wait() // it begins alone
	w.mu.Lock()
	defer w.mu.Unlock()
	w.agents[name] = a
	return a
}

// meet connects two agents, part takes their connection away.
func (w *world) meet(a, b *agent) {
	for _, x := range [][2]*agent{{a, b}, {b, a}} {
		x[0].listener.PeerUp(x[1].name, x[1].instance)
		x[0].teller.PeerUp(x[1].name, x[1].instance)
	}
}

func (w *world) part(a, b *agent) {
	for _, x := range [][2]*agent{{a, b}, {b, a}} {
		x[0].teller.PeerDown(x[1].name)
		x[0].listener.View.PeerDown(x[1].name, errors.New("parted"))
		x[0].cut(x[1].name)
	}
	synctest.Wait()
}

// cut ends the feed to a peer, as the end of its connection does.
func (a *agent) cut(peer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.feeds[peer]; s != nil {
		s.Cancel(0)
	}
}

// agrees reports whether an agent's index has the digests of all engines of another, as they were published last.
func (a *agent) agrees(owner *agent) bool {
	for _, s := range owner.sources {
		for _, d := range s.Digests() {
			if have, _ := a.listener.Have(digestOf(&d)); have != d.Version() {
				return false
			}
		}
	}
	return true
}

// await waits in fake time until ok.
func await(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// told returns the frames that an agent has read of an owner's feeds since it was asked last.
func (a *agent) told(t *testing.T, owner string) (kinds []byte, deltas []cachestate.Delta, size int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.heard[owner]
	if b == nil {
		return nil, nil, 0
	}
	size = b.Len()
	r := newFrameReader(bytes.NewReader(bytes.Clone(b.Bytes())))
	b.Reset()
	for {
		kind, body, err := r.next()
		if errors.Is(err, io.EOF) {
			return kinds, deltas, size
		}
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, kind)
		for kind == frameDigests && len(body) > 0 {
			var d cachestate.Delta
			if d, body, err = cachestate.ParseDelta(body, owner, cachestate.DefaultGeometry()); err != nil {
				t.Fatal(err)
			}
			deltas = append(deltas, d)
		}
	}
}

// carrier is the way from an agent to the others.
type carrier struct {
	*world
	from *agent
}

var _ Carrier = carrier{}

func (c carrier) Agents() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.count, len(c.agents))
}

// agent returns one by its name, nil where there is none.
func (w *world) agent(name string) *agent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.agents[name]
}

func (c carrier) OpenFeed(_ context.Context, peer string) (Stream, error) {
	to := c.agent(peer)
	if to == nil {
		return nil, errors.New("nobody")
	}
	near, far := newStreams()
	near.lost = func() bool { return c.from.is(&c.from.mute) }
	c.from.mu.Lock()
	c.from.feeds[peer] = near
	c.from.opened++
	c.from.mu.Unlock()
	to.mu.Lock()
	if to.heard[c.from.name] == nil {
		to.heard[c.from.name] = &bytes.Buffer{}
	}
	far.seen = func(b []byte) {
		to.mu.Lock()
		defer to.mu.Unlock()
		to.heard[c.from.name].Write(b)
	}
	to.mu.Unlock()
	if !to.is(&to.deaf) {
		go func() {
			_ = to.listener.ServeFeed(c.from.name, far)
			far.Cancel(0)
		}()
	}
	return near, nil
}

func (c carrier) OpenPull(_ context.Context, peer string) (Stream, error) {
	to := c.agent(peer)
	if to == nil {
		return nil, errors.New("nobody")
	}
	to.mu.Lock()
	to.pulled++
	hold := to.hold
	to.mu.Unlock()
	near, far := newStreams()
	go func() {
		if hold != nil {
			<-hold
		}
		_ = to.teller.ServePull(c.from.name, far)
		far.Cancel(0)
	}()
	return near, nil
}

func (c carrier) SendDatagram(peer string, b []byte) error {
	to := c.agent(peer)
	if to == nil || c.from.is(&c.from.mute) {
		return nil
	}
	to.mu.Lock()
	to.beats++
	to.mu.Unlock()
	to.listener.Datagram(c.from.name, b)
	return nil
}

func (a *agent) is(flag *bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *flag
}

func (a *agent) set(flag *bool, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*flag = on
}

func (a *agent) get(counter *int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *counter
}

// stream is one end of a stream without buffers.
type stream struct {
	in   *io.PipeReader
	out  *io.PipeWriter
	seen func([]byte) // what is read; nil: nobody looks
	lost func() bool  // whether what is written now goes nowhere; nil: never

	reads, writes time.Time // deadlines; zero: none
}

func newStreams() (near, far *stream) {
	a, b := io.Pipe()
	c, d := io.Pipe()
	return &stream{in: a, out: d}, &stream{in: c, out: b}
}

func (s *stream) Read(p []byte) (int, error) {
	defer within(s.reads, func() { _ = s.in.CloseWithError(os.ErrDeadlineExceeded) })()
	n, err := s.in.Read(p)
	if s.seen != nil {
		s.seen(p[:n])
	}
	return n, err
}

func (s *stream) Write(p []byte) (int, error) {
	if s.lost != nil && s.lost() {
		return len(p), nil
	}
	defer within(s.writes, func() { _ = s.out.CloseWithError(os.ErrDeadlineExceeded) })()
	return s.out.Write(p)
}

func (s *stream) CloseWrite() error { return s.out.Close() }

func (s *stream) Close() error {
	s.Cancel(0)
	return nil
}

// Cancel ends writes in order where nothing waits to be read, as it is without buffers.
func (s *stream) Cancel(uint64) {
	_ = s.out.Close()
	_ = s.in.CloseWithError(io.ErrClosedPipe)
}

// The deadlines are set by those who read and write, before they do.
func (s *stream) SetReadDeadline(t time.Time) error {
	s.reads = t
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.writes = t
	return nil
}

// within calls over at a time, unless what it returns is called before.
func within(t time.Time, over func()) (stop func()) {
	if t.IsZero() {
		return func() {}
	}
	timer := time.AfterFunc(time.Until(t), over)
	return func() { timer.Stop() }
}

// recorded is a feed that has been read from a wire.
type recorded struct {
	io.Reader
	written  bytes.Buffer
	canceled bool
}

func (r *recorded) Write(p []byte) (int, error)    { return r.written.Write(p) }
func (*recorded) Close() error                     { return nil }
func (*recorded) CloseWrite() error                { return nil }
func (r *recorded) Cancel(uint64)                  { r.canceled = true }
func (*recorded) SetReadDeadline(time.Time) error  { return nil }
func (*recorded) SetWriteDeadline(time.Time) error { return nil }

// nowhere is a Carrier of an agent that is alone.
type nowhere struct{}

var errAlone = errors.New("alone")

func (nowhere) Agents() int                                      { return 1 }
func (nowhere) OpenFeed(context.Context, string) (Stream, error) { return nil, errAlone }
func (nowhere) OpenPull(context.Context, string) (Stream, error) { return nil, errAlone }
func (nowhere) SendDatagram(string, []byte) error                { return errAlone }

// hearer is a listener that can reach nobody, and what it doubts.
type hearer struct {
	*Listener
	doubts []string
}

func newHearer(t testing.TB) *hearer {
	t.Helper()
	index := cachestate.NewTiers(cachestate.DefaultGeometry())
	h := &hearer{}
	h.Listener = NewListener(ListenerConfig{
		Self: "hearer", Scheme: cachestate.DefaultScheme(), Carrier: nowhere{}, View: forward.NewView("hearer", index), Index: index,
		Logger: slog.New(slog.DiscardHandler),
		Doubt: func(agent string, id engine.ID, what string, _ error) {
			h.doubts = append(h.doubts, agent+" "+string(id)+" "+what)
		},
	})
	t.Cleanup(h.Close)
	return h
}

// serve has a feed of a peer read: the frames, behind a hello.
func (h *hearer) serve(peer string, frames ...[]byte) error {
	return h.ServeFeed(peer, &recorded{Reader: bytes.NewReader(feedOf(frames...))})
}

func feedOf(frames ...[]byte) []byte {
	b := hello{protocol, 7, schemeOf(cachestate.DefaultScheme())}.frame()
	for _, f := range frames {
		b = append(b, f...)
	}
	return b
}

// newSender returns a teller of the sources that can reach nobody, with an announcement and an edition.
func newSender(sources ...Source) *Teller {
	t := NewTeller(TellerConfig{
		Self: "sender", Instance: 7, Scheme: cachestate.DefaultScheme(), Sources: sources, Carrier: nowhere{}, Logger: slog.New(slog.DiscardHandler),
	})
	t.announce()
	t.publishDigests()
	return t
}
