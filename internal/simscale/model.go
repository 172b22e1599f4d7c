package simscale

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/spread"
)

// model is one run.
type model struct {
	Config
	agents    map[string]*agent
	tellers   []*agent
	listeners []*agent
	traffic   *traffic
	group     sync.WaitGroup // of all that runs

	stale, silent ages // of digests, of heartbeats
	unknown       int
	memory        []Memory
}

// agent is one of the mesh. Those that do not listen have no view.
type agent struct {
	name     string
	instance uint64
	source   *source
	teller   *spread.Teller

	listener *spread.Listener
	view     *forward.View
}

// Run runs the model. It must be called in a bubble of testing/synctest, whose clock stands still while anything is done;
// Main makes one. It returns an error when ctx, which may be of outside, has ended.
func Run(ctx context.Context, c Config) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, fmt.Errorf("simscale: %w", err)
	}
	m := newModel(c)
	inside, stop := context.WithCancel(context.Background()) // ctx is not waited for: time would stand still
	m.start(inside)
	err := m.measure(ctx)
	stop()
	for _, a := range m.listeners {
		a.listener.Close()
	}
	m.group.Wait()
	if err != nil {
		return Result{}, err
	}
	return m.result(), nil
}

func newModel(c Config) *model {
	m := &model{Config: c, agents: map[string]*agent{}, traffic: newTraffic()}
	apart := time.Duration(0)
	if c.Distinct < c.Agents {
		apart = spread.DigestPeriod(c.Agents) / sharedVersions
	}
	digests := make([]*churn, c.Distinct)
	for i := range digests {
		digests[i] = newChurn(&c, uint64(i), apart)
	}
	for i := range c.Agents {
		m.add(i, digests[i%c.Distinct])
	}
	return m
}

// sharedVersions is how many versions a digest that engines share has in a period: owners remember no more than 64.
const sharedVersions = 16

// add makes an agent.
func (m *model) add(i int, digest *churn) {
	a := &agent{name: fmt.Sprintf("agent-%04d", i), instance: uint64(i + 1)}
	a.source = newSource(a.name, digest)
	log := slog.New(slog.DiscardHandler)
	way, scheme := carrier{m, a}, cachestate.DefaultScheme()
	told := spread.TellerConfig{Self: a.name, Instance: a.instance, Scheme: scheme, Sources: []spread.Source{a.source}, Carrier: way, Logger: log}
	if i < m.Listeners {
		told.Index = cachestate.NewTiers(cachestate.DefaultGeometry())
		a.view = forward.NewView(a.name, told.Index)
		told.View = a.view
		a.listener = spread.NewListener(spread.ListenerConfig{
			Self: a.name, Scheme: scheme, Carrier: way, View: a.view, Index: told.Index, Logger: log,
		})
		m.listeners = append(m.listeners, a)
	}
	a.teller = spread.NewTeller(told)
	m.tellers = append(m.tellers, a)
	m.agents[a.name] = a
}

// start runs all agents until ctx ends. They begin within one period, each at another moment.
func (m *model) start(ctx context.Context) {
	for _, a := range m.tellers {
		for _, l := range m.listeners {
			if l != a {
				l.listener.PeerUp(a.name, a.instance)
				a.teller.PeerUp(l.name, l.instance)
			}
		}
		after := rand.N(spread.DigestPeriod(m.Agents))
		m.group.Go(func() {
			time.Sleep(after)
			_ = a.teller.Run(ctx)
		})
	}
	for _, l := range m.listeners {
		m.group.Go(func() { l.watch(ctx) })
	}
}

// watch keeps the clock of a listener's view, as whole agents do.
func (a *agent) watch(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			a.view.Tick(now)
		case <-minute.C:
			a.listener.Forget(func(string) bool { return true })
		}
	}
}

// sampling is the time between two samples on the average. It is drawn, so that samples fall everywhere in a period.
const sampling = time.Second

// measure lets time pass, and looks at the listeners now and then.
func (m *model) measure(ctx context.Context) error {
	began := time.Now()
	time.Sleep(m.WarmUp)
	m.traffic.reset()
	m.remember(began)
	end, remembered := time.Now().Add(m.For), time.Now()
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("simscale: %w", err)
		}
		wait := rand.N(2 * sampling)
		if left := time.Until(end); left <= wait {
			time.Sleep(left)
			break
		}
		time.Sleep(wait)
		m.sample(time.Now())
		if time.Since(remembered) >= m.Every {
			remembered = remembered.Add(m.Every)
			m.remember(began)
		}
	}
	m.remember(began)
	return nil
}

// sample looks at what each listener knows of all others.
func (m *model) sample(now time.Time) {
	for _, l := range m.listeners {
		for _, s := range l.view.Snapshot(now) {
			if s.State != forward.Own && s.Age >= 0 {
				m.silent.add(s.Age)
			}
		}
		for _, a := range m.tellers {
			if a != l {
				m.sampleDigest(l, a, now)
			}
		}
	}
}

func (m *model) sampleDigest(l, owner *agent, now time.Time) {
	have, ok := l.listener.Have(spread.DigestID{Engine: engineOf(owner.name), Tier: cachestate.TierGPU, Geometry: cachestate.DefaultGeometry()})
	if !ok || have.Generation != generation {
		m.unknown++
		return
	}
	m.stale.add(owner.source.staleness(have.Number, now))
}
