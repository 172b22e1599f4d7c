package simcluster

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
	"github.com/kvmesh/kvmesh/mesh"
)

// meshID is the mesh of every cluster.
const meshID = "sim"

// Config says what a cluster consists of.
type Config struct {
	Agents      int                          // with an engine each
	IngressOnly int                          // further agents, without engines; they are numbered after the others
	Engine      func(i int) simengine.Config // of the engine beside agent i; nil for DefaultEngine
	Agent       func(i int, c *node.Config)  // changes an agent's config before it starts; nil changes nothing
	Seed        uint64                       // of what the network draws, and tests from Rand; 0 draws one
	Idle        bool                         // agents wait for Start; their engines run

	// Delay and up to Jitter more is how long each UDP packet is under way; 0 and 0 is a network without latency.
	Delay, Jitter time.Duration
}

// DefaultEngine returns a simulated engine with short answers: what a test about the mesh needs.
func DefaultEngine(i int) simengine.Config {
	c := simengine.DefaultConfig()
	c.AnswerTokens, c.Seed = 8, uint64(i+1)
	return c
}

// Cluster is a running mesh. Its methods belong to the goroutine of its test, but for Chat and Open, which any may call.
type Cluster struct {
	t      testing.TB
	config Config
	net    *network
	links  *links
	ca     *mesh.Authority
	key    []byte
	agents []*agent
	boxes  []*engineBox
	client *client

	mu    sync.Mutex
	hosts []netip.Addr // of the agents now
	taken int          // hosts that somebody has or had
}

// Test runs f on a new cluster in fake time. The cluster's seed is printed when f fails.
func Test(t *testing.T, c Config, f func(t *testing.T, c *Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, New(t, c)) })
}

// New starts a cluster inside a synctest bubble; it ends with the test. The agents do not know each other yet: Whole
// waits until they do.
func New(t testing.TB, config Config) *Cluster {
	t.Helper()
	if config.Seed == 0 {
		config.Seed = seed(t)
	}
	if config.Engine == nil {
		config.Engine = DefaultEngine
	}
	ca, err := mesh.EphemeralAuthority(meshID)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, config: config, net: newNetwork(config.Seed), links: newLinks(), ca: ca, key: mesh.NewGossipKey()}
	c.net.udp.SetDelay(config.Delay, config.Jitter)
	c.net.udp.Block(c.links.blocked)
	c.client = newClient(c.net)
	t.Cleanup(c.close)
	for range config.Agents + config.IngressOnly {
		c.hosts = append(c.hosts, c.newHost())
	}
	for i := range config.Agents {
		c.boxes = append(c.boxes, &engineBox{})
		c.StartEngine(i)
	}
	for i := range config.Agents + config.IngressOnly {
		c.agents = append(c.agents, &agent{name: Name(i)})
		if !config.Idle {
			c.Start(i)
		}
	}
	return c
}

// seed draws a seed, unless KVMESH_TEST_SEED gives one.
func seed(t testing.TB) uint64 {
	t.Helper()
	text, ok := os.LookupEnv("KVMESH_TEST_SEED")
	if !ok {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("KVMESH_TEST_SEED: %v", err)
	}
	return seed
}

// Rand returns a source for what a test draws, the same for the same seed.
func (c *Cluster) Rand() *rand.Rand { return rand.New(rand.NewPCG(c.config.Seed, 1)) }

// settled is how long after its end a mesh still has timers: memberlist's outlive it by up to a probe, those of
// quic-go's closed connections by three PTO.
const settled = time.Minute

// close stops clients, agents and engines, in this order, and waits for them.
func (c *Cluster) close() {
	if c.t.Failed() {
		c.t.Logf("KVMESH_TEST_SEED=%d", c.config.Seed)
	}
	c.client.close()
	var wg sync.WaitGroup
	for i, a := range c.agents {
		if a.run != nil {
			wg.Go(func() { c.Stop(i) })
		}
	}
	wg.Wait()
	for i, b := range c.boxes {
		if b.run != nil {
			c.StopEngine(i)
		}
	}
	time.Sleep(settled)
}

// Name returns the name of agent i.
func Name(i int) string { return fmt.Sprintf("agent%d", i) }

// EngineID returns the ID of the engine beside agent i, as answers name it.
func EngineID(i int) string { return Name(i) + "/" + engineName }

// engineName is what each agent calls its engine.
const engineName = "engine"

// numbered returns the n-th host of the network.
func numbered(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(n / 250), byte(n%250 + 1)})
}

// host is the address of agent i and its engine.
func (c *Cluster) host(i int) netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hosts[i]
}

func (c *Cluster) addr(i, port int) string {
	return netip.AddrPortFrom(c.host(i), uint16(port)).String()
}

func (c *Cluster) newHost() netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken++
	return numbered(c.taken - 1)
}

// Move gives agent i, which must be stopped, a host that nobody had before. Its engine is started there anew.
func (c *Cluster) Move(i int) {
	c.t.Helper()
	if c.Running(i) {
		c.t.Fatalf("%s runs: it cannot move", Name(i))
	}
	engine := i < len(c.boxes) && c.boxes[i].run != nil
	if engine {
		c.StopEngine(i)
	}
	at := c.newHost()
	c.mu.Lock()
	c.hosts[i] = at
	c.mu.Unlock()
	if engine {
		c.StartEngine(i)
	}
}

// The ports of an agent's host. Those of the agent are the defaults of the design.
const (
	portHTTP   = 7080
	portQUIC   = 7081
	portGossip = 7082
	portDebug  = 7083
	portEngine = 8000
)

// logger logs to standard error where KVMESH_TEST_LOG is set.
func logger() *slog.Logger {
	if os.Getenv("KVMESH_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Await waits in fake time until ok, and returns how long it took. The test fails when that is longer than limit.
func (c *Cluster) Await(what string, limit time.Duration, ok func() bool) time.Duration {
	c.t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) >= limit {
			c.t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

// running is something that runs until it is told to stop.
type running struct {
	process *process
	cancel  context.CancelFunc
	done    chan error
}

func start(p *process, run func(context.Context) error) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{process: p, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- run(ctx) }()
	return r
}
