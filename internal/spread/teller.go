package spread

import (
	"context"
	"log/slog"
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
	Self     string // name of this agent
	Instance uint64 // of its process
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
	announced    atomic.Uint64 // number of the last announcement
	stateChanged chan struct{} // an engine's load changed state
	described    chan struct{} // an engine's description changed

	mu      sync.Mutex
	ctx     context.Context // of Run; nil before and after
	early   []string        // peers that were up before Run
	greeted sync.WaitGroup
}

// NewTeller returns a Teller that tells nothing before it is run.
func NewTeller(c TellerConfig) *Teller {
	t := &Teller{
		TellerConfig: c, byName: map[string]Source{},
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
	t.mu.Lock()
	t.ctx = ctx
	t.mu.Unlock()
	for _, peer := range t.early {
		t.PeerUp(peer)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.beat(ctx) })
	g.Go(func() error { return t.publish(ctx) })
	err := g.Wait()
	t.mu.Lock()
	t.ctx = nil
	t.mu.Unlock()
	t.greeted.Wait()
	return err
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

// PeerUp says that a peer can be reached: it is told all that this agent has to say.
func (t *Teller) PeerUp(peer string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx := t.ctx; ctx != nil {
		t.greeted.Go(func() { t.greet(ctx, peer) })
		return
	}
	t.early = append(t.early, peer)
}

// greet sends a peer the announcement and the whole digests.
func (t *Teller) greet(run context.Context, peer string) {
	ctx, cancel := context.WithTimeout(run, 10*time.Second)
	defer cancel()
	announcement, _ := t.announcement()
	err := t.Carrier.Send(ctx, peer, announcement)
	for _, b := range t.wholeDigests() {
		if err == nil {
			err = t.Carrier.Send(ctx, peer, b)
		}
	}
	if err != nil && run.Err() == nil {
		t.Logger.Warn("greeting not sent; it is repeated with the next announcement", "peer", peer, "err", err)
	}
	for _, b := range datagrams(t.report(t.HeartbeatPeriod())) {
		_ = t.Carrier.SendDatagram(peer, b) // a lost heartbeat is followed by the next
	}
}

// publish sends digests each period, and announcements when they tell something new or are due again.
func (t *Teller) publish(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var told []engine.Engine
	for round := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-t.described:
			if cannotWait(told, t.engines()) {
				told = t.announce()
			}
		case <-timer.C:
			if round%announcePeriod == 0 {
				told = t.announce()
			}
			t.publishDigests()
			round++
			timer.Reset(DigestPeriod(t.Carrier.Agents()))
		}
	}
}

// broadcast sends a message to every connected peer. Those that it does not reach ask by version, or get it repeated.
func (t *Teller) broadcast(b []byte) {
	t.mu.Lock()
	run := t.ctx
	t.mu.Unlock()
	if run == nil {
		return
	}
	ctx, cancel := context.WithTimeout(run, 5*time.Second)
	defer cancel()
	if err := t.Carrier.Broadcast(ctx, b); err != nil && run.Err() == nil {
		t.Logger.Debug("message did not reach every peer", "err", err)
	}
}
