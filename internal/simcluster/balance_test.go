package simcluster

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// evenness returns the largest count over the mean, and the coefficient of variation.
func evenness(counts []int64) (worst, cov float64) {
	var sum, squares float64
	for _, n := range counts {
		sum += float64(n)
	}
	mean := sum / float64(len(counts))
	for _, n := range counts {
		worst = max(worst, float64(n)/mean)
		squares += (float64(n) - mean) * (float64(n) - mean)
	}
	return worst, math.Sqrt(squares/float64(len(counts))) / mean
}

// whole fails the test for every answer that is not whole.
func whole(t *testing.T, all []*exchange) {
	t.Helper()
	for _, x := range all {
		if fault := x.fault(); fault != "" {
			t.Errorf("sent to %s: %s", Name(x.agent), fault)
		}
	}
}

func TestBurstOfColdPromptsSpreadsEvenly(t *testing.T) {
	Test(t, Config{Agents: 4, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f, rng := &traffic{c: c}, c.Rand()
		for range 100 {
			f.send(t.Context(), rng.IntN(4), ChatBody("", text(rng.Uint64(), 4000)))
		}
		whole(t, f.wait())
		worst, cov := evenness(served(c))
		t.Logf("requests by engine %v: max/mean %.2f, CoV %.2f", served(c), worst, cov)
		if worst > 1.5 {
			t.Errorf("max/mean %.2f over %v", worst, served(c))
		}
	})
}

func TestColdPromptsOneByOneSpread(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		rng := c.Rand()
		for n := range 60 {
			chat(t, c, n%3, ChatBody("", text(rng.Uint64(), 4000)))
		}
		worst, cov := evenness(served(c))
		t.Logf("requests by engine %v: max/mean %.2f, CoV %.2f", served(c), worst, cov)
		if worst > 1.8 {
			t.Errorf("max/mean %.2f over %v", worst, served(c))
		}
	})
}

func TestOneSharedPrefixSpreads(t *testing.T) {
	Test(t, Config{Agents: 4, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f, rng, system := &traffic{c: c}, c.Rand(), text(1, 8000)
		chat(t, c, 0, ChatBody(system, "first"))
		time.Sleep(time.Second)
		for range 200 {
			f.send(t.Context(), rng.IntN(4), ChatBody(system, text(rng.Uint64(), 200)))
			time.Sleep(10 * time.Millisecond)
		}
		whole(t, f.wait())
		worst, cov := evenness(served(c))
		t.Logf("requests by engine %v: max/mean %.2f, CoV %.2f", served(c), worst, cov)
		if worst > 1.6 {
			t.Errorf("max/mean %.2f over %v", worst, served(c))
		}
	})
}

func TestManyIngressesAtTheSameInstantDoNotHerd(t *testing.T) {
	Test(t, Config{Agents: 8, Delay: lan}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		f, rng := &traffic{c: c}, c.Rand()
		for range 16 {
			for i := range 8 {
				f.send(t.Context(), i, ChatBody("", text(rng.Uint64(), 4000)))
			}
		}
		whole(t, f.wait())
		worst, cov := evenness(served(c))
		t.Logf("requests by engine %v: max/mean %.2f, CoV %.2f", served(c), worst, cov)
		if cov > 0.35 {
			t.Errorf("CoV %.2f over %v", cov, served(c))
		}
	})
}

// abort opens one stream and goes away after a time that rng draws: before the header, or while content flows.
func abort(c *Cluster, rng *rand.Rand, i int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.Int64N(int64(800*time.Millisecond))))
	defer cancel()
	resp, err := c.Open(ctx, i, ChatBody("", text(rng.Uint64(), 2000)))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}

func TestAbortedStreamsLeaveNothingBehind(t *testing.T) {
	Test(t, Config{Agents: 3, Delay: lan, Engine: talkative}, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		rng := c.Rand()
		for range 10 {
			var wg sync.WaitGroup
			for range 50 {
				i, own := rng.IntN(3), rand.New(rand.NewPCG(rng.Uint64(), 0))
				wg.Go(func() { abort(c, own, i) })
			}
			wg.Wait()
			gone := time.Now()
			c.Await("the engines have seen every abort", time.Second, func() bool {
				running := 0
				for i := range 3 {
					s := c.Engine(i).Stats()
					running += s.Running + s.Waiting
				}
				return running == 0
			})
			for i := range 3 {
				if last := c.Engine(i).Stats().LastAbort; last.Sub(gone) > time.Second {
					t.Errorf("engine %d saw an abort after %v", i, last.Sub(gone))
				}
			}
		}
		c.Quiet(time.Second)
		for i := range 3 {
			t.Logf("engine %d: %d requests, %d aborted", i, c.Engine(i).Stats().Requests, c.Engine(i).Stats().Aborted)
			// A poll between an abort and the engine's own notice of it sees a request of nobody, until the next poll.
			c.Await("its load is zero", 2500*time.Millisecond, func() bool {
				e, ok := c.EngineOf(i, i)
				return ok && e.InFlight == 0 && e.Waiting == 0 && e.QueuedSeconds == 0
			})
			chat(t, c, i, ChatBody("", "are you there?"))
		}
	})
}
