// Package node puts an agent together: the mesh, the engine agents, the ingress and the pages to look at. It is the
// composition root: it knows every package and they do not know it. It decides nothing about requests; it carries state
// between the packages: digests and loads from the engine agents to the peers, and what peers say into the view.
//
// New builds, Run runs until its context ends, and then stops in order: not ready, engines cordoned, streams finish,
// leave, close. When a part fails it closes at once and does not say that it leaves.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
	"github.com/kvmesh/kvmesh/mesh"
)

// Node is one agent.
type Node struct {
	config   Config
	log      *slog.Logger
	registry *prometheus.Registry
	start    time.Time

	mesh      *mesh.Mesh
	index     *cachestate.Tiers
	view      *forward.View
	teller    *spread.Teller
	listener  *spread.Listener
	ingress   *forward.Ingress
	agreement *agreement
	keyed     keyed
	recorder  *forward.Recorder
	agentsOf  []*engineagent.Agent // in order of the config
	byName    map[string]*engineagent.Agent
	memory    *memory
	http      net.Listener
	debug     net.Listener // nil without a debug server

	serving  atomic.Int64 // request streams of peers
	draining atomic.Bool
	closed   atomic.Bool     // it takes no new connection of clients any more
	hurry    context.Context // ends when a drain is to end at once
	hurryUp  context.CancelFunc

	cordoning sync.Mutex // held while cordons are applied to the engines beside this agent
}

// New opens the agent's sockets and puts it together. A Node that is never run must be closed.
func New(c Config) (*Node, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	n := &Node{
		config: c, log: c.Logger.With("agent", c.Mesh.Name), registry: prometheus.NewRegistry(), start: time.Now(),
		index:    cachestate.NewTiers(cachestate.DefaultGeometry()),
		recorder: forward.NewRecorder(256), byName: map[string]*engineagent.Agent{},
	}
	n.view = forward.NewView(c.Mesh.Name, n.index)
	n.memory = newMemory(c.MemoryLimit, n.log, n.registry)
	n.hurry, n.hurryUp = context.WithCancel(context.Background())
	n.registerMetrics()
	for _, build := range []func() error{n.buildEngines, n.buildAgreed, n.buildMesh, n.buildIngress, n.buildSpread, n.listen} {
		if err := build(); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	n.agreement.apply(time.Now()) // what the data folder has, before the first request
	n.useGeometry(n.agreement.group.State().Geometry)
	n.useSchemes(n.agreement.group.State().Schemes)
	return n, nil
}

// Close releases the sockets of a Node that is not run.
func (n *Node) Close() error {
	var errs []error
	if n.listener != nil {
		n.listener.Close()
	}
	if n.mesh != nil {
		errs = append(errs, n.mesh.Close())
	}
	for _, l := range []net.Listener{n.http, n.debug} {
		if l != nil {
			errs = append(errs, ignoreClosed(l.Close()))
		}
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (n *Node) buildEngines() error {
	for _, e := range n.config.Engines {
		a, err := engineagent.New(engineagent.Config{
			ID: engine.MakeID(n.config.Mesh.Name, e.Name), URL: e.URL, Kind: e.Kind, APIKey: e.APIKey,
			CapacityTokens: e.CapacityTokens, MaxRunning: e.MaxRunning, NoQueue: e.NoQueue, PrefillStep: e.PrefillStep,
			Rank: rankName(e.Rank), Zone: n.config.Forward.Zone, Geometry: cachestate.DefaultGeometry(), Events: e.Events,
			Transport: n.config.PollEngines, Logger: n.log, Registerer: n.registry, Now: n.config.Mesh.Now,
		})
		if err != nil {
			return fmt.Errorf("engine %s: %w", e.Name, err)
		}
		n.agentsOf = append(n.agentsOf, a)
		n.byName[e.Name] = a
	}
	return nil
}

// rankName returns a rank as metrics name it, "" for the whole server.
func rankName(rank *int) string {
	if rank == nil {
		return ""
	}
	return strconv.Itoa(*rank)
}

func (n *Node) buildMesh() error {
	c := n.config.Mesh
	c.Peers, c.Streams, c.Datagrams, c.State = n, n, n, n
	c.Meta = encodeMeta(n.agreement.group.Self())
	c.Logger, c.Registerer = n.config.Logger.With("component", "mesh"), n.registry
	var err error
	n.mesh, err = mesh.New(c)
	return err
}

func (n *Node) buildIngress() error {
	c := n.config.Forward
	c.Agent, c.View, c.Index, c.Peers = n.config.Mesh.Name, n.view, n.index, peers{n.mesh}
	c.Logger, c.Registerer, c.Record = n.log.With("component", "forward"), n.registry, n.recorder.Record
	c.Transport, c.ShortOfMemory = n.config.Transport, n.memory.short.Load
	for i, a := range n.agentsOf {
		e := n.config.Engines[i]
		c.Engines = append(c.Engines, forward.LocalEngine{
			Name: e.Name, URL: e.URL, APIKey: e.APIKey, Booker: booker{a}, Rank: e.Rank, Kind: func() engine.Kind { return a.Engine().Kind },
		})
	}
	var err error
	n.ingress, err = forward.New(c)
	return err
}

// buildSpread comes after the mesh, which calls nothing of it before it runs.
func (n *Node) buildSpread() error {
	var sources []spread.Source
	for _, a := range n.agentsOf {
		var s spread.Source = a
		if n.config.Source != nil {
			s = n.config.Source(s)
		}
		sources = append(sources, s)
	}
	log := n.log.With("component", "spread")
	n.teller = spread.NewTeller(spread.TellerConfig{
		Self: n.config.Mesh.Name, Instance: n.mesh.Instance(), Scheme: n.config.Forward.Scheme, Sources: sources,
		Carrier: carrier{n.mesh}, View: n.view, Index: n.index, Logger: log,
	})
	n.listener = spread.NewListener(spread.ListenerConfig{
		Self: n.config.Mesh.Name, Scheme: n.config.Forward.Scheme, Carrier: carrier{n.mesh}, View: n.view, Index: n.index,
		Hear: n.ingress.Hear, Doubt: n.ingress.Doubt, Logger: log, Registerer: n.registry,
	})
	return nil
}

func (n *Node) listen() error {
	var err error
	if n.http, err = n.config.Listen("tcp", n.config.HTTP); err != nil {
		return fmt.Errorf("listen for requests: %w", err)
	}
	if n.config.Debug == "" {
		return nil
	}
	if n.debug, err = n.config.Listen("tcp", n.config.Debug); err != nil {
		return fmt.Errorf("listen for the debug server: %w", err)
	}
	return nil
}

// Addr returns the address of the ingress.
func (n *Node) Addr() net.Addr { return n.http.Addr() }

// DebugAddr returns the address of the debug server; nil when there is none.
func (n *Node) DebugAddr() net.Addr {
	if n.debug == nil {
		return nil
	}
	return n.debug.Addr()
}

// QUICAddr returns the address that other agents join at.
func (n *Node) QUICAddr() string { return n.mesh.QUICAddr().String() }

// Run serves until ctx ends or a part fails, then stops in order. It returns the first failure; nil when ctx ended, and what
// ran then has ended by itself or had its time.
func (n *Node) Run(ctx context.Context) error {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, run := errgroup.WithContext(run)
	for _, a := range n.agentsOf {
		g.Go(func() error { return a.Run(run) })
		g.Go(func() error { return n.watchEngine(run, a.Changed()) })
	}
	n.teller.AnnounceToSelf()
	servers := n.servers()
	for _, s := range servers {
		g.Go(func() error { return n.unlessDrained(s.serve()) })
	}
	g.Go(func() error { return n.mesh.Run(run) })
	g.Go(func() error { return n.teller.Run(run) })
	g.Go(func() error { return n.agreement.group.Run(run) })
	g.Go(func() error { return n.agreement.run(run) })
	g.Go(func() error { return n.followChanges(run, n.agreement.group) })
	g.Go(func() error { return n.watch(run) })
	g.Go(func() error { return n.memory.run(run) })
	n.log.Info("agent runs", "http", n.Addr().String(), "quic", n.QUICAddr(), "engines", len(n.agentsOf))
	var cut error
	select {
	case <-ctx.Done():
		cut = n.drain()
		_ = servers[0].Close() // before the farewell: a request that comes during it would find no engine
	case <-run.Done():
	}
	if run.Err() == nil { // else a part failed, which may be all sockets of a killed process: its peers will see
		n.leave()
	}
	err := n.stop(servers)
	stop()
	return errors.Join(cut, err, g.Wait(), n.Close())
}

// leaveTimeout bounds the farewell to the mesh.
const leaveTimeout = 2 * time.Second

// leave says farewell to the mesh: its agents do not wait for this one to come back.
func (n *Node) leave() {
	if err := n.mesh.Leave(leaveTimeout); err != nil {
		n.log.Warn("peers were not told", "err", err)
	}
}

func (n *Node) stop(servers []server) error {
	n.draining.Store(true)
	n.ingress.Cut()
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Close())
	}
	n.ingress.Wait()
	return errors.Join(errs...)
}

// server is one HTTP server and its listener.
type server struct {
	*http.Server
	listener net.Listener
}

func (s server) serve() error {
	var err error
	if s.TLSConfig != nil {
		err = s.ServeTLS(s.listener, "", "")
	} else {
		err = s.Serve(s.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (n *Node) servers() []server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	base := func(h http.Handler) *http.Server {
		return &http.Server{
			Handler:           h,
			Protocols:         protocols,
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       2 * time.Minute, // longer than the keep-alive of common clients and load balancers
			MaxHeaderBytes:    128 << 10,       // above the ingress's own limit, which answers in the API's shape
			ErrorLog:          slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
		}
	}
	ingress := base(n.ingressMux())
	ingress.TLSConfig = n.config.TLS
	out := []server{{ingress, n.http}}
	if n.debug != nil {
		out = append(out, server{base(n.debugMux()), n.debug})
	}
	return out
}

// watch keeps the view's clock.
func (n *Node) watch(ctx context.Context) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			n.view.Tick(now)
			n.agreement.ready(now)
		case <-minute.C:
			n.forget()
		}
	}
}

// watchEngine passes an engine's changes on to those who tell them.
func (n *Node) watchEngine(ctx context.Context, changed <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			n.teller.Changed()
		}
	}
}

// Ready reports whether the agent can serve some model, through the mesh or its own engine, and knows the mesh and what it has
// agreed on.
func (n *Node) Ready() bool {
	return !n.draining.Load() && n.mesh.Settled() && n.agreement.ready(time.Now()) && n.UsableEngines() > 0
}

// UsableEngines returns the number of engines of the mesh that can take a request now.
func (n *Node) UsableEngines() int { return n.view.Usable(time.Now()) }

// EngineReady reports whether every engine beside this agent is up.
func (n *Node) EngineReady() bool {
	for _, a := range n.agentsOf {
		if !a.Ready() {
			return false
		}
	}
	return len(n.agentsOf) > 0
}

// peers lets forward open streams without knowing the mesh.
type peers struct {
	*mesh.Mesh
}

var _ forward.Peers = peers{}

// OpenRequest implements forward.Peers.
func (p peers) OpenRequest(ctx context.Context, agent string) (forward.Stream, error) {
	return opened(p.Open(ctx, agent, mesh.KindRequest))
}

// OpenProbe implements forward.Peers.
func (p peers) OpenProbe(ctx context.Context, agent string) (forward.Stream, error) {
	return opened(p.Open(ctx, agent, mesh.KindProbe))
}

// RTT implements forward.Peers.
func (p peers) RTT(agent string) time.Duration {
	peer, _ := p.Peer(agent)
	return peer.RTT
}

func opened(s *mesh.Stream, err error) (forward.Stream, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
