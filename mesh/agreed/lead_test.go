package agreed

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// voters returns the names of those that vote, as agent knows them.
func (c *cluster) voters(agent string) string {
	var all []string
	for _, m := range c.group(agent).Members() {
		if m.Voter {
			all = append(all, m.Agent)
		}
	}
	return strings.Join(all, " ")
}

func (c *cluster) follower() string {
	for _, name := range c.running() {
		if name != c.leader() && c.group(name).Status().Role == RoleVoter {
			return name
		}
	}
	return ""
}

func TestStandbysBecomeVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(1)
		c.add("s1", 0)
		time.Sleep(5 * time.Minute)
		if got := c.voters("v1"); got != "v1" {
			t.Errorf("voters = %s, want v1: two bear no more losses than one", got)
		}
		for _, name := range []string{"s2", "s3", "s4", "s5", "s6"} {
			c.add(name, 0)
		}
		c.await(10*time.Minute, "five voters", func() bool { return strings.Count(c.voters("v1"), " ") == MaxVoters-1 })
		time.Sleep(10 * time.Minute)
		if got := len(c.group("s6").Members()); got != MaxVoters {
			t.Errorf("%d members, want %d", got, MaxVoters)
		}
	})
}

func TestALostVoterIsReplaced(t *testing.T) {
	for name, choose := range map[string]func(*cluster) string{"a follower": (*cluster).follower, "the leader": (*cluster).leader} {
		t.Run(name, func(t *testing.T) { replaceVoter(t, choose) })
	}
}

func replaceVoter(t *testing.T, choose func(*cluster) string) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		c.add("s1", 0)
		c.propose("v1", "1", "a")
		dead := choose(c)
		c.killAgent(dead)
		time.Sleep(5 * time.Minute)
		// The standby takes its place at once, and the dead one goes later: until then it may come back.
		if got := c.voters("s1"); !strings.Contains(got, dead) {
			t.Errorf("voters = %s: %s was taken out after 5 minutes", got, dead)
		}
		c.await(11*time.Minute, "replacement", func() bool {
			got := c.voters("s1")
			return strings.Contains(got, "s1") && !strings.Contains(got, dead) && strings.Count(got, " ") == 2
		})
		c.start(dead)
		c.propose(dead, "2", "b")
		c.await(5*time.Second, "the state at who came back", func() bool { return c.everywhere("b") })
		c.propose(dead, "3", "c") // raft's leader may send heartbeats still, without entries
		c.await(5*time.Second, "the next state at who came back", func() bool { return c.everywhere("c") })
		c.await(5*time.Second, "role of a standby at who came back", func() bool { return c.group(dead).Status().Role == RoleStandby })
	})
}

func TestAVoterThatLostItsFolderComesBackAsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		name := c.follower()
		was := c.group(name).raftID()
		c.killAgent(name)
		if err := os.RemoveAll(c.agents[name].folder); err != nil {
			t.Fatal(err)
		}
		c.agents[name].disk = newMemDisk()
		c.start(name)
		c.await(5*time.Minute, "the new voter", func() bool {
			members := c.group(c.leader()).Members()
			return len(members) == 3 && !slices.ContainsFunc(members, func(m Member) bool { return !m.Voter || m.RaftID == was })
		})
	})
}

func TestAVoterMayChangeItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		name := c.follower()
		c.killAgent(name)
		n := c.agents[name]
		c.mu.Lock()
		delete(c.agents, name)
		c.mu.Unlock()
		n.name = "new"
		c.put(n)
		c.start("new")
		c.await(time.Minute, "the new name", func() bool {
			got := c.voters(c.leader())
			return strings.Contains(got, "new") && strings.Count(got, " ") == 2
		})
		c.propose("new", "1", "a")
		c.await(5*time.Second, "policy everywhere", func() bool { return c.everywhere("a") })
	})
}

func TestALeaderLeavesAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		left := c.leader()
		if err := c.group(left).Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.killAgent(left)
		c.await(5*time.Second, "a leader of two", func() bool { return c.leader() != "" && len(c.group(c.leader()).Members()) == 2 })
		c.start(left)
		c.propose(left, "1", "a")
		c.await(5*time.Minute, "three voters", func() bool { return strings.Count(c.voters(left), " ") == 2 })
	})
}

func TestNextStepKeepsAMajority(t *testing.T) {
	now := t0.Add(time.Hour)
	here := func(agent string) attendance {
		return attendance{agent: agent, since: t0, last: now, lastIndex: 100, supported: 1, seen: true}
	}
	gone := func(agent string, since time.Duration) attendance {
		return attendance{agent: agent, last: now.Add(-since)}
	}
	voter := func(name string) server { return server{ID: "id-" + name, Agent: name, Voter: true} }
	p := plan{now: now, lostAfter: 10 * time.Minute, stableAfter: time.Minute, version: 1, index: 100}
	three := []server{voter("a"), voter("b"), voter("c")}
	tests := []struct {
		name    string
		servers []server
		present roll
		step    step
		who     string
	}{
		{"all is well", three, roll{"id-a": here("a"), "id-b": here("b"), "id-c": here("c")}, stepNone, ""},
		{"a lost one without a spare stays", three, roll{"id-a": here("a"), "id-b": here("b"), "id-c": gone("c", time.Hour)}, stepNone, ""},
		{
			"a spare fills its place first", three,
			roll{"id-a": here("a"), "id-b": here("b"), "id-c": gone("c", time.Hour), "id-d": here("d")},
			stepAdd, "d",
		},
		{
			"then it goes", append(slices.Clone(three), voter("d")),
			roll{"id-a": here("a"), "id-b": here("b"), "id-c": gone("c", time.Hour), "id-d": here("d")},
			stepRemove, "c",
		},
		{
			"but not at once", append(slices.Clone(three), voter("d")),
			roll{"id-a": here("a"), "id-b": here("b"), "id-c": gone("c", time.Minute), "id-d": here("d")},
			stepNone, "",
		},
		{
			"one that caught up votes", append(slices.Clone(three), server{ID: "id-d", Agent: "d"}),
			roll{"id-a": here("a"), "id-b": here("b"), "id-c": gone("c", time.Hour), "id-d": here("d")},
			stepPromote, "d",
		},
		{
			"one that did not does not", append(slices.Clone(three), server{ID: "id-d", Agent: "d"}),
			roll{
				"id-a": here("a"), "id-b": here("b"), "id-c": gone("c", time.Hour),
				"id-d": {agent: "d", since: t0, last: now, lastIndex: 10, supported: 1, seen: true},
			},
			stepNone, "",
		},
		{
			"an older version becomes no voter", three,
			roll{
				"id-a": here("a"), "id-b": here("b"), "id-c": gone("c", time.Hour),
				"id-d": {agent: "d", since: t0, last: now, lastIndex: 100, supported: 0, seen: true},
			},
			stepNone, "",
		},
		{
			"a folder that was lost", three,
			roll{"id-a": here("a"), "id-b": here("b"), "id-c": gone("c", time.Second), "id-new": here("c")},
			stepRemove, "c",
		},
		{
			"nobody goes where the rest is no majority", three,
			roll{"id-a": here("a"), "id-b": gone("b", time.Hour), "id-c": gone("c", time.Hour), "id-new": here("b")},
			stepNone, "",
		},
		{"a new name", three, roll{"id-a": here("a"), "id-b": here("x"), "id-c": here("c")}, stepRename, "x"},
		{"two more make five", three, roll{"id-a": here("a"), "id-b": here("b"), "id-c": here("c"), "id-d": here("d"), "id-e": here("e")}, stepAdd, "d"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st, s := nextStep(tt.servers, tt.present, "id-a", p)
			if d := cmp.Diff([]string{tt.step.String(), tt.who}, []string{st.String(), s.Agent}); d != "" {
				t.Errorf("next step (-want +got):\n%s", d)
			}
		})
	}
}

func TestANewerCommandIsNotProposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(1)
		newer := policy("1", "a")
		newer.Version = Supported + 1
		if _, err := c.group("v1").Propose(t.Context(), *newer); !errors.Is(err, ErrNewerVersion) {
			t.Errorf("a command of a newer version gave %v", err)
		}
		if _, err := c.group("v1").Propose(t.Context(), Command{Kind: kindEpoch}); err == nil {
			t.Error("a command of the leader's was taken from a caller")
		}
		c.propose("v1", "2", "b")
	})
}

func TestAVoterThatMeetsANewerCommandStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.found(3)
		c.propose("v1", "1", "a")
		old := c.leader()
		newer := &Command{ID: "2", Kind: "zones", Version: Supported + 1}
		raw, err := encodeCommand(newer)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.group(old).voter.Load().raft.Apply(raw, time.Second).Error()
		c.await(10*time.Second, "fault", func() bool {
			f := c.group(old).Status().Faults
			return len(f) == 1 && strings.Contains(f[0].Advice, "upgrade")
		})
		if got := c.group(old).State().Policy.Text; got != "a" {
			t.Errorf("policy = %q, want the last one that this version knows", got)
		}
	})
}
