package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

const (
	carryBytes  = 400_000
	carryBound  = 4 * time.Millisecond
	eventBound  = 60 * time.Microsecond
	pacedAtOnce = 16

	decisionBound = 1.0 // ms
)

// maxRunning is how many requests the engine takes at once: more than any part of these checks has.
const maxRunning = 8192

// startHop starts two agents: what the first is asked for has to go to the engine beside the second.
func startHop(ctx context.Context, h *check.Harness, agentFlags, engineFlags []string) (*lab.Mesh, error) {
	return lab.Start(ctx, h, lab.Config{
		Names:         []string{"ingress", "owner"},
		EngineOptions: fmt.Sprint("max-running=", maxRunning),
		EngineFlags: func(name string) []string {
			if name == "ingress" {
				return []string{"--model", "another"}
			}
			return engineFlags
		},
		AgentFlags: func(string) []string { return agentFlags },
	})
}

// checkCarry asks in turns for prompts of 400 kB and of next to nothing.
func checkCarry(ctx context.Context, h *check.Harness) error {
	m, err := startHop(ctx, h, nil, []string{"--kind", "other", "--speed", "10000", "--capacity-tokens", "100000000"})
	if err != nil {
		return err
	}
	defer m.Close()
	idle, err := idleCPU(m, 3*time.Second)
	if err != nil {
		return err
	}
	rounds, n := 5, 40
	if h.Short {
		rounds, n = 2, 20
	}
	var large, small []time.Duration
	client := newClient()
	rng := rand.New(rand.NewPCG(1, 1))
	for range rounds {
		for _, x := range []struct {
			size int
			to   *[]time.Duration
		}{{carryBytes, &large}, {100, &small}} {
			var requests []request
			for range n {
				requests = append(requests, chat("", words(rng, x.size), 1))
			}
			cpu, err := cpuSpent(m, idle, func() error { return inTurn(ctx, client, m.Agents[0].HTTP, requests) })
			if err != nil {
				return err
			}
			*x.to = append(*x.to, cpu/time.Duration(n))
		}
	}
	path, err := decisionPath(ctx, h)
	if err != nil {
		return err
	}
	path = min(path, decisionBound) // on a busy machine a benchmark waits too
	whole := quantile(large, 0.5)
	h.Figures.AtMost("carry_400kb_cpu_ms", whole-path, float64(carryBound.Milliseconds()),
		"both agents, user and system: %.2f for a whole request of %d bytes with an answer of one token, the median of %d runs of %d, less %.2f for parse, keys and decision, as their benchmark says; with 100 bytes instead %.2f in all; idle %.2f %% of a core subtracted",
		whole, carryBytes, rounds, n, path, quantile(small, 0.5), idle*100)
	return nil
}

// decisionPath returns what the ingress does with a prompt of 400 kB before it sends it, in ms: it has a bound of its own.
func decisionPath(ctx context.Context, h *check.Harness) (float64, error) {
	const name = "BenchmarkDecisionPath/engines=64"
	out, err := check.Command{Dir: h.Root, Args: []string{
		"go", "test", "-run", "^$", "-bench", "^" + name + "$", "-benchtime", "0.3s", "-count=3", "./forward",
	}}.Run(ctx)
	if err != nil {
		return 0, err
	}
	times, err := check.BestTimes(out)
	if err == nil && times[name] == 0 {
		err = fmt.Errorf("%s did not run", name)
	}
	return times[name] / float64(time.Millisecond), err
}

// inTurn sends requests one after the other.
func inTurn(ctx context.Context, client *http.Client, addr string, requests []request) error {
	for i := range requests {
		if _, err := requests[i].send(ctx, client, addr); err != nil {
			return err
		}
	}
	return nil
}

// words returns n bytes of text that begins like no other.
func words(rng *rand.Rand, n int) string {
	common := strings.Fields("about account across after again against agreement almost along already although always among amount " +
		"analysis another answer appear area argue around arrive article assume attack attention author available balance because")
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(common[rng.IntN(len(common))])
		b.WriteByte(' ')
	}
	return b.String()[:n]
}

// checkEvents has 16 streams run for a while, with an event each every 20 ms.
func checkEvents(ctx context.Context, h *check.Harness) error {
	m, err := startHop(ctx, h, nil, pacedEngine)
	if err != nil {
		return err
	}
	defer m.Close()
	idle, err := idleCPU(m, 3*time.Second)
	if err != nil {
		return err
	}
	rounds, tokens := 5, 400
	if h.Short {
		rounds, tokens = 2, 200
	}
	var each []time.Duration
	for range rounds {
		var cpu [2]time.Duration
		var p [2]paced
		for i, n := range []int{tokens, tokens / 20} {
			cpu[i], err = cpuSpent(m, idle, func() (err error) {
				p[i], err = playPaced(ctx, m.Agents[0].HTTP, pacedAtOnce, n)
				return err
			})
			if err != nil {
				return err
			}
		}
		each = append(each, (cpu[0]-cpu[1])/time.Duration(p[0].events-p[1].events))
	}
	h.Figures.AtMost("event_cpu_us", quantile(each, 0.5)*1000, float64(eventBound.Microseconds()),
		"both agents, user and system, for one event of %d streams, of which the engine sends one each every 20 ms or so: what streams of %d tokens cost more than those of %d, median of %d runs, %.0f to %.0f; idle %.2f %% of a core subtracted",
		pacedAtOnce, tokens, tokens/20, rounds, quantile(each, 0)*1000, quantile(each, 1)*1000, idle*100)
	return nil
}

// pacedEngine are the flags of an engine whose answers are long and whose prefill is no matter.
var pacedEngine = []string{"--answer-tokens", "100000", "--prefill-rate", "1000000"}

// paced is what the clients of streams that run side by side saw.
type paced struct {
	events      int
	first, gaps []time.Duration
}

// playPaced reads streams side by side to their ends.
func playPaced(ctx context.Context, addr string, atOnce, tokens int) (paced, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var p paced
	var errs []error
	client := newClient()
	defer client.CloseIdleConnections()
	for i := range atOnce {
		wg.Go(func() {
			r := chat("", fmt.Sprintf("%d: say %x", i, rand.Uint64()), tokens)
			a, err := r.send(ctx, client, addr)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			p.events += a.contents
			p.first, p.gaps = append(p.first, a.first), append(p.gaps, a.gaps...)
		})
	}
	wg.Wait()
	return p, errors.Join(errs...)
}

// checkDelay compares streams by the mesh with streams of the engine itself, in turns.
func checkDelay(ctx context.Context, h *check.Harness) error {
	m, err := startHop(ctx, h, nil, pacedEngine)
	if err != nil {
		return err
	}
	defer m.Close()
	for _, atOnce := range []int{1, 16, 128} {
		rounds := max(2, 32/atOnce)
		if h.Short {
			rounds = 2
		}
		var direct, hop paced
		for range rounds {
			for _, x := range []struct {
				addr string
				to   *paced
			}{{m.Agents[1].Engine, &direct}, {m.Agents[0].HTTP, &hop}} {
				p, err := playPaced(ctx, x.addr, atOnce, 50)
				if err != nil {
					return err
				}
				x.to.first, x.to.gaps = append(x.to.first, p.first...), append(x.to.gaps, p.gaps...)
			}
		}
		added := func(q float64) float64 { return quantile(hop.first, q) - quantile(direct.first, q) }
		h.Figures.AtMost(fmt.Sprintf("added_ttft_p50_ms_%d_streams", atOnce), added(0.5), float64(addedTTFTBound.Milliseconds()),
			"p99 %+.2f; of the engine itself %.2f and %.2f. Time between events, p50 and p99: %.2f and %.2f, of the engine itself %.2f and %.2f",
			added(0.99), quantile(direct.first, 0.5), quantile(direct.first, 0.99),
			quantile(hop.gaps, 0.5), quantile(hop.gaps, 0.99), quantile(direct.gaps, 0.5), quantile(direct.gaps, 0.99))
	}
	return nil
}

// addedTTFTBound is what a request may wait longer for its first token than without agents: two probes' time and two
// processes that wake up.
const addedTTFTBound = 10 * time.Millisecond
