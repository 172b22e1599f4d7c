package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
	"github.com/kvmesh/kvmesh/internal/spread"
	"github.com/kvmesh/kvmesh/mesh"
)

// benchAgentCmd is one agent of kvmesh bench mesh, in a process of its own. It reads a benchConfig and then benchOrders from
// its standard input, and ends with it, so that none outlives the command that started it. It writes its QUIC address, an
// empty benchMark when it knows the whole mesh, and one for each order.
type benchAgentCmd struct{}

// benchConfig is what an agent of the bench is told at its start.
type benchConfig struct {
	Certs  string   `json:"certs"` // folder
	MeshID string   `json:"mesh_id"`
	Name   string   `json:"name"`
	Join   []string `json:"join"`
	Agents int      `json:"agents"` // of the whole mesh
	Seed   uint64   `json:"seed"`
}

// benchOrder is what an agent is to do from now on.
type benchOrder struct {
	Changes float64 `json:"changes"` // of keys a second
	Sample  bool    `json:"sample"`  // look at the digests and loads of the others once a second
	Probes  float64 `json:"probes"`  // a second, of one other agent at a time
}

// benchMark is an agent's counters so far, and what it saw since the mark before.
type benchMark struct {
	Time     int64              `json:"time"` // Unix, in nanoseconds
	Counters map[string]float64 `json:"counters"`
	Samples  []benchSample      `json:"samples"`
	Versions []benchVersion     `json:"versions"`
	Probes   []float64          `json:"probes"` // round trips in seconds
	Missed   int                `json:"missed"` // probes without an answer
}

// benchSample is what an agent knew of an engine at a time.
type benchSample struct {
	Time    int64   `json:"t"`
	Agent   string  `json:"a"` // of the engine
	Version uint64  `json:"v"`
	LoadAge float64 `json:"l"` // seconds
}

// Run is an agent until the standard input ends.
func (*benchAgentCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	var c benchConfig
	if err := in.Decode(&c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	a, err := newBenchAgent(ctx, c, &tasks)
	if err != nil {
		return err
	}
	tasks.Go(func() {
		if err := a.node.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	if err := out.Encode(a.node.QUICAddr()); err != nil {
		return err
	}
	if err := a.awaitWhole(ctx, c.Agents); err != nil {
		return err
	}
	if err := out.Encode(benchMark{}); err != nil {
		return err
	}
	tasks.Go(func() { a.sample(ctx) })
	tasks.Go(func() { a.probe(ctx) })
	return a.obey(in, out)
}

// benchAgent is an agent with a simulated engine, whose residency is made up.
type benchAgent struct {
	node   *node.Node
	name   string
	source *benchSource

	mu    sync.Mutex
	order benchOrder
	wake  chan struct{} // closed and replaced by each order
	mark  benchMark     // of what is seen
}

const benchEngine = "engine"

func newBenchAgent(ctx context.Context, c benchConfig, tasks *sync.WaitGroup) (*benchAgent, error) {
	id, err := mesh.LoadIdentity(c.Certs, c.Name)
	if err != nil {
		return nil, err
	}
	keys, err := mesh.LoadGossipKeys(filepath.Join(c.Certs, mesh.GossipKeyFile))
	if err != nil {
		return nil, err
	}
	u, err := startBenchEngine(ctx, tasks)
	if err != nil {
		return nil, err
	}
	a := &benchAgent{
		name: c.Name, source: newBenchSource(engine.MakeID(c.Name, benchEngine), c.Seed, time.Now()), wake: make(chan struct{}),
	}
	n := node.DefaultConfig()
	n.Mesh.MeshID, n.Mesh.Name, n.Mesh.Identity, n.Mesh.GossipKeys, n.Mesh.Join = c.MeshID, c.Name, id, keys, c.Join
	n.Mesh.QUICBind, n.Mesh.GossipBind = "127.0.0.1:0", "127.0.0.1:0"
	n.HTTP, n.Debug, n.DrainTimeout = "127.0.0.1:0", "", time.Second
	n.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n.Engines = []node.EngineConfig{{Name: benchEngine, URL: u}}
	n.Source = func(engineAgent spread.Source) spread.Source {
		a.source.agent = engineAgent
		return a.source
	}
	a.node, err = node.New(n)
	return a, err
}

// startBenchEngine serves a simulated engine in this process: what it costs is counted as the agent's.
func startBenchEngine(ctx context.Context, tasks *sync.WaitGroup) (*url.URL, error) {
	e, err := simengine.New(simengine.DefaultConfig())
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	tasks.Go(func() { _ = e.Serve(ctx, l) }) // a failure shows: the agent holds its engine for down
	return &url.URL{Scheme: "http", Host: l.Addr().String()}, nil
}

// awaitWhole waits until this agent knows every engine and its digest.
func (a *benchAgent) awaitWhole(ctx context.Context, agents int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		known := 0
		for _, e := range a.node.Status().Engines {
			if len(e.Digests) > 0 {
				known++
			}
		}
		if known == agents && a.node.Ready() && a.node.UsableEngines() == agents {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d engines are known: %w", known, agents, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// obey follows orders until there are no more.
func (a *benchAgent) obey(in *json.Decoder, out *json.Encoder) error {
	for {
		var o benchOrder
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		m, err := a.follow(o)
		if err != nil {
			return err
		}
		if err := out.Encode(m); err != nil {
			return err
		}
	}
}

func (a *benchAgent) follow(o benchOrder) (benchMark, error) {
	now := time.Now()
	a.mu.Lock()
	if o.Changes != a.order.Changes {
		a.source.setRate(o.Changes, now)
	}
	m := a.mark
	a.order, a.mark = o, benchMark{}
	close(a.wake)
	a.wake = make(chan struct{})
	a.mu.Unlock()
	m.Time, m.Versions = now.UnixNano(), a.source.takeVersions()
	var err error
	m.Counters, err = a.counters()
	return m, err
}

// benchCounters are the counters that a mark is made of, and what they are called there.
var benchCounters = map[string]string{
	"process_cpu_seconds_total":      "cpu",
	"process_resident_memory_bytes":  "rss",
	"kvmesh_mesh_wire_bytes_total":   "wire",
	"kvmesh_mesh_wire_packets_total": "packets",
	"kvmesh_mesh_bytes_total":        "payload",
}

// counters returns what this process used and carried so far: "cpu", "wire quic in", "packets gossip out", "payload feed in", …
func (a *benchAgent) counters() (map[string]float64, error) {
	families, err := a.node.Metrics().Gather()
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, f := range families {
		what, ok := benchCounters[f.GetName()]
		if !ok {
			continue
		}
		for _, m := range f.GetMetric() {
			key := []string{what}
			for _, l := range m.GetLabel() { // in order of name: carrier or channel, direction
				key = append(key, l.GetValue())
			}
			out[strings.Join(key, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue() // it is one of the two
		}
	}
	return out, nil
}

// now returns the order that stands, and what is closed when there is another.
func (a *benchAgent) now() (benchOrder, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.order, a.wake
}

// every calls f at random moments as long as the orders say how often, and waits otherwise.
func (a *benchAgent) every(ctx context.Context, rate func(benchOrder) float64, f func()) {
	for ctx.Err() == nil {
		order, another := a.now()
		var due <-chan time.Time
		if r := rate(order); r > 0 {
			due = time.After(time.Duration((0.5 + rand.Float64()) / r * float64(time.Second)))
		}
		select {
		case <-ctx.Done():
		case <-another:
		case <-due:
			f()
		}
	}
}

// sample looks once a second, at no particular moment, at what is known of the others.
func (a *benchAgent) sample(ctx context.Context) {
	once := func(o benchOrder) float64 {
		if o.Sample {
			return 1
		}
		return 0
	}
	a.every(ctx, once, func() {
		s := a.node.Status()
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, e := range s.Engines {
			if agent := e.Engine.Agent(); agent != a.name && e.LoadAge >= 0 {
				a.mark.Samples = append(a.mark.Samples, benchSample{Time: s.Time.UnixNano(), Agent: agent, Version: e.DigestVersion, LoadAge: e.LoadAge})
			}
		}
	})
}

// benchProbeLimit is above what a decision waits for an answer, so that late ones are measured too.
const benchProbeLimit = time.Second

// probe asks one other agent at a time for its load.
func (a *benchAgent) probe(ctx context.Context) {
	var others []string
	for _, s := range a.node.Status().Agents {
		if s.Name != a.name {
			others = append(others, s.Name)
		}
	}
	if len(others) == 0 {
		return
	}
	a.every(ctx, func(o benchOrder) float64 { return o.Probes }, func() {
		ctx, cancel := context.WithTimeout(ctx, benchProbeLimit)
		defer cancel()
		begin := time.Now()
		err := a.node.Probe(ctx, others[rand.IntN(len(others))])
		took := time.Since(begin).Seconds()
		a.mu.Lock()
		defer a.mu.Unlock()
		if err != nil {
			a.mark.Missed++
			return
		}
		a.mark.Probes = append(a.mark.Probes, took)
	})
}
