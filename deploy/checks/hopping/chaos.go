package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
)

const (
	chaosHosts = 8
	// chaosIngresses is how many of them clients speak to. Their agents are never killed, stopped or unplugged: the client of
	// a mesh without a central router loses its answer with the agent that it speaks to, whatever the mesh does. All else
	// befalls them as it does the others.
	chaosIngresses = 3
	chaosClients   = 200
	chaosThink     = 2 * time.Second
	questionCount  = 300
	warmUp         = 8 * time.Second
	// restLimit is within what time a mesh must be whole and at rest after the last fault: longer than a frozen engine needs
	// to be believed again.
	restLimit = time.Minute
	// goroutineSlack is for connections that come and go by themselves.
	goroutineSlack = 12
)

var (
	seedFlag   = flag.Uint64("seed", 0, "of the faults of chaos; 0 draws one")
	lengthFlag = flag.Duration("length", 0, "how long faults go on; 0 for the check's own length")
)

// chaosEngine are flags of the engines; slow ones, so that the machine has time for what is looked at.
var chaosEngine = []string{"--answer-tokens", "60"}

// checkChaos runs chaos with continuation: no client may see anything of it.
func checkChaos(ctx context.Context, h *check.Harness) error {
	return inNamespaces(ctx, h, "on", 10*time.Minute)
}

// checkCuts runs it without: what had begun on a victim ends with an error event, and nothing else is lost.
func checkCuts(ctx context.Context, h *check.Harness) error {
	return inNamespaces(ctx, h, "off", 3*time.Minute)
}

func inNamespaces(ctx context.Context, h *check.Harness, mode string, length time.Duration) error {
	if h.Short {
		length = 25 * time.Second
	}
	if *lengthFlag > 0 {
		length = *lengthFlag
	}
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64N(1_000_000)
	}
	return lab.InNamespaces(ctx, h, mode, fmt.Sprint(seed), length.String())
}

// chaos is one run.
type chaos struct {
	h         *check.Harness
	net       *lab.Net
	mesh      *lab.Mesh
	continues bool
	length    time.Duration
	begun     time.Time

	mu      sync.Mutex
	faults  []happened
	broken  []error         // faults that could not be made or ended
	renewed map[string]bool // agents that were started again
}

// happened is a fault and when it was there.
type happened struct {
	*planned
	from, to time.Time
}

// runChaos is what runs in the namespaces.
func runChaos(ctx context.Context, h *check.Harness, args []string) error {
	c := &chaos{h: h, renewed: map[string]bool{}}
	var mode, length string
	var seed uint64
	if _, err := fmt.Sscan(strings.Join(args, " "), &mode, &seed, &length); err != nil {
		return err
	}
	var err error
	if c.length, err = time.ParseDuration(length); err != nil {
		return err
	}
	c.continues = mode == "on"
	h.Say("chaos: seed %d, %v, continue %s", seed, c.length, mode)
	if err := c.start(ctx); err != nil {
		return err
	}
	defer c.mesh.Close()
	return c.run(ctx, plan(rand.New(rand.NewPCG(seed, 0)), chaosHosts, chaosIngresses, c.length))
}

func (c *chaos) start(ctx context.Context) (err error) {
	if c.net, err = lab.NewNet(ctx, chaosHosts); err != nil {
		return err
	}
	var names []string
	for i := range chaosHosts {
		names = append(names, c.net.Name(i+1))
	}
	c.mesh, err = lab.Start(ctx, c.h, lab.Config{
		Names: names, Net: c.net, Policy: c.policy(),
		EngineFlags: func(string) []string {
			return append([]string{"--speed", "0.5", "--kv-events", "tcp://127.0.0.1:5557", "--kv-replay", "tcp://127.0.0.1:5657"}, chaosEngine...)
		},
	})
	return err
}

func (c *chaos) policy() string {
	if c.continues {
		return "classes: [{name: all, continue: true}]\n"
	}
	return ""
}

func (c *chaos) agent(host int) *lab.Agent { return c.mesh.Agents[host-1] }

// others calls do for each host but one.
func (c *chaos) others(host int, do func(x int) error) error {
	var errs []error
	for x := 1; x <= chaosHosts; x++ {
		if x != host {
			errs = append(errs, do(x))
		}
	}
	return errors.Join(errs...)
}

func (c *chaos) run(ctx context.Context, faults []planned) error {
	all, err := questions(ctx, c.h, questionCount, chaosEngine)
	if err != nil {
		return err
	}
	ingresses := c.mesh.Agents[:chaosIngresses]
	warm := startLoad(ctx, chaosClients, chaosThink, ingresses, all)
	time.Sleep(warmUp)
	warm.stop()
	before, err := c.goroutines(ctx)
	if err != nil {
		return err
	}
	if len(warm.failed) > 0 {
		return fmt.Errorf("%d of %d requests failed before any fault; %s", len(warm.failed), warm.asked, &warm.failed[0])
	}
	c.h.Say("chaos: %d requests without any fault, first content p50 %.0f ms, p99 %.0f ms", warm.asked, quantile(warm.ttft, 0.5), quantile(warm.ttft, 0.99))
	l := startLoad(ctx, chaosClients, chaosThink, ingresses, all)
	c.play(ctx, faults)
	l.stop()
	if err := errors.Join(c.broken...); err != nil {
		return err
	}
	c.answerFigures(l)
	return c.restFigures(ctx, before)
}

// play has all faults come and go.
func (c *chaos) play(ctx context.Context, faults []planned) {
	c.begun = time.Now()
	var wg sync.WaitGroup
	for i := range faults {
		p := &faults[i]
		if !pause(ctx, time.Until(c.begun.Add(p.at))) {
			break
		}
		wg.Go(func() { c.fault(ctx, p) })
	}
	wg.Wait()
	pause(ctx, time.Until(c.begun.Add(c.length)))
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// fault has one fault come and go.
func (c *chaos) fault(ctx context.Context, p *planned) {
	f := happened{planned: p, from: time.Now()}
	c.h.Say("chaos: %5.1f s: %s at %v, for %.1f s", f.from.Sub(c.begun).Seconds(), p.kind.name, p.hosts, p.lasts.Seconds())
	err := p.kind.begin(ctx, c, p.hosts)
	pause(ctx, p.lasts)
	err = errors.Join(err, p.kind.end(ctx, c, p.hosts))
	f.to = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, f)
	if p.kind.renews {
		c.renewed[c.agent(p.hosts[0]).Name] = true
	}
	if err != nil && ctx.Err() == nil {
		c.broken = append(c.broken, fmt.Errorf("%s at %v: %w", p.kind.name, p.hosts, err))
	}
}

// goroutines returns how many each agent has when nothing runs.
func (c *chaos) goroutines(ctx context.Context) (map[string]float64, error) {
	if err := c.mesh.AwaitWhole(restLimit); err != nil {
		return nil, err
	}
	if err := c.mesh.AwaitRest(ctx, restLimit); err != nil {
		return nil, err
	}
	const idleConnections = 6 * time.Second // to engines are closed by then
	pause(ctx, idleConnections)
	return c.mesh.Goroutines(ctx)
}

func (c *chaos) restFigures(ctx context.Context, before map[string]float64) error {
	after, err := c.goroutines(ctx)
	if err != nil {
		return err
	}
	most, who := 0.0, "none"
	for name, n := range after {
		if grown := n - before[name]; !c.renewed[name] && grown > most {
			most, who = grown, name
		}
	}
	c.h.Figures.Zero(c.figure("left_behind"), 0, "requests, bookings, streams, bytes of bodies and work of engines, on all agents; else this run would not have ended well")
	c.h.Figures.AtMost(c.figure("goroutines_grown"), most, goroutineSlack, "at %s, from %.0f, of %d agents that were not started again; both at rest", who, before[who], len(after)-len(c.renewed))
	return nil
}

func (c *chaos) figure(name string) string {
	if c.continues {
		return "chaos_" + name
	}
	return "cuts_" + name
}

func (c *chaos) answerFigures(l *load) {
	wrong, silent, elsewhere, events := 0, 0, 0, 0
	var worst []string
	for i := range l.failed {
		f := &l.failed[i]
		excused := false
		switch {
		case errors.Is(f.err, errWrong):
			wrong++
		case errors.Is(f.err, errEvent) && f.stream && c.atVictim(f):
			excused = !c.continues
			events++
		case f.contents > 0 && !errors.Is(f.err, errEvent):
			silent++
		default:
			elsewhere++
		}
		if !excused {
			worst = append(worst, f.String())
			c.h.Say("chaos: %.1f s: %s", f.begin.Sub(c.begun).Seconds(), f)
		}
	}
	kinds := map[string]int{}
	for _, f := range c.faults {
		kinds[f.kind.name]++
	}
	note := fmt.Sprintf("of %d requests of %d clients in %v with %d faults %v; first content p50 %.0f ms, p99 %.0f ms, longest pause %.1f s; %s",
		l.asked, chaosClients, c.length, len(c.faults), kinds, quantile(l.ttft, 0.5), quantile(l.ttft, 0.99), l.gap.Seconds(), firstOf(worst))
	f := c.h.Figures
	f.Zero(c.figure("answers_wrong"), float64(wrong), "%s", note)
	if c.continues {
		f.Zero(c.figure("client_errors"), float64(events+silent+elsewhere), "%s", note)
		return
	}
	f.Zero(c.figure("silent_ends"), float64(silent), "streams that broke without an error event")
	f.Zero(c.figure("errors_elsewhere"), float64(elsewhere), "that had not begun on a victim; %d had, and ended with an error event", events)
}

// atVictim reports whether an answer had begun on an engine that a fault befell meanwhile, or behind a link that one did.
func (c *chaos) atVictim(f *failure) bool {
	return f.contents > 0 && slices.ContainsFunc(c.faults, func(x happened) bool {
		if x.from.After(f.end) || x.to.Add(aftermath).Before(f.begin) {
			return false
		}
		at := func(host int) bool { return strings.HasPrefix(f.engine, c.net.Name(host)+"/") }
		by := func(host int) bool { return f.ingress == c.net.Name(host) }
		if x.kind.link {
			return at(x.hosts[0]) && by(x.hosts[1]) || at(x.hosts[1]) && by(x.hosts[0])
		}
		return at(x.hosts[0]) || x.kind.network && by(x.hosts[0])
	})
}

// aftermath is how long after its end a fault may still show.
const aftermath = 5 * time.Second

func firstOf(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return "the first: " + words[0]
}
