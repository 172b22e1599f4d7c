package simcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// undone is how long it may take until nothing is left of a request whose client has gone.
const undone = time.Second

// stage is a moment in the life of a request at which its client goes.
type stage struct {
	name    string
	engine  func(c *simengine.Config)
	agent   func(c *node.Config)
	faults  simengine.Faults // from the request on
	before  []string         // bodies of requests that come first, straight through the owner
	prepare func(c *Cluster)
	body    string
	upload  float64 // share of the body that the client sends
	deaf    bool    // it does not read the answer
	far     bool    // only for requests that come through another agent
	// reached reports whether the request is there: ingress is the agent that it came through.
	reached func(c *Cluster, ingress int) bool
	wait    time.Duration // from then on
}

// slowPrefill makes 1,000 tokens of prompt take 10 s.
func slowPrefill(c *simengine.Config) { c.PrefillRate = 100 }

func stages() []stage {
	inFlight := func(c *Cluster, i int) bool { return c.Status(i).Counters.InFlight == 1 }
	booked := func(n int) func(*Cluster, int) bool {
		return func(c *Cluster, _ int) bool { return c.Status(0).Counters.Booked[engineName] == n }
	}
	runs := func(c *Cluster, _ int) bool { return c.Engine(0).Stats().Running == 1 }
	content := func(c *Cluster, _ int) bool { return c.Engine(0).Stats().FirstTokens > 0 && runs(c, 0) }
	short, long := ChatBody("", "hello"), ChatBody("", text(1, 8000))
	return []stage{
		{name: "half of the body is here", body: long, upload: 0.5, reached: inFlight},
		{
			name: "it waits at the ingress", agent: func(c *node.Config) { c.Engines[0].MaxRunning = 1 },
			engine: func(c *simengine.Config) { c.MaxRunning, c.AnswerTokens = 1, 5000 }, before: []string{long},
			body: short, upload: 1, reached: func(c *Cluster, i int) bool { return c.Status(i).Counters.Waiting == 1 },
		},
		{
			name: "the owner has not accepted", prepare: func(c *Cluster) { c.Silence(0) }, far: true, body: short, upload: 1,
			reached: inFlight, wait: acceptBegins,
		},
		{
			name: "half of the body is at the owner", prepare: func(c *Cluster) { c.SetRate(200_000) }, far: true,
			body: ChatBody("", text(2, 1_000_000)), upload: 1,
			engine:  func(c *simengine.Config) { c.CapacityTokens, c.MaxContext = 4_000_000, 2_000_000 },
			reached: booked(1), wait: time.Second,
		},
		{
			name: "it waits at the owner", engine: slowPrefill, before: []string{ChatBody("", text(3, 60_000))},
			body: long, upload: 1, reached: booked(2), wait: time.Second,
		},
		{name: "its prompt is computed", engine: slowPrefill, body: long, upload: 1, reached: runs, wait: time.Second},
		{
			name: "the engine hangs after the header", faults: simengine.Faults{HangAfterHeaders: true}, body: short, upload: 1,
			reached: booked(1), wait: time.Second,
		},
		{
			name: "the engine hangs", faults: simengine.Faults{Hang: true}, body: short, upload: 1,
			reached: booked(1), wait: time.Second,
		},
		{
			name: "the answer comes", engine: func(c *simengine.Config) { c.AnswerTokens = 5000 }, body: short, upload: 1,
			reached: content, wait: time.Second,
		},
		{
			name: "the answer is not read", engine: func(c *simengine.Config) { c.AnswerTokens, c.Speed = 60_000, 100 }, body: short, upload: 1,
			deaf: true, reached: content, wait: 10 * time.Second,
		},
	}
}

// acceptBegins is within the time that an owner has to accept.
const acceptBegins = 20 * time.Millisecond

// victim is a request whose client goes, and its client.
type victim struct {
	client *client
	conn   net.Conn // HTTP/1.1: its connection
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// send sends a stage's request to an agent.
func (c *Cluster) victim(t *testing.T, s *stage, http2 bool, agent int) *victim {
	t.Helper()
	v := &victim{client: newClient(c.net)}
	part := s.body[:int(s.upload*float64(len(s.body)))]
	if http2 {
		v.open2(t, s, c.addr(agent, portHTTP), part)
	} else {
		v.open1(t, s, c.addr(agent, portHTTP), part)
	}
	return v
}

func (v *victim) open1(t *testing.T, s *stage, addr, part string) {
	t.Helper()
	var err error
	if v.conn, err = v.client.process.dial(t.Context(), "tcp", addr); err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: mesh\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(s.body))
	v.cancel = func() { v.conn.Close() }
	v.wg.Go(func() {
		_, _ = io.WriteString(v.conn, head+part)
		if !s.deaf {
			_, _ = io.Copy(io.Discard, v.conn)
		}
	})
}

func (v *victim) open2(t *testing.T, s *stage, addr, part string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	v.cancel = cancel
	v.client.transport.Protocols = protocolsOf["HTTP/2"]
	body, w := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = int64(len(s.body))
	req.Header.Set("Content-Type", "application/json")
	v.wg.Go(func() {
		_, _ = io.WriteString(w, part)
		if len(part) == len(s.body) {
			w.Close()
		}
	})
	v.wg.Go(func() {
		resp, err := v.client.transport.RoundTrip(req)
		if err != nil {
			return
		}
		if s.deaf {
			<-ctx.Done()
		} else {
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		resp.Body.Close()
	})
}

func (v *victim) halfClose() { v.conn.(*conn).out.endWrite() }

func (v *victim) die() { v.client.process.kill() }

// end ends what is left of the client.
func (v *victim) end() {
	v.cancel()
	v.client.close()
	v.wg.Wait()
}

// ways are how clients go, or how they are sent away.
var ways = []struct {
	name  string
	http2 bool
	leave func(c *Cluster, v *victim)
	stops bool // an agent stops, and is told to hurry
}{
	{name: "HTTP1 closes", leave: func(_ *Cluster, v *victim) { v.cancel() }},
	{name: "HTTP1 half closes", leave: func(_ *Cluster, v *victim) { v.halfClose() }},
	{name: "HTTP1 dies", leave: func(_ *Cluster, v *victim) { v.die() }},
	{name: "HTTP2 resets", http2: true, leave: func(_ *Cluster, v *victim) { v.cancel() }},
	{name: "HTTP2 dies", http2: true, leave: func(_ *Cluster, v *victim) { v.die() }},
	{name: "the owner stops", leave: func(c *Cluster, _ *victim) { c.stopNow(0) }, stops: true},
	{name: "the ingress stops", leave: func(c *Cluster, _ *victim) { c.stopNow(1) }, stops: true},
}

// stopNow stops an agent as two signals do.
func (c *Cluster) stopNow(i int) {
	c.BeginStop(i)
	time.Sleep(drainBegins)
	if err := c.hurry(i); err != nil && !errors.Is(err, node.ErrCut) {
		c.t.Errorf("%s ended with %v", Name(i), err)
	}
}

// drainBegins is between two signals.
const drainBegins = 10 * time.Millisecond

// left is what runs in the mesh, in words.
func (c *Cluster) left() string {
	s := c.Engine(0).Stats()
	out := fmt.Sprintf("engine: %d running, %d waiting", s.Running, s.Waiting)
	for i := range c.agents {
		if c.Running(i) {
			n := c.Status(i).Counters
			out += fmt.Sprintf("; %s: %d in flight, %d waiting, %d streams of peers, %d body bytes, %d booked",
				Name(i), n.InFlight, n.Waiting, n.PeerStreams, n.BodyBytes, n.Booked[engineName])
		}
	}
	return out
}

// TestNothingIsLeftOfARequestWhoseClientHasGone has clients go at every stage, in every way, from requests to an engine beside
// the ingress and beside another agent.
func TestNothingIsLeftOfARequestWhoseClientHasGone(t *testing.T) {
	for _, s := range stages() {
		for _, w := range ways {
			for ingress := range 2 {
				if s.far && ingress == 0 || w.stops && ingress == 0 || s.far && w.stops {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d hops", s.name, w.name, ingress), func(t *testing.T) {
					Test(t, s.config(), func(t *testing.T, c *Cluster) {
						c.Whole(wholeWithin)
						if s.prepare != nil {
							s.prepare(c)
						}
						f := &traffic{c: c}
						ctx, cancel := context.WithCancel(t.Context())
						for _, body := range s.before {
							f.send(ctx, 0, body)
							time.Sleep(100 * time.Millisecond)
						}
						c.Engine(0).SetFaults(s.faults)
						was := c.left()
						v := c.victim(t, &s, w.http2, ingress)
						defer v.end()
						c.Await(s.name, 20*time.Second, func() bool { return s.reached(c, ingress) })
						time.Sleep(s.wait)
						w.leave(c, v)
						if !w.stops {
							c.Await(was, undone, func() bool { return c.left() == was })
						}
						cancel()
						f.wait()
						v.end()
						c.Await("nothing is left", undone, c.idleNow)
					})
				})
			}
		}
	}
}

// idleNow reports whether nothing runs anywhere.
func (c *Cluster) idleNow() bool {
	for i := range c.agents {
		if c.Running(i) && !idle(c.Status(i).Counters) {
			return false
		}
	}
	s := c.Engine(0).Stats()
	return s.Running == 0 && s.Waiting == 0
}

func (s *stage) config() Config {
	return Config{
		Agents: 1, IngressOnly: 1, Delay: lan,
		Engine: engineWith(func(_ int, c *simengine.Config) {
			if s.engine != nil {
				s.engine(c)
			}
		}),
		Agent: func(i int, c *node.Config) {
			c.Forward.Policy.Classes = []forward.Class{{Name: "all", Continue: true, Hedge: true}} // more to undo
			if s.agent != nil && i == 0 {
				s.agent(c)
			}
		},
	}
}
