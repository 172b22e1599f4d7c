package simcluster

import (
	"net/http"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// talkative is an engine whose answers take about 1.3 s.
var talkative = engineWith(func(_ int, c *simengine.Config) { c.AnswerTokens = 60 })

// forgiven reports whether a request may fail when an agent is lost at the given moment: content had gone out before.
func forgiven(x *exchange, lost time.Time) bool {
	return !x.began.IsZero() && x.began.Before(lost.Add(time.Millisecond)) && x.err == nil
}

// checkLoss fails the test for every request that a loss may not have hit.
func checkLoss(t *testing.T, all []*exchange, lost time.Time) {
	t.Helper()
	hit := 0
	for _, x := range all {
		fault := x.fault()
		if fault == "" {
			continue
		}
		hit++
		if !forgiven(x, lost) {
			t.Errorf("sent to %s %v after the loss, began %v after: %s", Name(x.agent), x.sent.Sub(lost), x.began.Sub(lost), fault)
		}
	}
	t.Logf("%d requests, %d had begun on the agent that was lost", len(all), hit)
}

// lose has traffic through agents 0 to 2 of four while agent 3 is lost, and checks that clients see it only where an
// answer had begun, and that nobody chooses agent 3 after 2 s.
func lose(t *testing.T, c *Cluster, loss func()) {
	t.Helper()
	f := &traffic{c: c}
	f.every(t, 25*time.Millisecond, 1500*time.Millisecond, 2000, 0, 1, 2)
	before := c.Engine(3).Stats().Requests
	if before == 0 {
		t.Fatal("the agent to be lost served nothing")
	}
	lost := time.Now()
	loss()
	f.every(t, 25*time.Millisecond, 3*time.Second, 2000, 0, 1, 2)
	all := f.wait()
	checkLoss(t, all, lost)
	for i := range 3 {
		attempted(t, c, i, 3, lost.Add(2*time.Second), time.Now())
		if got := c.StateOf(i, 3); got != "unreachable" && got != "dead" {
			t.Errorf("%s sees the lost agent as %q", Name(i), got)
		}
	}
	for _, x := range all {
		if x.ended.Sub(x.sent) > 6*time.Second {
			t.Errorf("a request through %s took %v: %s", Name(x.agent), x.ended.Sub(x.sent), x.fault())
		}
	}
}

// used checks that the engine beside agent i serves again.
func used(t *testing.T, c *Cluster, i int) {
	t.Helper()
	f, before := &traffic{c: c}, c.Engine(i).Stats().Requests
	f.every(t, 20*time.Millisecond, time.Second, 2000, 0, 1, 2)
	for _, x := range f.wait() {
		if fault := x.fault(); fault != "" {
			t.Errorf("sent to %s after the return: %s", Name(x.agent), fault)
		}
	}
	if now := c.Engine(i).Stats().Requests; now == before {
		t.Errorf("the engine beside %s got none of the requests after its return", Name(i))
	}
}

// hold makes the engine beside agent i hold a system message, and returns that. Several are sent at once, so that no
// engine gets all of them, and again while chance passes this one over.
func hold(t *testing.T, c *Cluster, i int) string {
	t.Helper()
	for round := range uint64(10) {
		if system := holdOnce(t, c, i, 100*(round+1)); system != "" {
			return system
		}
	}
	t.Fatalf("the engine beside %s is never chosen", Name(i))
	return ""
}

func holdOnce(t *testing.T, c *Cluster, i int, seed uint64) (held string) {
	t.Helper()
	f := &traffic{c: c}
	for n := range uint64(3 * c.config.Agents) {
		system := text(seed+n, 20_000)
		f.wg.Go(func() {
			a, err := c.Chat(t.Context(), i, ChatBody(system, "hello"))
			if err == nil && faultOf(a) == "" && a.Engine() == EngineID(i) {
				f.mu.Lock()
				defer f.mu.Unlock()
				held = system
			}
		})
	}
	f.wait()
	time.Sleep(2 * time.Second) // more than a digest period
	return held
}

func TestKilledAgentCostsOnlyTheStreamsThatHadBegun(t *testing.T) {
	Test(t, Config{Agents: 4, Delay: lan, Engine: talkative}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		system := hold(t, c, 3)
		if a := chat(t, c, 1, ChatBody(system, "again")); a.Engine() != EngineID(3) || overlap(t, a) == 0 {
			t.Fatalf("before the kill: answered by %s with overlap %d", a.Engine(), overlap(t, a))
		}
		lose(t, c, func() { c.Kill(3) })
		c.Start(3)
		c.Whole(wholeWithin)
		for i := range 4 {
			if e, _ := c.EngineOf(i, 3); e.DigestFill != 0 {
				t.Errorf("%s has kept the digest of the killed agent: %+v", Name(i), e)
			}
		}
		if a := chat(t, c, 1, ChatBody(system, "once more")); overlap(t, a) != 0 {
			t.Errorf("overlap %d on %s by the digest of an agent that was killed", overlap(t, a), a.Engine())
		}
		used(t, c, 3)
		c.Quiet(time.Second)
	})
}

func TestSilentAgentCostsOnlyTheStreamsThatHadBegun(t *testing.T) {
	Test(t, Config{Agents: 4, Delay: lan, Engine: talkative}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		lose(t, c, func() { c.Silence(3) })
		c.Resume(3)
		c.Whole(wholeWithin)
		used(t, c, 3)
		c.Quiet(5 * time.Second)
	})
}

func TestSilenceTurnsSuspectAndAMissUnreachable(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		time.Sleep(time.Second)
		c.Silence(2)
		is := func(state string) func() bool { return func() bool { return c.StateOf(0, 2) == state } }
		suspect := c.Await("suspect", 800*time.Millisecond, is("suspect"))
		if suspect < 250*time.Millisecond-lan {
			t.Errorf("suspect after %v: two heartbeats have not been missed", suspect)
		}
		time.Sleep(time.Second)
		if got := c.StateOf(0, 2); got != "suspect" {
			t.Errorf("an agent that was only silent, for %v, is %q", suspect+time.Second, got)
		}
		if a := chat(t, c, 0, ChatBody("", "hello")); a.Engine() == EngineID(2) {
			t.Error("answered by the engine of a silent agent")
		}
		c.Await("unreachable", 100*time.Millisecond, is("unreachable"))
		for range 100 {
			time.Sleep(50 * time.Millisecond)
			if got := c.StateOf(0, 2); got != "unreachable" && got != "dead" {
				t.Fatalf("silent agent is %q again", got)
			}
		}
		c.Resume(2)
		back := c.Await("fresh again", wholeWithin, func() bool { return c.StateOf(0, 2) == "fresh" && c.StateOf(2, 0) == "fresh" })
		t.Logf("suspect after %v, fresh %v after the end of the silence", suspect, back)
	})
}

func TestEngineRestartWithdrawsItsDigestEverywhere(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		system := hold(t, c, 1)
		was, _ := c.EngineOf(0, 1)
		c.StopEngine(1)
		time.Sleep(300 * time.Millisecond)
		c.StartEngine(1)
		c.Whole(5 * time.Second)
		c.Await("another generation without residency", 2*time.Second, func() bool {
			for i := range 3 {
				if e, ok := c.EngineOf(i, 1); !ok || e.Generation <= was.Generation || e.DigestFill > 0 {
					return false
				}
			}
			return true
		})
		for i := range 3 {
			if a := chat(t, c, i, ChatBody(text(uint64(i), 10)+system, "again")); overlap(t, a) != 0 {
				t.Errorf("through %s: overlap %d", Name(i), overlap(t, a))
			}
		}
		if a := chat(t, c, 0, ChatBody(system, "again")); overlap(t, a) != 0 {
			t.Errorf("overlap %d with what the engine held in its last life", overlap(t, a))
		}
	})
}

func TestRestartedEngineIsNotChosenForItsOldDigest(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		system := hold(t, c, 1)
		c.StopEngine(1)
		c.StartEngine(1) // between two polls of its owner
		time.Sleep(1500 * time.Millisecond)
		for i := range 3 {
			if e, _ := c.EngineOf(i, 1); e.DigestFill > 0 {
				t.Errorf("%s still counts on the engine's old life: %+v", Name(i), e)
			}
		}
		if a := chat(t, c, 0, ChatBody(system, "again")); overlap(t, a) != 0 || cached(t, a) != 0 {
			t.Errorf("overlap %d, cached %d", overlap(t, a), cached(t, a))
		}
	})
}

func TestDigestsAreRepairedAfterACut(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		system := hold(t, c, 1)
		c.Cut(1, 0)
		c.Cut(0, 1)
		for n := range 8 { // what agent0 does not hear of
			chat(t, c, 1, ChatBody(system, text(uint64(n), 3000)))
			time.Sleep(time.Second)
		}
		c.Mend(1, 0)
		c.Mend(0, 1)
		c.Await("the same digest everywhere", wholeWithin, func() bool {
			want, _ := c.EngineOf(1, 1)
			for i := range 3 {
				if e, _ := c.EngineOf(i, 1); e.DigestVersion < want.DigestVersion-1 || e.DigestFill != want.DigestFill {
					return false
				}
			}
			return true
		})
	})
}

func TestBothHalvesOfAPartitionServe(t *testing.T) {
	Test(t, Config{Agents: 4, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		cut := time.Now()
		c.Partition([]int{0, 1}, []int{2, 3})
		f := &traffic{c: c}
		f.every(t, 100*time.Millisecond, 12*time.Second, 1000, 0, 1, 2, 3)
		for _, x := range f.wait() {
			if fault := x.fault(); fault != "" && !forgiven(x, cut) {
				t.Errorf("%s, %v after the cut: %s", Name(x.agent), x.sent.Sub(cut), fault)
			}
		}
		attempted(t, c, 0, 2, cut.Add(2*time.Second), time.Now())
		attempted(t, c, 3, 1, cut.Add(2*time.Second), time.Now())
		c.Partition()
		took := c.Whole(15 * time.Second)
		t.Logf("healed after %v", took)
	})
}

func TestGracefulStopCostsNoClientAnything(t *testing.T) {
	Test(t, Config{Agents: 4, Delay: lan, Engine: talkative}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f := &traffic{c: c}
		f.every(t, 20*time.Millisecond, time.Second, 2000, 0, 1, 2, 3)
		stop := time.Now()
		c.BeginStop(3)
		f.every(t, 20*time.Millisecond, 100*time.Millisecond, 2000, 0, 1, 2)
		if status, body, err := c.Debug(t.Context(), 3, "/readyz"); err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("readyz of the agent that stops = %d %q, %v", status, body, err)
		}
		f.every(t, 25*time.Millisecond, 2*time.Second, 2000, 0, 1, 2)
		for _, x := range f.wait() {
			if fault := x.fault(); fault != "" {
				t.Errorf("%s, %v after the stop began: %s", Name(x.agent), x.sent.Sub(stop), fault)
			}
		}
		c.Ended(3)
		for i := range 3 {
			attempted(t, c, i, 3, stop.Add(100*time.Millisecond), time.Now())
			if got := c.StateOf(i, 3); got != "left" {
				t.Errorf("%s sees the agent that left as %q", Name(i), got)
			}
		}
		c.Start(3)
		c.Whole(wholeWithin)
		used(t, c, 3)
	})
}
