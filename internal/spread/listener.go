package spread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// ListenerConfig is what a Listener is made of.
type ListenerConfig struct {
	Self       string            // name of this agent
	Scheme     cachestate.Scheme // of the keys that overlaps are looked up by
	Carrier    Carrier
	View       *forward.View
	Index      *cachestate.Tiers
	Hear       func(agent string, r forward.Report, now time.Time)         // takes a heartbeat; nil: View.Hear
	Doubt      func(agent string, id engine.ID, what string, reason error) // see forward.Ingress.Doubt; nil: nobody is told
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: its metrics are shown nowhere
}

// Listener takes what peers tell into this agent's view and index, and asks for what it missed.
type Listener struct {
	ListenerConfig
	scheme             schemeID
	badMessages, pulls prometheus.Counter

	ctx     context.Context // of pulls
	cancel  context.CancelFunc
	pullers sync.WaitGroup
	slots   chan struct{} // as many as pulls may run

	mu     sync.Mutex
	owners map[string]*owner
}

// owner is one life of a peer's process, as a teller, and what is known of its digests. What it can make grow is kept here,
// so that its end frees it.
type owner struct {
	instance  uint64
	announced uint64   // number of the last announcement
	scheme    schemeID // as its feed says; zero before
	feed      Stream   // the last one; nil when it has ended

	ctx   context.Context // of its pulls
	over  context.CancelFunc
	slots chan struct{}       // as many as pulls from it may run
	asked map[DigestID]*asked // at most maxAsked

	digestAt map[DigestID]time.Time // when a digest was last known to be its last; of engines that it has announced
}

func (l *Listener) newOwner(instance uint64) *owner {
	o := &owner{
		instance: instance, slots: make(chan struct{}, maxPullsOf),
		asked: map[DigestID]*asked{}, digestAt: map[DigestID]time.Time{},
	}
	o.ctx, o.over = context.WithCancel(l.ctx)
	return o
}

// forget drops what is kept of digests that are gone.
func (o *owner) forget(gone func(DigestID) bool) {
	maps.DeleteFunc(o.digestAt, func(id DigestID, _ time.Time) bool { return gone(id) })
	maps.DeleteFunc(o.asked, func(id DigestID, a *asked) bool { return !a.running && gone(id) })
}

// NewListener returns a Listener, which is to be closed.
func NewListener(c ListenerConfig) *Listener {
	if c.Hear == nil {
		c.Hear = c.View.Hear
	}
	if c.Doubt == nil {
		c.Doubt = func(string, engine.ID, string, error) {}
	}
	f := promauto.With(c.Registerer)
	l := &Listener{
		ListenerConfig: c, scheme: schemeOf(c.Scheme), slots: make(chan struct{}, maxPulls),
		owners: map[string]*owner{},
		badMessages: f.NewCounter(prometheus.CounterOpts{
			Name: "kvmesh_spread_bad_messages_total",
			Help: "Messages of peers that could not be read. Worry when it grows: a peer is broken, or of a version that cannot be mixed with this one.",
		}),
		pulls: f.NewCounter(prometheus.CounterOpts{
			Name: "kvmesh_spread_digest_pulls_total",
			Help: "Digests pulled because deltas were missed. Worry when it grows with the mesh at rest.",
		}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Close ends the pulls that run and waits for them; no more are begun.
func (l *Listener) Close() {
	l.mu.Lock()
	l.cancel()
	l.mu.Unlock()
	l.pullers.Wait()
}

// PeerUp says that a peer can be reached, in which life of it: what was known of its earlier life is dropped.
func (l *Listener) PeerUp(peer string, instance uint64) {
	l.mu.Lock()
	before := l.owners[peer]
	replaced := before == nil || before.instance != instance
	if replaced {
		if before != nil {
			before.over()
		}
		l.owners[peer] = l.newOwner(instance)
	}
	l.mu.Unlock()
	if replaced {
		l.View.PeerReplaced(peer)
	}
	l.View.PeerUp(peer, time.Now())
}

// Why a feed is not read any further.
var (
	errNoHello  = errors.New("it begins with no hello")
	errInstance = errors.New("it is of another life of the peer")
)

// helloPatience is how long a feed may take to say whose it is. Afterwards it may be silent.
const helloPatience = 5 * time.Second

// codeFeedRefused cancels a feed that cannot be read, or that another one of the peer has replaced.
const codeFeedRefused = 35

// ServeFeed reads what a peer tells until its feed ends. A peer has one feed: a new one ends the one before.
func (l *Listener) ServeFeed(peer string, s Stream) error {
	r := newFrameReader(s)
	_ = s.SetReadDeadline(time.Now().Add(helloPatience)) // a stream that takes none fails at the read
	h, err := r.hello()
	_ = s.SetReadDeadline(time.Time{})
	if err != nil {
		return l.refuseFeed(peer, s, err)
	}
	o, before := l.begin(peer, h, s)
	if o == nil {
		return l.refuseFeed(peer, s, errInstance)
	}
	defer l.end(o, s)
	if before != nil {
		before.Cancel(codeFeedRefused)
	}
	for {
		kind, body, err := r.next()
		if errors.Is(err, errFrame) {
			return l.refuseFeed(peer, s, err)
		}
		if err != nil {
			return fmt.Errorf("read feed: %w", err)
		}
		l.frame(peer, o, kind, body)
	}
}

// refuseFeed says why a feed is not read.
func (l *Listener) refuseFeed(peer string, s Stream, err error) error {
	s.Cancel(codeFeedRefused)
	if !errors.Is(err, io.EOF) { // a feed that ends at once is none
		l.bad(peer, err)
	}
	return fmt.Errorf("refuse feed: %w", err)
}

// begin notes a feed. It returns the feed before it, or no owner where the feed is of another life than the one that is up.
func (l *Listener) begin(peer string, h hello, s Stream) (o *owner, before Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o = l.owners[peer]; o == nil {
		o = l.newOwner(h.instance)
		l.owners[peer] = o
	}
	if o.instance != h.instance {
		return nil, nil
	}
	before, o.feed, o.scheme = o.feed, s, h.scheme
	return o, before
}

func (l *Listener) end(o *owner, s Stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.feed == s {
		o.feed = nil
	}
}

// bad counts what cannot be read.
func (l *Listener) bad(peer string, err error) {
	l.badMessages.Inc()
	l.Doubt(peer, "", forward.DoubtMessage, err)
}

// frame takes in one frame of a feed. One that cannot be read says nothing of the next.
func (l *Listener) frame(peer string, o *owner, kind byte, body []byte) {
	var err error
	switch kind {
	case frameEngines:
		err = l.hearEngines(peer, o, body)
	case frameDigests:
		err = l.hearDigests(peer, o, body)
	}
	if err != nil {
		l.bad(peer, err)
		return
	}
	l.View.Heard(peer, time.Now())
}

func (l *Listener) hearEngines(peer string, o *owner, b []byte) error {
	number, engines, err := parseEngines(b, peer)
	if err != nil {
		return err
	}
	if l.isNews(peer, o, number) {
		l.View.Announce(peer, engines, time.Now())
		l.mu.Lock()
		defer l.mu.Unlock()
		o.forget(l.gone())
	}
	return nil
}

// isNews reports whether an announcement is newer than the last one of the life that is up: what is left of an earlier feed
// may be read after the beginning of the next.
func (l *Listener) isNews(peer string, o *owner, number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owners[peer] != o || number <= o.announced {
		return false
	}
	o.announced = number
	return true
}

// foreign reports whether an agent's keys cannot be compared with those of this one.
func (l *Listener) foreign(agent string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.owners[agent]
	return o != nil && o.isForeign(l.scheme)
}

func (o *owner) isForeign(to schemeID) bool { return o.scheme != (schemeID{}) && o.scheme != to }

// Notes says in words what an operator should know.
func (l *Listener) Notes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(l.owners)) {
		if o := l.owners[name]; o.isForeign(l.scheme) {
			notes = append(notes, fmt.Sprintf("agent %s computes prompt keys by scheme %v, this agent by %v: "+
				"what its engines hold counts as unknown", name, o.scheme, l.scheme))
		}
	}
	return notes
}

// Datagram takes in a heartbeat of a peer.
func (l *Listener) Datagram(peer string, b []byte) {
	report, err := forward.ParseReport(b)
	if err != nil {
		l.bad(peer, err)
		return
	}
	l.Hear(peer, report, time.Now())
}

// Forget drops what is kept of engines that the view does not know any more, and of agents that known denies. Call it
// once a minute.
func (l *Listener) Forget(known func(agent string) bool) {
	gone := l.gone()
	l.mu.Lock()
	defer l.mu.Unlock()
	for agent, o := range l.owners {
		o.forget(gone)
		if o.feed == nil && !known(agent) {
			o.over()
			delete(l.owners, agent)
		}
	}
}

// gone returns what tells the digests of engines that the view does not know, and of geometries that are not taken.
func (l *Listener) gone() func(DigestID) bool {
	taken := l.Index.Geometries()
	return func(id DigestID) bool {
		_, known := l.View.Generation(id.Engine)
		return !known || !slices.Contains(taken, id.Geometry)
	}
}
