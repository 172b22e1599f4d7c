package spread

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
)

// The first byte of a message says what it is.
const (
	messageEngines byte = 1 // announcement: number, instance of the sender, all its engines
	messageDigests byte = 2 // deltas or whole digests of the sender's engines
)

// ListenerConfig is what a Listener is made of.
type ListenerConfig struct {
	Self       string // name of this agent
	Carrier    Carrier
	View       *forward.View
	Index      *cachestate.Tiers
	Hear       func(agent string, r forward.Report, now time.Time) // takes a heartbeat; nil: View.Hear
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: its metrics are shown nowhere
}

// Listener takes what peers tell into this agent's view and index, and asks for what it missed.
type Listener struct {
	ListenerConfig
	badMessages, pulls prometheus.Counter

	ctx     context.Context // of pulls
	cancel  context.CancelFunc
	pullers sync.WaitGroup

	mu       sync.Mutex
	lives    map[string]life        // by agent: the life of it that is known
	pulling  map[DigestID]bool      // digests being pulled
	digestAt map[DigestID]time.Time // when the last message of a digest came
}

// life is one life of a peer's process, and the number of the last announcement from it.
type life struct {
	instance, announced uint64
}

// NewListener returns a Listener, which is to be closed.
func NewListener(c ListenerConfig) *Listener {
	if c.Hear == nil {
		c.Hear = c.View.Hear
	}
	f := promauto.With(c.Registerer)
	l := &Listener{
		ListenerConfig: c, lives: map[string]life{}, pulling: map[DigestID]bool{}, digestAt: map[DigestID]time.Time{},
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
	replaced := l.lives[peer].instance != instance
	if replaced {
		l.lives[peer] = life{instance: instance}
	}
	l.mu.Unlock()
	if replaced {
		l.View.PeerReplaced(peer)
	}
	l.View.PeerUp(peer, time.Now())
}

// Message takes in a message of a peer.
func (l *Listener) Message(from string, b []byte) {
	if len(b) == 0 {
		return
	}
	var err error
	switch b[0] {
	case messageEngines:
		err = l.hearEngines(from, b[1:])
	case messageDigests:
		err = l.hearDigests(from, b[1:])
	default:
		err = fmt.Errorf("message of kind %d is not known to this version", b[0])
	}
	if err != nil {
		l.badMessages.Inc()
		l.Logger.Warn("message dropped", "peer", from, "err", err)
		return
	}
	l.View.Heard(from, time.Now())
}

// Datagram takes in a heartbeat of a peer.
func (l *Listener) Datagram(peer string, b []byte) {
	report, err := forward.ParseReport(b)
	if err != nil {
		l.badMessages.Inc()
		return
	}
	l.Hear(peer, report, time.Now())
}

// Forget drops what is kept of engines that the view does not know any more, and of agents that known denies. Call it
// once a minute.
func (l *Listener) Forget(known func(agent string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.digestAt, func(id DigestID, _ time.Time) bool { _, known := l.View.Generation(id.Engine); return !known })
	maps.DeleteFunc(l.lives, func(agent string, _ life) bool { return !known(agent) })
}
