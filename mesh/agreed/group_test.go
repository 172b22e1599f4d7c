package agreed

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestAgentsFoundAGroupAndDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		c.propose("v1", "1", "a")
		c.await(2*time.Second, "policy everywhere", func() bool { return c.everywhere("a") })
	})
}

func TestWritesWorkAgainWithin5sOfTheLeadersDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(5)
		c.propose("v1", "1", "a")
		dead := c.leader()
		begin := time.Now()
		c.killAgent(dead)
		ask := c.running()[0]
		_, err := c.group(ask).Propose(t.Context(), *policy("2", "b"))
		if d := time.Since(begin); err != nil || d > 5*time.Second {
			t.Errorf("a write after the leader's death took %v: %v", d, err)
		}
		c.start(dead)
		c.await(5*time.Second, "policy everywhere", func() bool { return c.everywhere("b") })
	})
}

func TestWithoutAMajorityWritesSaySoAndStatesStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(5)
		c.propose("v2", "1", "a")
		c.await(2*time.Second, "policy everywhere", func() bool { return c.everywhere("a") })
		for _, name := range names("v", 3) {
			c.killAgent(name)
		}
		begin := time.Now()
		_, err := c.group("v4").Propose(t.Context(), *policy("2", "b"))
		if d := time.Since(begin); !errors.Is(err, ErrNoQuorum) || d > 5*time.Second {
			t.Errorf("a write without a quorum took %v and gave %v", d, err)
		}
		c.killAgent("v4")
		if g := c.start("v4"); g.State().Policy.Text != "a" {
			t.Error("an agent that starts without a quorum has not the last state")
		}
		for _, name := range names("v", 3) {
			c.start(name)
		}
		c.await(10*time.Second, "one state", func() bool {
			_, err := c.group("v5").Propose(t.Context(), *policy("3", "c"))
			return err == nil && c.everywhere("c")
		})
	})
}

func TestALeaderInTheMinorityAcknowledgesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(5)
		c.propose("v1", "1", "a")
		minority := []string{c.leader()}
		for _, name := range c.running() {
			if name != minority[0] && len(minority) < 2 {
				minority = append(minority, name)
			}
		}
		c.partition(minority)
		acknowledged := 0
		for i, name := range minority {
			r, err := c.group(name).Propose(t.Context(), *policy(fmt.Sprint("lost", i), "lost"))
			if err == nil {
				acknowledged++
			}
			if !errors.Is(err, ErrNoQuorum) {
				t.Errorf("%s acknowledged %v, %v in the minority", name, r, err)
			}
		}
		t.Logf("figure minority_acknowledged %d writes of %d", acknowledged, len(minority))
		for _, name := range c.running() {
			if name != minority[0] && name != minority[1] {
				c.propose(name, "2", "b")
				break
			}
		}
		c.partition()
		c.await(10*time.Second, "one history", func() bool { return c.everywhere("b") })
		histories := map[mark]bool{}
		for _, name := range c.running() {
			histories[c.group(name).current.Load().mark] = true
		}
		t.Logf("figure minority_healed_histories %d on %d agents", len(histories), len(c.running()))
		if len(histories) > 1 {
			t.Errorf("states after healing: %v", histories)
		}
		if r := c.propose(minority[0], "2", "b"); !r.Repeat {
			t.Errorf("the same command again gave %+v", r)
		}
	})
}

func Test64AgentsHaveTheStateWithin2s(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		for _, name := range names("w", 61) {
			c.add(name, -1)
		}
		time.Sleep(time.Second)
		c.propose("w61", "1", "a")
		took := c.await(2*time.Second, "policy everywhere", func() bool { return c.everywhere("a") })
		t.Logf("64 agents have the state %v after the write", took)
		late := c.add("late", -1)
		took = c.await(2*time.Second, "state at a late agent", func() bool { return late.State().Policy.Text == "a" })
		t.Logf("a late agent has it after %v", took)
	})
}
