package simcluster

import (
	"bytes"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

func TestFaultOfOneEngineBeforeContentReachesNoClient(t *testing.T) {
	for name, fault := range map[string]simengine.Faults{
		"resets connections":   {Refuse: true},
		"answers 503":          {Unavailable: true},
		"answers 429":          {TooMany: true},
		"answers 502 at times": {ErrorRate: 0.5, ErrorStatus: http.StatusBadGateway},
		"answers 504":          {ErrorRate: 1, ErrorStatus: http.StatusGatewayTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
				c.Whole(wholeWithin)
				c.Engine(1).SetFaults(fault)
				f := &traffic{c: c}
				f.every(t, 50*time.Millisecond, 1500*time.Millisecond, 1000, 0, 1, 2)
				whole(t, f.wait())
				if c.Engine(1).Stats().FaultsInduced == 0 {
					t.Error("the fault hit nobody")
				}
				c.Engine(1).SetFaults(simengine.Faults{})
				time.Sleep(6 * time.Second) // it was ejected for its failures, for 5 s
				used(t, c, 1)
				c.Quiet(time.Second)
			})
		})
	}
}

func TestEngineThatDiesInMidStreamIsToldInTheStream(t *testing.T) {
	Test(t, Config{Agents: 2, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		for i := range 2 {
			c.Engine(i).SetFaults(simengine.Faults{DieAfterTokens: 2})
		}
		for n := range 6 {
			a, err := c.Chat(t.Context(), n%2, ChatBody("", text(uint64(n), 500)))
			if err != nil {
				t.Fatal(err)
			}
			if a.Status != http.StatusOK || !bytes.Contains(a.Body, []byte(`{"error":`)) {
				t.Errorf("%d, and the stream ends without saying why: %s", a.Status, a.Body)
			}
		}
		c.Quiet(time.Second)
	})
}

func TestHangingEngineIsLeftAlone(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		c.Engine(2).SetFaults(simengine.Faults{Hang: true})
		c.Await("agent2 says that its engine is down", 15*time.Second, func() bool {
			e, _ := c.EngineOf(0, 2)
			return e.State == "down"
		})
		f := &traffic{c: c}
		f.every(t, 50*time.Millisecond, 2*time.Second, 1000, 0, 1, 2)
		whole(t, f.wait())
		c.Engine(2).SetFaults(simengine.Faults{})
		c.Whole(10 * time.Second)
		used(t, c, 2)
	})
}

// small is an engine that runs two requests at a time.
var small = engineWith(func(_ int, c *simengine.Config) { c.MaxRunning = 2 })

// atMost makes agents know that their engines run n requests at a time.
func atMost(n int, change func(*node.Config)) func(int, *node.Config) {
	return func(_ int, c *node.Config) {
		for i := range c.Engines {
			c.Engines[i].MaxRunning = n
		}
		change(c)
	}
}

func TestRequestsWaitWhileEveryEngineIsFull(t *testing.T) {
	config := Config{Agents: 2, Delay: lan, Engine: small, Agent: atMost(2, func(*node.Config) {})}
	Test(t, config, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		for n := range 40 {
			f.send(t.Context(), n%2, ChatBody("", text(uint64(n), 500)))
		}
		time.Sleep(50 * time.Millisecond)
		if waiting := c.Status(0).Counters.Waiting + c.Status(1).Counters.Waiting; waiting == 0 {
			t.Error("nobody waits")
		}
		for i := range 2 {
			if s := c.Engine(i).Stats(); s.Waiting > 0 {
				t.Errorf("engine %d has %d waiting requests: they belong to the ingress", i, s.Waiting)
			}
		}
		whole(t, f.wait())
		c.Quiet(time.Second)
	})
}

func TestTooManyWaitingRequestsAreToldToComeBack(t *testing.T) {
	config := Config{Agents: 2, Delay: lan, Engine: small, Agent: atMost(2, func(c *node.Config) { c.Forward.QueueLimit = 3 })}
	Test(t, config, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		for n := range 40 {
			f.send(t.Context(), n%2, ChatBody("", text(uint64(n), 500)))
		}
		served, refused := 0, 0
		for _, x := range f.wait() {
			switch {
			case x.err != nil:
				t.Error(x.err)
			case x.answer.Status == http.StatusTooManyRequests:
				refused++
				if s, err := strconv.Atoi(x.answer.Header.Get("Retry-After")); err != nil || s < 1 || s > 30 {
					t.Errorf("Retry-After %q", x.answer.Header.Get("Retry-After"))
				}
			case x.fault() == "":
				served++
			default:
				t.Error(x.fault())
			}
		}
		if served < 4+2*3 || refused == 0 {
			t.Errorf("%d served, %d refused", served, refused)
		}
		c.Quiet(time.Second)
	})
}

func TestLossyNetworkCostsTimeButNoErrors(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: time.Millisecond, Jitter: time.Millisecond}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		c.SetLoss(0.05)
		f := &traffic{c: c}
		f.every(t, 50*time.Millisecond, 5*time.Second, 2000, 0, 1, 2)
		whole(t, f.wait())
		c.Quiet(2 * time.Second)
	})
}

func TestFlappingEngineLeavesCountersAtZero(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		rng, f := c.Rand(), &traffic{c: c}
		for n := range 12 {
			c.StopEngine(1)
			f.every(t, 10*time.Millisecond, time.Duration(rng.IntN(300)+10)*time.Millisecond, 500, 0, 1, 2)
			c.StartEngine(1)
			f.every(t, 10*time.Millisecond, time.Duration(rng.IntN(300)+10)*time.Millisecond, 500, 0, 1, 2)
			for i := range 3 {
				if k := c.Status(i).Counters; k.InFlight < 0 || k.PeerStreams < 0 || k.Booked[engineName] < 0 {
					t.Fatalf("flap %d: counters of %s: %+v", n, Name(i), k)
				}
			}
		}
		for _, x := range f.wait() {
			if fault := x.fault(); fault != "" && x.began.IsZero() {
				t.Errorf("failed before content: %s", fault)
			}
		}
		c.Quiet(2 * time.Second)
	})
}
