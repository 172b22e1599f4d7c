package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

const (
	// hedgePolicy hedges what names itself so, so that both ways meet the same pauses.
	hedgePolicy = `
classes:
  - name: hedged
    match: {header: {x-class: hedged}}
    hedge: true
  - name: plain
`
	hedgeRate  = 20 // requests a second: with four engines at fourfold speed each is busy a third of the time
	hedgeShare = 0.1
	// hedgeMemory is the time whose requests count for the budget, beside those that are measured.
	hedgeMemory = 30 * time.Second
	pauseOf     = 2 * time.Second
	pauseEvery  = 12 * time.Second // on the mean: one request of 24 would meet one, which is within the budget
)

// hedge compares requests that are hedged with others that are not.
type hedge struct {
	h      *check.Harness
	m      *lab.Mesh
	client *http.Client
}

// checkHedge has one engine of four pause at a time, as one that compacts its memory or loses its disk for a moment does.
func checkHedge(ctx context.Context, h *check.Harness) (err error) {
	x := &hedge{h: h, client: newClient()}
	defer x.client.CloseIdleConnections()
	x.m, err = lab.Start(ctx, h, lab.Config{
		Names:       []string{"a", "b", "c", "d"},
		EngineFlags: func(string) []string { return []string{"--speed", "4", "--answer-tokens", "24"} },
		Policy:      hedgePolicy,
	})
	if err != nil {
		return err
	}
	defer x.m.Close()
	period := 3 * time.Minute
	if h.Short {
		period = 30 * time.Second
	}
	x.play(ctx, hedgeMemory) // until speeds are learned, and what is late is known
	before, err := x.m.Agents[0].Metrics(ctx)
	if err != nil {
		return err
	}
	paused, stop := context.WithCancel(ctx)
	pausing := make(chan error, 1)
	go func() { pausing <- x.pauses(paused) }()
	hedged, plain := x.play(ctx, period)
	stop()
	if err := <-pausing; err != nil {
		return err
	}
	after, err := x.m.Agents[0].Metrics(ctx)
	if err != nil {
		return err
	}
	x.figures(hedged, plain, func(result string) float64 {
		labels := []string{"class=hedged", "result=" + result}
		return after.Sum("kvmesh_forward_hedges_total", labels...) - before.Sum("kvmesh_forward_hedges_total", labels...)
	})
	return x.m.AwaitRest(ctx, 10*time.Second)
}

// pauses stops an engine and lets it go on, until ctx ends.
func (x *hedge) pauses(ctx context.Context) error {
	for ctx.Err() == nil {
		sleep(ctx, time.Duration((0.5+rand.Float64())*float64(pauseEvery-pauseOf)))
		engine := x.m.Agents[rand.IntN(len(x.m.Agents))].EngineProcess
		if err := engine.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		sleep(ctx, pauseOf)
		if err := engine.Signal(syscall.SIGCONT); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// play sends requests to one agent, every other one of the class that is hedged.
func (x *hedge) play(ctx context.Context, period time.Duration) (hedged, plain []served) {
	begin := time.Now()
	rng := rand.New(rand.NewPCG(uint64(begin.UnixNano()), 9))
	var out [2]servings
	for i, at := 0, time.Duration(0); at < period && ctx.Err() == nil; i++ {
		at += time.Duration(rng.ExpFloat64() / hedgeRate * float64(time.Second))
		r, class := chat("", prompt(rng), fewTokens), i%2
		if class == 0 {
			r.header.Set("X-Class", "hedged")
		}
		time.Sleep(time.Until(begin.Add(at)))
		out[class].ask(ctx, x.client, x.m.Agents[0], r)
	}
	return out[0].wait(), out[1].wait()
}

func (x *hedge) figures(hedged, plain []served, counted func(result string) float64) {
	f := x.h.Figures
	f.Zero("hedge_client_errors", float64(failed(hedged)+failed(plain)), "of %d streams; an engine that pauses is none", len(hedged)+len(plain))
	a, b := ttfts(hedged), ttfts(plain)
	f.AtMost("hedge_ttft_p99", quantile(a, 0.99)/quantile(b, 0.99), 0.8,
		"the 99th percentile of the time to the first token with hedging, %.0f ms, as a share of that without, %.0f ms, while one engine of "+
			"four pauses for %v at a time, every %v on the mean; the median is %.0f and %.0f ms",
		quantile(a, 0.99), quantile(b, 0.99), pauseOf, pauseEvery, quantile(a, 0.5), quantile(b, 0.5))
	won, lost := counted("won"), counted("lost")
	n := float64(len(hedged))
	f.AtMost("hedge_share", (won+lost+counted("failed"))/(n+hedgeMemory.Seconds()*hedgeRate/2), hedgeShare,
		"hedges as a share of %v requests and those of the %v before; %v won, %v lost, %v had no budget, %v found no engine",
		n, hedgeMemory, won, lost, counted("budget"), counted("none"))
	f.AtLeast("hedge_won", won, 1, "hedges that were the first to answer")
}

func failed(all []served) (n int) {
	for _, s := range all {
		if s.err != nil {
			n++
		}
	}
	return n
}

// ttfts are the times to the first token.
func ttfts(all []served) (times []time.Duration) {
	for _, s := range all {
		if s.err == nil {
			times = append(times, s.ttft)
		}
	}
	return times
}
