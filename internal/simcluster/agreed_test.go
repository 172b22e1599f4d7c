package simcluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
)

// voters is how many agents found a group, from the first one on; those have a data folder that outlives them.
const voters = 5

// deciding makes the first agents of c voters.
func deciding(t *testing.T, c Config) Config {
	folders := make([]string, voters)
	for i := range folders {
		folders[i] = t.TempDir()
	}
	c.Agent = func(i int, n *node.Config) {
		if i < voters {
			n.Data, n.BootstrapExpect = folders[i], voters
		}
	}
	return c
}

// decided waits until every agent that runs knows a leader.
func (c *Cluster) decided(limit time.Duration) time.Duration {
	return c.Await("every agent knows a leader", limit, func() bool { return c.each(func(s node.Status) bool { return s.Agreed.Quorum }) })
}

// each reports whether ok is true of all agents that run.
func (c *Cluster) each(ok func(node.Status) bool) bool {
	for i := range c.agents {
		if c.Running(i) && !ok(c.Status(i)) {
			return false
		}
	}
	return true
}

// apply puts a policy with one class into force by agent i, and returns its index.
func apply(t *testing.T, c *Cluster, i int, class string) uint64 {
	t.Helper()
	status, body, err := c.DebugPost(t.Context(), i, "/debug/policy?author=test", "classes: [{name: "+class+"}]")
	if err != nil || status != http.StatusOK {
		t.Fatalf("apply at %s: %d %s %v", Name(i), status, body, err)
	}
	var done node.ChangeAnswer
	if err := json.Unmarshal([]byte(body), &done); err != nil {
		t.Fatal(err)
	}
	return done.Index
}

// TestPolicyIsInForceOnAllWithin2s has 64 agents where KVMESH_LONG is set.
func TestPolicyIsInForceOnAllWithin2s(t *testing.T) {
	n := 16
	if os.Getenv("KVMESH_LONG") != "" {
		n = 64
	}
	Test(t, deciding(t, Config{Agents: n, Delay: lan, Idle: true}), func(t *testing.T, c *Cluster) {
		for i := range n - 1 {
			c.Start(i)
		}
		c.Whole(3 * wholeWithin)
		c.decided(30 * time.Second)
		var index uint64
		worst := time.Duration(0)
		for k, i := range []int{0, 1, voters, n / 2, n - 2} { // voters and others
			start := time.Now()
			index = apply(t, c, i, fmt.Sprintf("class%d", k))
			c.Await("it is in force on all", 2*time.Second-time.Since(start), func() bool {
				return c.each(func(s node.Status) bool { return s.Agreed.Policy.Index == index })
			})
			worst = max(worst, time.Since(start))
		}
		t.Logf("figure agreed_in_force_on_%d_agents %.6g s", n, worst.Seconds())
		c.Start(n - 1)
		late := c.agents[n-1].node
		took := c.Await("the late one is ready", wholeWithin, late.Ready)
		without := 0
		if p := late.Status().Agreed.Policy; p.Index != index {
			without++
			t.Errorf("the late agent is ready with %+v, want index %d", p, index)
		}
		t.Logf("figure agreed_late_agent_ready %.6g s", took.Seconds())
		t.Logf("figure agreed_late_agent_ready_without_it %d agents", without)
	})
}

// TestRequestsGoOnWithoutAQuorum kills the leader, then all voters but two, while agents that are no voters take requests.
func TestRequestsGoOnWithoutAQuorum(t *testing.T) {
	const agents, requests = voters + 3, 1000
	Test(t, deciding(t, Config{Agents: agents, Delay: lan}), func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		c.decided(30 * time.Second)
		apply(t, c, agents-1, "first")
		leader := 0
		for Name(leader) != c.Status(agents-1).Agreed.Leader {
			leader++
		}
		c.Kill(leader)
		start := time.Now()
		status, body := 0, ""
		c.Await("writes work again", 5*time.Second, func() bool {
			status, body, _ = c.DebugPost(t.Context(), agents-1, "/debug/policy", "classes: [{name: second}]")
			return status == http.StatusOK
		})
		t.Logf("figure agreed_writes_after_leader_killed %.6g s", time.Since(start).Seconds())
		dead := []int{leader}
		for i := 0; len(dead) < 3; i++ {
			if i != leader {
				dead = append(dead, i)
			}
		}
		c.killAll(dead[1:])
		time.Sleep(5 * time.Second) // their engines are gone for everybody, and no longer tried
		before, slowest := time.Duration(0), time.Duration(0)
		for range 20 {
			before = max(before, c.timed(t, voters))
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			start := time.Now()
			status, body, _ = c.DebugPost(t.Context(), agents-1, "/debug/policy", "classes: [{name: third}]")
			if took := time.Since(start); status != http.StatusServiceUnavailable || !strings.Contains(body, "no quorum") || took > 5*time.Second {
				t.Errorf("a write without quorum: %d %s after %v", status, body, took)
			}
		})
		for i := range requests {
			slowest = max(slowest, c.timed(t, voters+i%3))
		}
		wg.Wait()
		t.Logf("figure agreed_slowest_request_without_quorum %.6g s", slowest.Seconds())
		if slowest > before+100*time.Millisecond {
			t.Errorf("a request took %v without a quorum, and %v while nothing was asked", slowest, before)
		}
		for _, i := range dead {
			c.Start(i)
		}
		c.decided(30 * time.Second)
		want := apply(t, c, voters, "fourth")
		c.Await("one state", 5*time.Second, func() bool {
			return c.each(func(s node.Status) bool { return s.Agreed.Policy.Index == want && len(s.Agreed.Faults) == 0 })
		})
	})
}

// timed sends a request that must succeed to agent i, and returns how long it took.
func (c *Cluster) timed(t *testing.T, i int) time.Duration {
	t.Helper()
	start := time.Now()
	chat(t, c, i, ChatBody("", "hello"))
	return time.Since(start)
}
