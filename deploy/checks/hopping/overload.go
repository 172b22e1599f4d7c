package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

// The mesh that is overloaded: 64 slots. Answers are short, so that a run has enough of them; requests may wait for longer
// than an answer takes, so that the queue and not its end decides who is served.
const (
	overloadAgents = 8
	overloadSlots  = 8 // of each engine
	overloadTokens = 32
	overloadWait   = 3 * time.Second // queue-timeout
	overloadWords  = 300             // of a prompt, none of which is in any cache
)

// outcome is what came of one request under load.
type outcome struct {
	key     int // which API key it was sent with
	ended   time.Time
	took    time.Duration
	first   time.Duration // to the first content
	tokens  int           // of its prompt
	refused bool
	retry   int // seconds that a refusal says to wait; -1 for none
	err     error
}

// overload is a mesh under load.
type overload struct {
	*lab.Mesh
	h      *check.Harness
	client *http.Client
}

// checkOverload measures what a mesh can do, what it is like just below that, and what is left of both when twice as much is asked.
func checkOverload(ctx context.Context, h *check.Harness) error {
	var names []string
	for i := range overloadAgents {
		names = append(names, string(rune('a'+i)))
	}
	m, err := lab.Start(ctx, h, lab.Config{
		Names: names, EngineOptions: fmt.Sprintf("max-running=%d", overloadSlots),
		AgentFlags: func(string) []string { return []string{"--queue-timeout", overloadWait.String()} },
	})
	if err != nil {
		return err
	}
	defer m.Close()
	o := &overload{m, h, newClient()}
	defer o.client.CloseIdleConnections()
	if err := o.run(ctx); err != nil {
		return err
	}
	return m.AwaitRest(ctx, 10*time.Second)
}

func (o *overload) run(ctx context.Context) error {
	long := 20 * time.Second
	if o.h.Short {
		long = 6 * time.Second
	}
	slots := overloadAgents * overloadSlots
	o.closed(ctx, slots, long/3) // warms up
	full := o.closed(ctx, slots*5/4, long)
	capacity := perSecond(servedOf(full), long)
	before, err := o.times(ctx)
	if err != nil {
		return err
	}
	below := o.closed(ctx, slots*9/10, long)
	calm, err := o.times(ctx)
	if err != nil {
		return err
	}
	o.h.Say("overload: %.1f requests a second at saturation; with nine tenths of the slots %.1f, TTFT %.0f ms, p99 %.0f ms", capacity,
		perSecond(servedOf(below), long), calm.since(before).ttft()*1e3, quantile(firsts(below), 0.99))
	twice := 6 * long
	if o.h.Short {
		twice = 2 * long
	}
	all := o.open(ctx, twice, 0.95*capacity, 0.6*capacity, 0.45*capacity)
	hot, err := o.times(ctx)
	if err != nil {
		return err
	}
	o.sayRefusals(ctx)
	o.figures(all, below, capacity, twice)
	o.h.Figures.AtMost("overload_ttft_ratio", hot.since(calm).ttft()/calm.since(before).ttft(), 1.1,
		"mean TTFT without the time in the queue at twice the capacity, %.0f ms, as a share of that with nine tenths of the slots in use, %.0f ms; the queue took %.0f ms",
		hot.since(calm).ttft()*1e3, calm.since(before).ttft()*1e3, hot.since(calm).wait()*1e3)
	if !o.h.Short {
		unequal := o.open(ctx, 3*long, 1.6*capacity, 0.8*capacity, 0.4*capacity)
		o.h.Figures.AtLeast("overload_unequal_jain", jain(tokensOf(unequal)), 0.98, "of the prompt tokens served for three API keys that ask for 1.6, 0.8 and 0.4 of the capacity: %v", tokensOf(unequal))
	}
	return nil
}

// figures judges what came of twice the capacity.
func (o *overload) figures(all, below []outcome, capacity float64, during time.Duration) {
	ok, broken := servedOf(all), failures(all)
	settled := settledAfter(all, during)
	refused := refusals(settled)
	f := o.h.Figures
	f.AtLeast("overload_goodput", perSecond(servedOf(settled), during-overloadSettle)/capacity, 0.95,
		"of the capacity, %.1f/s in a closed loop; %d of %d served in %.0f s, the first %.0f left out", capacity, len(ok), len(all), during.Seconds(), overloadSettle.Seconds())
	bound := float64(overloadWait.Milliseconds()) + 1.1*quantile(firsts(below), 0.99)
	f.AtMost("overload_ttft_p99_ms", quantile(firsts(ok), 0.99), bound, "of accepted requests; the bound is the time in the queue, %v, and 1.1 times the p99 with nine tenths of the slots in use", overloadWait)
	f.Zero("overload_failed", float64(len(broken)), "neither served nor refused, of %d; %v", len(all), firstFailure(broken))
	without, late := 0, 0
	var times []time.Duration
	for _, x := range refused {
		times = append(times, x.took)
		if x.took >= overloadWait {
			late++
		}
		if x.retry < 1 || x.retry > 30 {
			without++
		}
	}
	// What is let in was expected to be served within half of its time. Where that errs it is refused at the end of it: mostly
	// at the beginning, which is a large part of a short run.
	lateBound := 0.05
	if o.h.Short {
		lateBound = 0.15
	}
	f.AtMost("overload_refusal_p95_ms", quantile(times, 0.95), 250, "from sending to the 429, of %d; p50 %.1f ms, p99 %.0f ms; the client shares the cores with all of the mesh", len(times), quantile(times, 0.5), quantile(times, 0.99))
	f.AtMost("overload_refused_late", float64(late)/float64(len(refused)), lateBound, "share of the refusals that came only when the time in the queue was over")
	f.Zero("overload_refusals_without_time", float64(without), "of %d have no Retry-After from 1 to 30", len(refused))
	f.AtLeast("overload_jain", jain(tokensOf(settled)), 0.98, "of the prompt tokens served for three API keys that ask for 0.95, 0.6 and 0.45 of the capacity: %v", tokensOf(settled))
}

// sayRefusals says how many requests were refused for which reason so far.
func (o *overload) sayRefusals(ctx context.Context) {
	for _, reason := range []string{"queue_wait", "queue_timeout", "queue_displaced", "queue_limit", "queue_bytes"} {
		n := 0.0
		for _, a := range o.Agents {
			if metrics, err := a.Metrics(ctx); err == nil {
				n += metrics.Sum("kvmesh_forward_refused_total", "reason="+reason)
			}
		}
		o.h.Say("overload: %.0f refused because of %s", n, reason)
	}
}

// closed keeps n requests on their way.
func (o *overload) closed(ctx context.Context, n int, during time.Duration) []outcome {
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	var wg sync.WaitGroup
	var all gathered
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				x := o.send(context.WithoutCancel(ctx), i%3)
				if ctx.Err() == nil { // what ends later is not of this time
					all.add(x)
				}
			}
		})
	}
	wg.Wait()
	return all.list
}

// open sends requests at so many a second for each API key, at random times.
func (o *overload) open(ctx context.Context, during time.Duration, rates ...float64) []outcome {
	var wg sync.WaitGroup
	var all gathered
	end := time.Now().Add(during)
	for key, rate := range rates {
		wg.Go(func() {
			for next := time.Now(); next.Before(end) && ctx.Err() == nil; {
				time.Sleep(time.Until(next))
				wg.Go(func() { all.add(o.send(ctx, key)) })
				next = next.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second)))
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(all.list, func(x outcome) bool { return x.ended.After(end) })
}

type gathered struct {
	mu   sync.Mutex
	list []outcome
}

func (g *gathered) add(x outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = append(g.list, x)
}

// send asks one agent, any of them.
func (o *overload) send(ctx context.Context, key int) outcome {
	var words strings.Builder
	for range overloadWords {
		words.WriteString(strconv.FormatUint(rand.Uint64N(1e6), 36) + " ")
	}
	r := completion(words.String(), overloadTokens)
	r.header.Set("Authorization", fmt.Sprintf("Bearer key-%d", key))
	begin := time.Now()
	a, err := r.send(ctx, o.client, o.Agents[rand.IntN(len(o.Agents))].HTTP)
	x := outcome{key: key, ended: time.Now(), took: time.Since(begin), first: a.first, err: err, retry: -1}
	if a.usage != nil {
		x.tokens = a.usage.Prompt
	}
	if a.status == http.StatusTooManyRequests {
		x.refused = true
		if n, err := strconv.Atoi(a.retryAfter); err == nil {
			x.retry = n
		}
	}
	return x
}

func servedOf(all []outcome) []outcome {
	return slices.DeleteFunc(slices.Clone(all), func(x outcome) bool { return x.err != nil })
}

func refusals(all []outcome) []outcome {
	return slices.DeleteFunc(slices.Clone(all), func(x outcome) bool { return !x.refused })
}

func failures(all []outcome) []outcome {
	return slices.DeleteFunc(slices.Clone(all), func(x outcome) bool { return x.err == nil || x.refused })
}

func firstFailure(all []outcome) error {
	if len(all) == 0 {
		return nil
	}
	return all[0].err
}

// overloadSettle is left out at the beginning: the queues fill, and who is served first did not have to share.
const overloadSettle = 5 * time.Second

func settledAfter(all []outcome, during time.Duration) []outcome {
	var last time.Time
	for _, x := range all {
		if x.ended.After(last) {
			last = x.ended
		}
	}
	from := last.Add(overloadSettle - during)
	return slices.DeleteFunc(slices.Clone(all), func(x outcome) bool { return x.ended.Before(from) })
}

func perSecond(all []outcome, during time.Duration) float64 {
	return float64(len(all)) / during.Seconds()
}

func firsts(all []outcome) []time.Duration {
	var out []time.Duration
	for _, x := range all {
		if x.err == nil {
			out = append(out, x.first)
		}
	}
	return out
}

// tokensOf returns the prompt tokens served for each API key.
func tokensOf(all []outcome) []float64 {
	out := make([]float64, 3)
	for _, x := range servedOf(all) {
		out[x.key] += float64(x.tokens)
	}
	return out
}

// jain returns Jain's index of fairness: 1 when all are equal, 1/n when one has everything.
func jain(shares []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// spent is what all agents count of the time until a first token, and of that in queues.
type spent struct {
	requests, untilFirst, queued float64
}

func (s spent) since(before spent) spent {
	return spent{s.requests - before.requests, s.untilFirst - before.untilFirst, s.queued - before.queued}
}

// ttft is the mean time until a first token, without that in a queue.
func (s spent) ttft() float64 { return (s.untilFirst - s.queued) / s.requests }

func (s spent) wait() float64 { return s.queued / s.requests }

// times asks when nothing runs, so that what was counted in one place is in the other too.
func (o *overload) times(ctx context.Context) (s spent, err error) {
	if err := o.AwaitRest(ctx, overloadWait+10*time.Second); err != nil {
		return s, err
	}
	for _, a := range o.Agents {
		metrics, err := a.Metrics(ctx)
		if err != nil {
			return s, err
		}
		s.requests += metrics.Sum("kvmesh_forward_ttft_seconds")
		s.untilFirst += metrics.Total("kvmesh_forward_ttft_seconds")
		s.queued += metrics.Total("kvmesh_forward_queue_wait_seconds")
	}
	return s, nil
}
