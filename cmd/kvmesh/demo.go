package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
	"github.com/kvmesh/kvmesh/internal/simulate"
	"github.com/kvmesh/kvmesh/internal/workload"
	"github.com/kvmesh/kvmesh/mesh"
)

type demoCmd struct {
	JSON bool   `name:"json" help:"Print one line of JSON instead of the table."`
	Seed uint64 `help:"Seed of the traffic." default:"1"`

	Replay  time.Duration `help:"Replay so much of what kvmesh simulate plays to as many engines, on engines of its model, in place of the short traffic." placeholder:"TIME"`
	Trace   string        `help:"Recorded conversations for that, as in kvmesh simulate." placeholder:"PATH"`
	Engines int           `help:"Number of engines for that, each with its agent." default:"8"`
	SpeedUp float64       `help:"How much faster than recorded that is." default:"2"`
}

const demoModel = "sim-model"

// demoPlan is what is played on what.
type demoPlan struct {
	traffic workload.Workload
	about   string
	engines int
	engine  simengine.Config
}

// plan returns the short traffic for four engines, or the recorded one.
func (c *demoCmd) plan() (p demoPlan, err error) {
	p.engine = simengine.DefaultConfig()
	p.engine.Model = demoModel
	if c.Replay > 0 {
		return c.replay(p)
	}
	p.engines, p.engine.CapacityTokens = 4, workload.DemoKVTokens
	p.about = "recorded chat, conversations about documents, shared system prompts"
	p.traffic, err = workload.DemoWorkload(c.Seed, 1)
	return p, err
}

const (
	// demoBytesPerToken is how much made text a simulated engine takes for a token.
	demoBytesPerToken = 3.35
	// demoMaxContext leaves room for the longest recorded prompts, whose made text is a few more tokens or less.
	demoMaxContext = 200_000
)

// replay plays the arrivals of the simulator on its model of an engine.
func (c *demoCmd) replay(p demoPlan) (demoPlan, error) {
	s := simulateCmd{Workload: "conversation", Trace: c.Trace}
	config := simulate.DefaultConfig()
	config.Workload, config.Engines, config.Span, config.WarmUp, config.Seed = s.Workload, c.Engines, c.Replay, c.Replay/2, c.Seed
	if err := s.read(&config); err != nil {
		return p, err
	}
	if !(c.SpeedUp > 0 && c.SpeedUp <= 100) {
		return p, badConfig(fmt.Errorf("speed-up (%v) must be above 0 and at most 100", c.SpeedUp))
	}
	trace, err := simulate.Recorded(config)
	if err != nil {
		return p, badConfig(err)
	}
	p.engines, p.about = c.Engines, "recorded chat"
	p.engine.CapacityTokens, p.engine.BlockTokens, p.engine.Speed = simulate.CacheTokens, trace.BlockTokens, c.SpeedUp
	p.engine.MaxContext = demoMaxContext
	// Answers are as long as they were: an engine that ends them sooner decodes less beside its prefills, and its queue is shorter.
	for _, r := range trace.Requests {
		p.engine.AnswerTokens = max(p.engine.AnswerTokens, 2*r.OutputTokens)
	}
	p.engine.KVEvents.Endpoint = "tcp://127.0.0.1:0" // the simulator's owners know what engines hold
	p.traffic, err = workload.Replay("trace", &trace, workload.NewText(c.Seed), workload.ReplayConfig{
		BytesPerToken: demoBytesPerToken, Compress: c.SpeedUp, Seed: c.Seed,
	})
	return p, err
}

// demoLeg is what one way of spreading the requests gave.
type demoLeg struct {
	Requests         int     `json:"requests"`
	Errors           int     `json:"errors"`
	CachedTokenRatio float64 `json:"cached_token_ratio"`
	TTFTMean         float64 `json:"ttft_mean_s"`
	TTFTP50          float64 `json:"ttft_p50_s"`
	TTFTP95          float64 `json:"ttft_p95_s"`
	LoadCoV          float64 `json:"load_cov"` // standard deviation ÷ mean over engines of the mean requests in flight
	Seconds          float64 `json:"seconds"`
}

// Run plays the same traffic twice over simulated engines: straight to them by round robin, then through a mesh of as many
// agents.
func (c *demoCmd) Run(ctx context.Context) error {
	p, err := c.plan()
	if err != nil {
		return err
	}
	say(c.JSON, "%d requests to %d simulated engines, twice: %s.\n", p.traffic.Requests(), p.engines, p.about)
	plain, err := c.roundRobin(ctx, &p)
	if err != nil {
		return fmt.Errorf("round robin: %w", err)
	}
	routed, err := c.kvmesh(ctx, &p)
	if err != nil {
		return fmt.Errorf("kvmesh: %w", err)
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(map[string]demoLeg{"round_robin": plain, "kvmesh": routed})
	}
	printDemo(os.Stdout, plain, routed)
	return nil
}

func say(quiet bool, format string, args ...any) {
	if !quiet {
		fmt.Printf(format, args...)
	}
}

func (c *demoCmd) roundRobin(ctx context.Context, p *demoPlan) (leg demoLeg, err error) {
	engines, err := startEngines(ctx, p)
	if err != nil {
		return leg, err
	}
	defer func() { err = errors.Join(err, engines.stop()) }()
	return c.play(ctx, "round robin", p, engines, engines.urls, workload.RoundRobin(p.engines))
}

func (c *demoCmd) kvmesh(ctx context.Context, p *demoPlan) (leg demoLeg, err error) {
	engines, err := startEngines(ctx, p)
	if err != nil {
		return leg, err
	}
	defer func() { err = errors.Join(err, engines.stop()) }()
	agents, err := startAgents(ctx, engines.urls)
	if err != nil {
		return leg, err
	}
	defer func() { err = errors.Join(err, agents.stop()) }()
	say(c.JSON, "look at the mesh while it works: %s\n", agents.page)
	return c.play(ctx, "kvmesh", p, engines, agents.urls, workload.Random(p.engines, c.Seed))
}

// play sends the traffic to the targets and measures.
func (c *demoCmd) play(ctx context.Context, name string, p *demoPlan, engines *engineSet, targets []string, pick workload.Picker) (demoLeg, error) {
	show, done := progress(name, "requests")
	before, start := engines.inFlightSeconds(), time.Now()
	r, err := workload.Run(ctx, workload.Config{
		Targets: targets, Pick: pick, Workload: &p.traffic, Model: demoModel, Progress: show, Timeout: 5 * time.Minute,
	})
	seconds := time.Since(start).Seconds()
	done()
	if err != nil {
		return demoLeg{}, err
	}
	leg := demoLeg{
		Requests: r.Requests, CachedTokenRatio: r.CachedTokenRatio, Seconds: r.Seconds, Errors: r.Skipped,
		TTFTMean: r.TTFT.Mean, TTFTP50: r.TTFT.P50, TTFTP95: r.TTFT.P95,
	}
	for kind, n := range r.Errors {
		fmt.Fprintf(os.Stderr, "%s: %d requests failed: %s\n", name, n, kind)
		leg.Errors += n
	}
	load := engines.inFlightSeconds()
	for i := range load {
		load[i] = (load[i] - before[i]) / seconds
	}
	leg.LoadCoV = workload.CoV(load)
	return leg, nil
}

// progress returns what shows how far a leg is: a bar on a terminal, a line now and then elsewhere.
func progress(name, unit string) (show func(done, total int), end func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		var last time.Time
		return func(done, total int) {
			if time.Since(last) > 5*time.Second || done == total {
				last = time.Now()
				fmt.Fprintf(os.Stderr, "%s: %d of %d %s\n", name, done, total, unit)
			}
		}, func() {}
	}
	bar := progressbar.NewOptions(-1, progressbar.OptionSetWriter(os.Stderr), progressbar.OptionSetDescription(fmt.Sprintf("%-12s", name)),
		progressbar.OptionShowCount(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetPredictTime(false))
	return func(done, total int) {
		bar.ChangeMax(total)
		_ = bar.Set(done)
	}, func() { _ = bar.Finish(); fmt.Fprintln(os.Stderr) }
}

func printDemo(out io.Writer, plain, routed demoLeg) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(what, format string, value func(demoLeg) any) {
		fmt.Fprintf(w, "%s\t"+format+"\t"+format+"\t\n", what, value(plain), value(routed))
	}
	fmt.Fprintln(w, "\n\tround robin\tkvmesh\t")
	row("requests", "%d", func(l demoLeg) any { return l.Requests })
	row("errors", "%d", func(l demoLeg) any { return l.Errors })
	row("prompt tokens from cache", "%.1f %%", func(l demoLeg) any { return 100 * l.CachedTokenRatio })
	row("TTFT mean", "%.3f s", func(l demoLeg) any { return l.TTFTMean })
	row("TTFT p50", "%.3f s", func(l demoLeg) any { return l.TTFTP50 })
	row("TTFT p95", "%.3f s", func(l demoLeg) any { return l.TTFTP95 })
	row("load spread (CoV)", "%.3f", func(l demoLeg) any { return l.LoadCoV })
	row("seconds", "%.1f", func(l demoLeg) any { return l.Seconds })
	w.Flush()
	fmt.Fprintf(out, "\nkvmesh served %.1f × the prompt tokens from cache, with %.2f × the mean TTFT of round robin.\n",
		routed.CachedTokenRatio/plain.CachedTokenRatio, routed.TTFTMean/plain.TTFTMean)
}

// group is what was started together and stops together.
type group struct {
	urls   []string
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func (g *group) run(f func() error) {
	g.wg.Go(func() {
		err := f()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.errs = append(g.errs, err)
	})
}

func (g *group) stop() error {
	g.cancel()
	g.wg.Wait()
	return errors.Join(g.errs...)
}

// engineSet is simulated engines on loopback.
type engineSet struct {
	group
	engines []*simengine.Engine
}

func startEngines(ctx context.Context, p *demoPlan) (*engineSet, error) {
	s := &engineSet{}
	ctx, s.cancel = context.WithCancel(ctx)
	for i := range p.engines {
		c := p.engine
		c.Seed = uint64(i + 1)
		e, err := simengine.New(c)
		if err != nil {
			return nil, errors.Join(err, s.stop())
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, errors.Join(err, s.stop())
		}
		s.engines, s.urls = append(s.engines, e), append(s.urls, "http://"+l.Addr().String())
		s.run(func() error { return e.Serve(ctx, l) })
	}
	return s, nil
}

func (s *engineSet) inFlightSeconds() []float64 {
	var out []float64
	for _, e := range s.engines {
		out = append(out, e.Stats().InFlightSeconds)
	}
	return out
}

// agentSet is a mesh of agents on loopback, one beside each engine.
type agentSet struct {
	group
	nodes []*node.Node
	page  string // of the first agent
}

func startAgents(ctx context.Context, engines []string) (*agentSet, error) {
	s := &agentSet{}
	ctx, s.cancel = context.WithCancel(ctx)
	ca, err := mesh.EphemeralAuthority("demo")
	if err != nil {
		return nil, err
	}
	key := mesh.NewGossipKey()
	for i, engine := range engines {
		n, err := demoAgent(ca, key, fmt.Sprintf("agent%d", i), engine, s.nodes)
		if err != nil {
			return nil, errors.Join(err, s.stop())
		}
		s.nodes, s.urls = append(s.nodes, n), append(s.urls, "http://"+n.Addr().String())
		s.run(func() error { return n.Run(ctx) })
	}
	s.page = fmt.Sprintf("http://%s/debug/", s.nodes[0].DebugAddr())
	if err := s.awaitWhole(ctx, 15*time.Second); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func demoAgent(ca *mesh.Authority, key []byte, name, engine string, others []*node.Node) (*node.Node, error) {
	id, err := ca.Issue(name, 30*24*time.Hour)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(engine)
	if err != nil {
		return nil, err
	}
	c := node.DefaultConfig()
	c.Mesh = mesh.LocalConfig()
	c.Mesh.MeshID, c.Mesh.Name, c.Mesh.Identity, c.Mesh.GossipKeys = ca.Mesh(), name, id, [][]byte{key}
	for _, o := range others {
		c.Mesh.Join = append(c.Mesh.Join, o.QUICAddr())
	}
	c.HTTP, c.Debug, c.DrainTimeout = "127.0.0.1:0", "127.0.0.1:0", time.Second
	c.Engines = []node.EngineConfig{{Name: "engine", URL: u}}
	return node.New(c)
}

// awaitWhole waits until every agent knows every engine.
func (s *agentSet) awaitWhole(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		whole := true
		for _, n := range s.nodes {
			whole = whole && n.Ready() && n.UsableEngines() == len(s.nodes)
		}
		if whole {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agents did not find each other: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
