package simcluster

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/mesh"
)

// agent is one agent's place, through all its lives.
type agent struct {
	name    string
	node    *node.Node
	run     *running             // nil while it is stopped
	changes []func(*node.Config) // of the config, from the next life on
}

// Start starts agent i: a new process with the same name and addresses.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	a := c.agents[i]
	if a.run != nil {
		c.t.Fatalf("%s runs already", a.name)
	}
	config, p, transports := c.nodeConfig(i, c.host(i))
	a.node, a.run = c.startNode(config, p, transports)
}

func (c *Cluster) startNode(config node.Config, p *process, transports []*http.Transport) (*node.Node, *running) {
	c.t.Helper()
	n, err := node.New(config)
	if err != nil {
		c.t.Fatal(err)
	}
	return n, start(p, func(ctx context.Context) error {
		defer func() {
			for _, t := range transports {
				t.CloseIdleConnections()
			}
		}()
		return n.Run(ctx)
	})
}

// Change changes the config of agent i from its next life on, after Config.Agent.
func (c *Cluster) Change(i int, change func(*node.Config)) {
	c.agents[i].changes = append(c.agents[i].changes, change)
}

// Twin starts an agent with the name and a certificate of agent i on a host of its own, without an engine. It ends with
// the test.
func (c *Cluster) Twin(i int) *node.Node {
	c.t.Helper()
	config, p, transports := c.nodeConfig(i, c.newHost())
	config.Engines = nil
	n, run := c.startNode(config, p, transports)
	c.t.Cleanup(func() {
		run.cancel()
		if err := <-run.done; err != nil {
			c.t.Errorf("twin of %s: %v", Name(i), err)
		}
	})
	return n
}

// nodeConfig is the config of agent i as a new process on a host, and the transports in it.
func (c *Cluster) nodeConfig(i int, at netip.Addr) (node.Config, *process, []*http.Transport) {
	c.t.Helper()
	p := c.net.process(at)
	addr := func(port uint16) string { return netip.AddrPortFrom(at, port).String() }
	id, err := c.ca.Issue(Name(i), 30*24*time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	requests, polls := forward.NewEngineTransport(), &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: 1, DisableCompression: true}
	requests.DialContext = p.dial
	n := node.DefaultConfig()
	n.Mesh = mesh.LocalConfig()
	n.Mesh.MeshID, n.Mesh.Name, n.Mesh.Identity, n.Mesh.GossipKeys = meshID, Name(i), id, [][]byte{c.key}
	n.Mesh.QUICBind, n.Mesh.GossipBind = addr(portQUIC), addr(portGossip)
	n.Mesh.Join, n.Mesh.ListenPacket = c.seeds(), p.listenPacket
	n.HTTP, n.Debug, n.DebugToken = addr(portHTTP), addr(portDebug), debugToken
	n.Listen, n.Transport, n.PollEngines = p.listen, requests, polls
	n.Logger, n.DrainTimeout, n.DrainGrace = logger(), 5*time.Second, time.Second
	if i < c.config.Agents {
		n.Engines = []node.EngineConfig{{Name: engineName, URL: &url.URL{Scheme: "http", Host: addr(portEngine)}}}
	}
	if c.config.Agent != nil {
		c.config.Agent(i, &n)
	}
	for _, change := range c.agents[i].changes {
		change(&n)
	}
	return n, p, []*http.Transport{requests, polls}
}

// debugToken is what the debug servers ask for: they are not on loopback.
const debugToken = "simcluster"

// seeds are the hosts on which the first three agents began, the same list for each: an agent may name itself.
func (c *Cluster) seeds() []string {
	var seeds []string
	for i := range min(3, c.config.Agents+c.config.IngressOnly) {
		seeds = append(seeds, netip.AddrPortFrom(numbered(i), portQUIC).String())
	}
	return seeds
}

// Stop stops agent i in order, as SIGTERM does, and waits until it has ended.
func (c *Cluster) Stop(i int) {
	c.t.Helper()
	a := c.agents[i]
	a.run.cancel()
	if err := <-a.run.done; err != nil {
		c.t.Errorf("%s: %v", a.name, err)
	}
	a.run = nil
}

// BeginStop makes agent i stop in order and does not wait. Ended, or the end of the test, waits.
func (c *Cluster) BeginStop(i int) { c.agents[i].run.cancel() }

// Ended waits until agent i, told to stop, has ended.
func (c *Cluster) Ended(i int) { c.t.Helper(); c.Stop(i) }

// Kill ends agent i as kill -9 does: nobody hears of it, its connections are reset, its peers get no answer.
func (c *Cluster) Kill(i int) {
	a := c.agents[i]
	a.run.process.kill()
	if err := <-a.run.done; err != nil {
		logger().Debug("killed agent ended", "agent", a.name, "err", err) // its sockets were taken away
	}
	a.run.cancel()
	a.run = nil
}

// killAll kills several agents at one moment.
func (c *Cluster) killAll(agents []int) {
	var wg sync.WaitGroup
	for _, i := range agents {
		wg.Go(func() { c.Kill(i) })
	}
	wg.Wait()
}

// Status returns the mesh as agent i sees it.
func (c *Cluster) Status(i int) node.Status { return c.agents[i].node.Status() }

// Running reports whether agent i runs.
func (c *Cluster) Running(i int) bool { return c.agents[i].run != nil }

// StateOf returns what agent i says of agent j: own, fresh, suspect, unreachable, dead, left, or "" when it does not
// know it.
func (c *Cluster) StateOf(i, j int) string {
	for _, a := range c.Status(i).Agents {
		if a.Name == Name(j) {
			return a.State
		}
	}
	return ""
}

// EngineOf returns what agent i says of the engine beside agent j.
func (c *Cluster) EngineOf(i, j int) (node.EngineStatus, bool) {
	for _, e := range c.Status(i).Engines {
		if string(e.Engine) == EngineID(j) {
			return e, true
		}
	}
	return node.EngineStatus{}, false
}

// Whole waits until every agent that runs is ready and can use every engine that runs beside one that runs.
func (c *Cluster) Whole(limit time.Duration) time.Duration {
	c.t.Helper()
	return c.Await("every agent can use every engine", limit, func() bool {
		want := 0
		for i, b := range c.boxes {
			if b.run != nil && c.Running(i) {
				want++
			}
		}
		for i, a := range c.agents {
			if c.Running(i) && (!a.node.Ready() || a.node.UsableEngines() != want) {
				return false
			}
		}
		return true
	})
}

// Quiet waits until every counter of every agent that runs is zero.
func (c *Cluster) Quiet(limit time.Duration) {
	c.t.Helper()
	c.Await("every counter is zero", limit, func() bool {
		for i := range c.agents {
			if c.Running(i) && !idle(c.Status(i).Counters) {
				return false
			}
		}
		return true
	})
}

func idle(n node.Counters) bool {
	booked := 0
	for _, b := range n.Booked {
		booked += b
	}
	return n.InFlight == 0 && n.Waiting == 0 && n.PeerStreams == 0 && n.BodyBytes == 0 && booked == 0
}
