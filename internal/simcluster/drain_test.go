package simcluster

import (
	"bytes"
	"errors"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// epic is an engine whose answers take 7 to 20 minutes.
var epic = engineWith(func(_ int, c *simengine.Config) { c.AnswerTokens, c.Speed = 800, 0.02 })

// patient makes agents wait for streams for half an hour when they stop.
func patient(_ int, c *node.Config) { c.DrainTimeout = 30 * time.Minute }

// hurry has agent i, which stops already, end at once, and returns what its run returned.
func (c *Cluster) hurry(i int) error {
	a := c.agents[i]
	a.node.Hurry()
	err := <-a.run.done
	a.run = nil
	return err
}

// begin sends requests through an agent until n of them have content of the engine beside agent j.
func (f *traffic) begin(t *testing.T, n, agent, j int) {
	t.Helper()
	for seed := range uint64(200) {
		f.send(t.Context(), agent, ChatBody("", text(seed, 300)))
		time.Sleep(50 * time.Millisecond)
		if f.c.Status(j).Counters.Booked[engineName] >= n {
			return
		}
	}
	t.Fatalf("never %d requests of %s on the engine beside %s", n, Name(agent), Name(j))
}

// TestDrainWaitsForStreamsOf20Minutes stops an agent that serves streams of its own clients and of a peer's.
func TestDrainWaitsForStreamsOf20Minutes(t *testing.T) {
	Test(t, Config{Agents: 2, Delay: lan, Engine: epic, Agent: patient}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		f.begin(t, 1, 1, 1)
		f.begin(t, 2, 0, 1)
		begun := time.Now()
		c.BeginStop(1)
		time.Sleep(5 * time.Minute)
		late := &traffic{c: c}
		for seed := range uint64(4) {
			late.send(t.Context(), 0, ChatBody("", text(1000+seed, 300)))
		}
		if n := c.Status(1).Counters; n.InFlight == 0 || n.PeerStreams == 0 {
			t.Errorf("after 5 minutes of a drain: %+v", n)
		}
		c.Ended(1)
		took := time.Since(begun)
		whole(t, f.wait())
		if took < 6*time.Minute || took > 30*time.Minute {
			t.Errorf("drained in %v", took)
		}
		for _, x := range late.wait() {
			if fault := x.fault(); fault != "" || x.answer.Engine() != EngineID(0) {
				t.Errorf("sent while the other drained: by %q, %s", x.answer.Engine(), fault)
			}
		}
		t.Logf("drained in %v", took)
	})
}

// TestCordonLetsStreamsOf20MinutesEnd is what kvmesh drain does and looks at.
func TestCordonLetsStreamsOf20MinutesEnd(t *testing.T) {
	Test(t, Config{Agents: 2, Delay: lan, Engine: epic, Agent: patient}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		f.begin(t, 2, 0, 1)
		status, body, err := c.DebugPost(t.Context(), 1, "/debug/cordon?target="+Name(1), "")
		if err != nil || status != http.StatusOK {
			t.Fatalf("cordon: %d %s %v", status, body, err)
		}
		took := c.Await("nothing runs there", 30*time.Minute, func() bool {
			time.Sleep(time.Second)
			e, _ := c.EngineOf(0, 1)
			return e.State == "draining" && e.InFlight == 0
		})
		if took < 6*time.Minute {
			t.Errorf("drained in %v: streams were cut", took)
		}
		whole(t, f.wait())
	})
}

func TestDrainDeadlineTellsClientsAndPeers(t *testing.T) {
	config := Config{Agents: 2, Delay: lan, Engine: epic}
	Test(t, config, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		f.begin(t, 2, 1, 1)
		f.begin(t, 4, 0, 1)
		time.Sleep(20 * time.Second) // most have begun
		stop := time.Now()
		c.Stop(1)
		if took := time.Since(stop); took > 9*time.Second {
			t.Errorf("with a deadline of 5 s it took %v", took)
		}
		cut := 0
		for _, x := range f.wait() {
			fault := x.fault()
			if fault == "" {
				continue
			}
			if cut++; x.err != nil || !bytes.Contains(x.answer.Body, []byte(`"agent_stopped"`)) {
				t.Errorf("through %s: %s", Name(x.agent), fault)
			}
			if early := x.ended.Sub(stop); early < 5*time.Second || early > 6*time.Second {
				t.Errorf("cut after %v", early)
			}
		}
		if cut == 0 {
			t.Error("nothing was cut")
		}
		c.Quiet(time.Second)
	})
}

func TestSecondSignalCutsAtOnce(t *testing.T) {
	Test(t, Config{Agents: 2, Delay: lan, Engine: epic, Agent: patient}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		f.begin(t, 2, 1, 1)
		time.Sleep(20 * time.Second)
		c.BeginStop(1)
		time.Sleep(time.Minute)
		second := time.Now()
		if err := c.hurry(1); !errors.Is(err, node.ErrCut) {
			t.Errorf("ended with %v, want %v", err, node.ErrCut)
		}
		if took := time.Since(second); took > 4*time.Second {
			t.Errorf("ended after %v", took)
		}
		events := 0
		for _, x := range f.wait() {
			if x.answer != nil && bytes.Contains(x.answer.Body, []byte(`"agent_stopped"`)) {
				events++
			} else if fault := x.fault(); fault != "" {
				t.Errorf("through %s: %s", Name(x.agent), fault)
			}
		}
		if events == 0 {
			t.Error("no client got an error event")
		}
		c.Quiet(time.Second)
	})
}

func TestSecondSignalOfAnIdleAgentIsNoFailure(t *testing.T) {
	Test(t, Config{Agents: 2, Delay: lan, Agent: patient}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		c.BeginStop(1)
		time.Sleep(10 * time.Millisecond)
		second := time.Now()
		if err := c.hurry(1); err != nil || time.Since(second) > 4*time.Second {
			t.Errorf("%v after %v", err, time.Since(second))
		}
	})
}

// TestAgentWithTheOnlyEngineServesUntilItsPortCloses has a balancer's clients, who hear of the drain a second late.
func TestAgentWithTheOnlyEngineServesUntilItsPortCloses(t *testing.T) {
	grace := 2 * time.Second
	config := Config{Agents: 1, IngressOnly: 1, Delay: lan, Agent: func(_ int, c *node.Config) { c.DrainGrace = grace }}
	Test(t, config, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		c.BeginStop(0)
		f.every(t, 50*time.Millisecond, time.Second, 500, 0, 1)
		whole(t, f.wait())
		time.Sleep(grace - time.Second + 100*time.Millisecond)
		if a, err := c.Chat(t.Context(), 1, ChatBody("", "hello")); err != nil || a.Status != http.StatusServiceUnavailable {
			t.Errorf("through the other agent, after the port has closed: %v %v", a, err)
		}
		c.Ended(0)
	})
}

// TestKeepAliveClientsOfAStoppingAgentSeeOnlyARefusedConnection has clients that send the next request as soon as they have
// an answer, or up to some seconds later, each on one connection, to an agent that stops under them.
func TestKeepAliveClientsOfAStoppingAgentSeeOnlyARefusedConnection(t *testing.T) {
	for name, protocols := range protocolsOf {
		t.Run(name, func(t *testing.T) {
			Test(t, Config{Agents: 2, Delay: lan, Engine: talkative}, func(t *testing.T, c *Cluster) {
				c.Whole(wholeWithin)
				c.client.transport.Protocols = protocols
				f := &traffic{c: c}
				answers := make([]int, 60)
				for k := range answers {
					f.wg.Go(func() {
						for n := uint64(0); ; n++ {
							a, err := c.Chat(t.Context(), 1, ChatBody("", text(n*100+uint64(k), 500+20*k)))
							if errors.Is(err, syscall.ECONNREFUSED) {
								return
							}
							if err != nil || faultOf(a) != "" {
								t.Errorf("client %d, answer %d: %v %v", k, n, a, err)
								return
							}
							answers[k]++
							time.Sleep(time.Duration(k%10) * 250 * time.Millisecond)
						}
					})
				}
				time.Sleep(5 * time.Second)
				c.Stop(1)
				f.wg.Wait()
				for k, n := range answers {
					if n < 2 {
						t.Errorf("client %d had %d answers", k, n)
					}
				}
			})
		})
	}
}

// protocolsOf are what clients speak.
var protocolsOf = map[string]*http.Protocols{
	"HTTP/1.1": func() *http.Protocols { p := new(http.Protocols); p.SetHTTP1(true); return p }(),
	"HTTP/2":   func() *http.Protocols { p := new(http.Protocols); p.SetUnencryptedHTTP2(true); return p }(),
}

// TestQueuedRequestsOfAStoppingAgentAreServedElsewhere fills the mesh and stops an agent in whose queue requests wait.
func TestQueuedRequestsOfAStoppingAgentAreServedElsewhere(t *testing.T) {
	config := Config{Agents: 2, Delay: lan, Engine: small, Agent: atMost(2, func(*node.Config) {})}
	Test(t, config, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		for n := range 20 {
			f.send(t.Context(), 1, ChatBody("", text(uint64(n), 500)))
		}
		time.Sleep(50 * time.Millisecond)
		if c.Status(1).Counters.Waiting == 0 {
			t.Fatal("nobody waits")
		}
		c.Stop(1)
		whole(t, f.wait())
	})
}

// TestDrainDeadlineHandsStreamsOfPeersOver has a policy that continues streams: what is cut at the owner goes on elsewhere.
func TestDrainDeadlineHandsStreamsOfPeersOver(t *testing.T) {
	goesOn := func(_ int, c *node.Config) { c.Forward.Policy.Classes = []forward.Class{{Name: "all", Continue: true}} }
	Test(t, Config{Agents: 3, Delay: lan, Engine: epic, Agent: goesOn}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		f.begin(t, 2, 0, 1)
		time.Sleep(20 * time.Second)
		c.Stop(1)
		whole(t, f.wait())
		events, err := c.Decisions(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		handed := 0
		for _, e := range events {
			if len(e.Attempts) > 1 && e.Attempts[0].Result == "agent_stopped" && e.Outcome == "ok" {
				handed++
			}
		}
		if handed == 0 {
			t.Errorf("no stream was handed over: %+v", events)
		}
		c.Quiet(time.Second)
	})
}

// TestNewAgentBesideTheOldTakesOverItsEngine upgrades one host without a pause: a new agent with another name and other ports
// speaks to the same engine, then the old one is stopped under load.
func TestNewAgentBesideTheOldTakesOverItsEngine(t *testing.T) {
	const old, ingress, next = 0, 1, 2
	var engine []node.EngineConfig
	config := Config{Agents: 1, IngressOnly: 2, Idle: true, Delay: lan, Engine: talkative, Agent: func(i int, c *node.Config) {
		c.DrainTimeout = time.Minute
		switch i {
		case old:
			engine = c.Engines
		case next:
			c.Engines = engine
		}
	}}
	Test(t, config, func(t *testing.T, c *Cluster) {
		c.Start(old)
		c.Start(ingress)
		c.Await("the old one is usable", wholeWithin, func() bool { return c.agents[ingress].node.UsableEngines() == 1 })
		f := &traffic{c: c}
		f.every(t, 50*time.Millisecond, time.Second, 500, ingress, old)
		c.Start(next)
		f.every(t, 50*time.Millisecond, 10*time.Second, 500, ingress, old)
		c.BeginStop(old)
		f.every(t, 50*time.Millisecond, 500*time.Millisecond, 500, ingress, old, next)
		f.every(t, 50*time.Millisecond, 5*time.Second, 500, ingress, next)
		c.Ended(old)
		whole(t, f.wait())
		if n := c.agents[ingress].node.UsableEngines(); n != 1 {
			t.Errorf("%d usable engines", n)
		}
		c.Quiet(time.Second)
	})
}
