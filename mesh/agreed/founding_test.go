package agreed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// groups returns the names of the groups that there are.
func (c *cluster) groups() []string {
	var all []string
	for _, name := range c.running() {
		if id := c.group(name).State().Group; id != "" && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

func TestOnlyOneSideOfASplitFoundsAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.partition([]string{"v1", "v2"}, []string{"v3", "v4", "v5"})
		for _, name := range names("v", 5) {
			c.add(name, 3)
		}
		time.Sleep(time.Minute)
		if g := c.group("v1"); g.State().Index > 0 || !strings.Contains(g.Status().Waiting, "2 of the 3") {
			t.Errorf("the smaller side: %+v", g.Status())
		}
		if got := c.groups(); len(got) != 1 {
			t.Errorf("groups = %v, want one", got)
		}
		c.partition()
		c.await(10*time.Second, "one group everywhere", func() bool { return c.group("v1").Status().Leader != "" && len(c.groups()) == 1 })
	})
}

func TestFoundingIsRefusedWhereTwoGroupsCouldComeToBe(t *testing.T) {
	tests := []struct {
		name    string
		expects []int
		want    string
	}{
		{"twice as many", []int{2, 2, 2, 2}, "more than half of 4"},
		{"unequal numbers", []int{3, 3, 2}, "must be the same everywhere"},
		{"too few", []int{3, 3}, "2 of the 3 agents"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.partition() // all start before they see each other
				for i := range tt.expects {
					c.side[fmt.Sprint("v", i)] = i
				}
				for i, expect := range tt.expects {
					c.add(fmt.Sprint("v", i), expect)
				}
				c.partition()
				time.Sleep(30 * time.Second)
				if got := c.groups(); len(got) > 0 {
					t.Errorf("groups = %v", got)
				}
				if got := c.group("v0").Status().Waiting; !strings.Contains(got, tt.want) {
					t.Errorf("waiting = %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// TestFoundingSurvivesPartitionsAndCrashes founds groups of 3 among 5 agents while the network splits and agents are killed.
func TestFoundingSurvivesPartitionsAndCrashes(t *testing.T) {
	for range 8 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			c, rng := newCluster(t), rand.New(rand.NewPCG(seed, 0))
			for _, name := range names("v", 5) {
				c.add(name, 3)
			}
			for range 30 {
				name := fmt.Sprint("v", 1+rng.IntN(5))
				switch rng.IntN(4) {
				case 0:
					c.killAgent(name)
				case 1:
					if c.group(name) == nil {
						c.start(name)
					}
				default:
					all := names("v", 5)
					rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
					c.partition(all[:rng.IntN(4)])
				}
				time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
			}
			c.partition()
			c.startDead(names("v", 5))
			c.await(time.Minute, "a group", func() bool {
				_, err := c.group("v1").Propose(t.Context(), *policy("1", "a"))
				return err == nil && c.everywhere("a")
			})
			if got := c.groups(); len(got) != 1 {
				t.Errorf("seed %d: groups = %v", seed, got)
			}
		})
	}
}

// TestOneValueIsChosen runs attempts to found a group against acceptors whose questions and answers are lost at random: two
// ballots that a quorum accepted must have the same voters.
func TestOneValueIsChosen(t *testing.T) {
	values := 0
	for seed := range uint64(3000) {
		if choices := chooseAtRandom(t, rand.New(rand.NewPCG(seed, 0))); choices > 1 {
			values++
		}
	}
	if values < 300 {
		t.Errorf("only %d runs chose more than once", values)
	}
}

// chooseAtRandom is one run. Attempts overlap: each is a ballot with its promises, and any of them may go on at any time.
func chooseAtRandom(t *testing.T, rng *rand.Rand) (choices int) {
	type attempt struct {
		ballot   ballot
		promises map[string]answer
	}
	quorum := 1 + rng.IntN(3)
	acceptors := make([]acceptor, quorum+rng.IntN(quorum))
	var founders, chosen []server
	for i := range acceptors {
		founders = append(founders, server{ID: fmt.Sprint(i), Agent: fmt.Sprint(i)})
	}
	ask := func(q question) map[string]answer {
		yes := map[string]answer{}
		for i := range acceptors {
			if rng.IntN(4) == 0 {
				continue
			}
			next, a := acceptors[i].answerTo(q)
			if acceptors[i] = next; a.Code == "" {
				yes[founders[i].Agent] = a
			}
		}
		return yes
	}
	var open []attempt
	for i := range 30 {
		if len(open) == 0 || rng.IntN(2) == 0 {
			b := ballot{uint64(1 + i/4 + rng.IntN(3)), fmt.Sprint(i)}
			open = append(open, attempt{b, ask(question{Op: opPrepare, Ballot: b})})
			continue
		}
		n := rng.IntN(len(open))
		a := open[n]
		open = slices.Delete(open, n, n+1)
		if len(a.promises) < quorum {
			continue
		}
		voters := choose(founders, a.promises)
		if len(ask(question{Op: opAccept, Ballot: a.ballot, Voters: voters})) < quorum {
			continue
		}
		if choices++; chosen != nil && !slices.Equal(chosen, voters) {
			t.Fatalf("two groups: %v and %v", chosen, voters)
		}
		chosen = voters
	}
	return choices
}

func TestARecoveredGroupIsNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for _, name := range names("v", 3) { // on real folders
			c.put(&node{name: name, folder: c.folder + "/" + name, expect: 3})
			c.start(name)
		}
		c.await(30*time.Second, "a leader", func() bool { return c.leader() != "" })
		w := c.add("w", -1)
		c.propose("v1", "1", "a")
		c.await(5*time.Second, "policy everywhere", func() bool { return c.everywhere("a") })
		id := c.group("v1").raftID()
		for _, name := range names("v", 3) {
			c.killAgent(name)
			if name != "v1" {
				if err := os.RemoveAll(c.agents[name].folder); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := Recover(c.agents["v1"].folder, []Peer{{"other", "v9"}}); err == nil {
			t.Error("a recovery without the agent itself was done")
		}
		if err := Recover(c.agents["v1"].folder, []Peer{{id, "v1"}}); err != nil {
			t.Fatal(err)
		}
		for _, name := range names("v", 3) {
			c.start(name)
		}
		c.await(time.Minute, "the next epoch", func() bool { return w.State().Epoch == 1 && c.everywhere("a") })
		c.await(5*time.Minute, "three voters", func() bool { return strings.Count(c.voters("w"), " ") == 2 })
		if got := c.groups(); len(got) != 1 {
			t.Errorf("groups = %v", got)
		}
	})
}
