package spread

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// TellerConfig is what a Teller is made of.
type TellerConfig struct {
	Self     string            // name of this agent
	Instance uint64            // of its process
	Scheme   cachestate.Scheme // of the keys in the digests
	Sources  []Source
	Carrier  Carrier
	View     *forward.View     // of this agent, which is told too; nil: it has none
	Index    *cachestate.Tiers // likewise
	Logger   *slog.Logger
}

// Teller tells all peers, and this agent's own view and index, about the engines beside this agent.
type Teller struct {
	TellerConfig
	byName       map[string]Source
	period       atomic.Int64  // of heartbeats now; a time.Duration
	stateChanged chan struct{} // an engine's load changed state
	described    chan struct{} // an engine's description changed

	publishing sync.Mutex          // held while an edition is made or read from Sources, which must agree
	frames     map[uint64][]byte   // by the number of the edition that a peer has: what leads it to the last one
	publisher  map[DigestID]Source // who published what is in the last edition

	mu      sync.Mutex
	news    news // what there is to tell now
	ctx     context.Context
	peers   map[string]*peer // those that are up, and those that may come back
	writers sync.WaitGroup
	pulls   map[string]int // by peer: pulls being served
}

// news is the last of each thing that peers are told.
type news struct {
	announcement announcement
	edition      *edition // nil before the first
}

// NewTeller returns a Teller that tells nothing before it is run.
func NewTeller(c TellerConfig) *Teller {
	t := &Teller{
		TellerConfig: c, byName: map[string]Source{}, peers: map[string]*peer{}, pulls: map[string]int{},
		stateChanged: make(chan struct{}, 1), described: make(chan struct{}, 1),
	}
	for _, s := range c.Sources {
		t.byName[s.Engine().ID.Name()] = s
	}
	t.period.Store(int64(HeartbeatPeriod(1)))
	return t
}

// Run tells until ctx ends, and then returns nil. It may be called once.
func (t *Teller) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	t.announce()
	t.publishDigests()
	t.begin(ctx)
	defer t.end()
	g.Go(func() error { return t.beat(ctx) })
	g.Go(func() error { return t.publish(ctx) })
	return g.Wait()
}

// begin lets peers be told until ctx ends.
func (t *Teller) begin(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ctx = ctx
	for _, p := range t.peers {
		if p.up {
			t.tellLocked(p)
		}
	}
}

// end waits for those who tell peers, and lets none begin any more.
func (t *Teller) end() {
	t.mu.Lock()
	t.ctx = nil
	t.mu.Unlock()
	t.writers.Wait()
}

// PeerUp says that a peer can be reached, in which life of it. One that comes back in the same life is told what it missed.
func (t *Teller) PeerUp(name string, instance uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[name]
	if p == nil || p.instance != instance {
		t.downLocked(name)
		p = newPeer(t.Self, name, instance)
		t.peers[name] = p
	}
	if !p.up {
		p.up = true
		t.tellLocked(p)
	}
}

// PeerDown says that a peer cannot be reached any more.
func (t *Teller) PeerDown(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.downLocked(name)
}

func (t *Teller) downLocked(name string) {
	if p := t.peers[name]; p != nil && p.up {
		p.up = false
		p.stop()
	}
}

// tellLocked begins to tell a peer, when the writer of the time before has ended.
func (t *Teller) tellLocked(p *peer) {
	if t.ctx == nil {
		return
	}
	ctx, stop := context.WithCancel(t.ctx)
	before, done := p.done, make(chan struct{})
	p.stop, p.done = stop, done
	t.writers.Go(func() {
		defer close(done)
		defer stop()
		<-before
		t.tell(ctx, p)
	})
}

// reached returns the peers that are up.
func (t *Teller) reached() []*peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	up := make([]*peer, 0, len(t.peers))
	for _, p := range t.peers {
		if p.up {
			up = append(up, p)
		}
	}
	return up
}

// Forget drops what is kept of peers that are away and that known denies. Call it once a minute.
func (t *Teller) Forget(known func(peer string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.peers, func(name string, p *peer) bool { return !p.up && !known(name) })
}

// Changed says that the state or the description of an engine changed: peers hear of it at once, and not with what is due.
func (t *Teller) Changed() {
	notify(t.stateChanged)
	notify(t.described)
}

// notify wakes the reader of a channel of capacity one; a wake that is pending already serves for both.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// publish makes an edition each period, and announces when that tells something new or is due again.
func (t *Teller) publish(ctx context.Context) error {
	timer := time.NewTimer(DigestPeriod(t.Carrier.Agents()))
	defer timer.Stop()
	for round := 1; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-t.described:
			if cannotWait(t.told(), t.engines()) {
				t.announce()
			}
		case <-timer.C:
			switch {
			case cannotWait(t.told(), t.engines()): // digests of a life that nobody knows would count for nothing
				t.announce()
			case round%announcePeriod == 0:
				t.announceAgain()
			}
			t.publishDigests()
			round++
			timer.Reset(DigestPeriod(t.Carrier.Agents()))
		}
	}
}

// tellNews replaces what there is to tell, by change, and wakes those who tell it.
func (t *Teller) tellNews(change func(*news)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.news)
	for _, p := range t.peers {
		notify(p.wake)
	}
}

// now returns what there is to tell.
func (t *Teller) now() news {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.news
}

// engines are those beside this agent, as they are described now.
func (t *Teller) engines() []engine.Engine {
	out := make([]engine.Engine, 0, len(t.Sources))
	for _, s := range t.Sources {
		out = append(out, s.Engine())
	}
	return out
}
