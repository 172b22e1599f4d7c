package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
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
	// restLimit is within what time a mesh must be whole and at rest after the last fault: longer than a frozen engine needs
	// to be believed again.
	restLimit = time.Minute
	// In a short run faults must come that break streams.
	shortLength, shortSeed = 8 * time.Second, 5
	// goroutineSlack is for connections that come and go by themselves.
	goroutineSlack = 12
)

var (
	seedFlag   = flag.Uint64("seed", 0, "of the faults of chaos; 0 draws one")
	lengthFlag = flag.Duration("length", 0, "how long faults go on; 0 for the check's own length")
	faultsFlag = flag.String("faults", "", "pattern of the names of faults that chaos has; empty for all")
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
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64N(1_000_000)
	}
	if h.Short {
		length, seed = shortLength, shortSeed
	}
	if *lengthFlag > 0 {
		length = *lengthFlag
	}
	return lab.InNamespaces(ctx, h, mode, fmt.Sprint(seed), length.String(), *faultsFlag)
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
	stalls  []happened      // of the whole machine
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
	mode, length, kinds := args[0], args[2], args[3]
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	if c.length, err = time.ParseDuration(length); err != nil {
		return err
	}
	only, err := regexp.Compile(kinds)
	if err != nil {
		return err
	}
	c.continues = mode == "on"
	h.Say("chaos: seed %d, %v, continue %s", seed, c.length, mode)
	if err := c.start(ctx); err != nil {
		return err
	}
	defer c.mesh.Close()
	return c.run(ctx, plan(rand.New(rand.NewPCG(seed, 0)), c.length, only))
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
		EngineFlags: func(name string) []string {
			host := slices.Index(names, name) + 1
			at := "tcp://" + c.net.Addr(host)
			return append([]string{"--kind", kindOf(host), "--speed", "0.5", "--prefill-rate", "64000", "--kv-events", at + ":5557", "--kv-replay", at + ":5657"}, chaosEngine...)
		},
	})
	return err
}

// kindOf is the software that the engine of a host imitates. Of SGLang's streams, chats do not tell their tokens: those of
// completions can be continued, also by another kind.
func kindOf(host int) string {
	if slices.Contains([]int{5, 7}, host) {
		return "sglang"
	}
	return "vllm"
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
	count := questionCount
	if c.h.Short {
		count /= 5
	}
	all, err := questions(ctx, c.h, count, chaosEngine)
	if err != nil {
		return err
	}
	ingresses := c.mesh.Agents[:chaosIngresses]
	watching, watched := context.WithCancel(ctx)
	defer watched()
	var watch sync.WaitGroup
	watch.Go(func() { c.watchMachine(watching) })
	warm := startLoad(ctx, chaosClients, chaosThink, ingresses, all)
	pause(ctx, c.warmUp())
	warm.stop()
	c.mu.Lock()
	stood := len(c.stalls) > 0
	c.mu.Unlock()
	if len(warm.failed) > 0 && !stood {
		return fmt.Errorf("%d of %d requests failed before any fault; %s", len(warm.failed), warm.asked, &warm.failed[0])
	}
	left, err := c.settle(ctx)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind before any fault: %v", left)
	}
	if err != nil {
		return err
	}
	before, err := c.goroutines(ctx)
	if err != nil {
		return err
	}
	c.h.Say("chaos: %d requests without any fault, first content p50 %.0f ms, p99 %.0f ms", warm.asked, quantile(warm.ttft, 0.5), quantile(warm.ttft, 0.99))
	l := startLoad(ctx, chaosClients, chaosThink, ingresses, all)
	c.begun = time.Now()
	c.play(ctx, faults)
	l.stop()
	watched()
	watch.Wait()
	if err := errors.Join(c.broken...); err != nil {
		return err
	}
	if err := c.answerFigures(ctx, l); err != nil {
		return err
	}
	return c.restFigures(ctx, before)
}

func (c *chaos) warmUp() time.Duration {
	if c.h.Short {
		return 2 * time.Second
	}
	return 8 * time.Second
}

// play has all faults come and go.
func (c *chaos) play(ctx context.Context, faults []planned) {
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

// watchMachine notes when this process did not run for a while: then nobody did, and agents take each other for dead.
func (c *chaos) watchMachine(ctx context.Context) {
	const period, much = 50 * time.Millisecond, time.Second
	for last := time.Now(); pause(ctx, period); last = time.Now() {
		now := time.Now()
		if late := now.Sub(last) - period; late > much {
			c.h.Say("chaos: this machine stood still for %.1f s", late.Seconds())
			c.mu.Lock()
			c.stalls = append(c.stalls, happened{from: last, to: now})
			c.mu.Unlock()
		}
	}
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

// settle waits until all agents know all engines and nothing runs, and returns what still does.
func (c *chaos) settle(ctx context.Context) (left []string, err error) {
	if err := c.mesh.AwaitWhole(restLimit); err != nil {
		return nil, err
	}
	left = c.mesh.Left(ctx, restLimit)
	return left, ctx.Err()
}

// goroutines returns how many each agent has once nothing runs; nothing in a short run, which has no time for that.
func (c *chaos) goroutines(ctx context.Context) (map[string]float64, error) {
	const idleConnections = 5 * time.Second // to engines are closed by then
	if c.h.Short {
		return nil, nil
	}
	pause(ctx, idleConnections)
	return c.mesh.Goroutines(ctx)
}

func (c *chaos) restFigures(ctx context.Context, before map[string]float64) error {
	left, err := c.settle(ctx)
	if err != nil {
		return err
	}
	f := c.h.Figures
	f.Zero(c.figure("agents_with_something_left"), float64(len(left)), "requests, queues, bookings, streams, bytes of bodies, work of the engine; %v", left)
	after, err := c.goroutines(ctx)
	if err != nil || len(after) == 0 {
		return err
	}
	most, who := 0.0, c.mesh.Agents[0].Name
	for name, n := range after {
		if grown := n - before[name]; !c.renewed[name] && grown > most {
			most, who = grown, name
		}
	}
	f.AtMost(c.figure("goroutines_grown"), most, goroutineSlack, "at %s, from %.0f, of %d agents that were not started again; both at rest", who, before[who], len(after)-len(c.renewed))
	return nil
}

func (c *chaos) figure(name string) string {
	if c.continues {
		return "chaos_" + name
	}
	return "cuts_" + name
}

// counted is what the ingresses count, which were never started again.
type counted struct{ attempts, continued map[string]float64 }

func (c *chaos) counted(ctx context.Context) (counted, error) {
	n := counted{map[string]float64{}, map[string]float64{}}
	for _, a := range c.mesh.Agents[:chaosIngresses] {
		m, err := a.Metrics(ctx)
		if err != nil {
			return n, err
		}
		for result, x := range m.By("kvmesh_forward_attempts_total", "result") {
			n.attempts[result] += x
		}
		for result, x := range m.By("kvmesh_forward_continued_total", "result") {
			n.continued[result] += x
		}
	}
	return n, nil
}

func (c *chaos) answerFigures(ctx context.Context, l *load) error {
	n, err := c.counted(ctx)
	if err != nil {
		return err
	}
	wrong, silent, elsewhere, events, told := 0, 0, 0, 0, 0
	var worst []string
	for i := range l.failed {
		f := &l.failed[i]
		excused := false
		switch {
		case errors.Is(f.err, errWrong):
			wrong++
		case errors.Is(f.err, errEvent) && f.stream && c.atVictim(f) && c.continues && !c.continuable(f):
			excused = true
			told++
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
	note := fmt.Sprintf("of %d requests of %d clients in %v, besides %d whose client left, with %d faults %v and %d times that the machine stood still; first content p50 %.0f ms, p99 %.0f ms, longest pause %.1f s; %d chats ended with an error event whose engine does not tell tokens; attempts %v, broken streams %v",
		l.asked, chaosClients, c.length, l.left, len(c.faults), kinds, len(c.stalls), quantile(l.ttft, 0.5), quantile(l.ttft, 0.99), l.gap.Seconds(), told, n.attempts, n.continued)
	f := c.h.Figures
	f.Zero(c.figure("answers_wrong"), float64(wrong), "%s", note)
	if c.continues {
		f.Zero(c.figure("client_errors"), float64(events+silent+elsewhere), "of the same; %s", firstOf(worst))
		f.AtLeast(c.figure("streams_continued"), n.continued["continued"], 1, "broken streams that another engine went on with; else nothing was shown")
		return nil
	}
	f.Zero(c.figure("silent_ends"), float64(silent), "streams that broke without an error event")
	f.Zero(c.figure("errors_elsewhere"), float64(elsewhere), "that had not begun on a victim; %d had, and ended with an error event; %s", events, firstOf(worst))
	return nil
}

// continuable reports whether another engine could have gone on with an answer.
func (c *chaos) continuable(f *failure) bool {
	for host := 1; host <= chaosHosts; host++ {
		if strings.HasPrefix(f.engine, c.net.Name(host)+"/") {
			return f.path == completionPath || kindOf(host) == "vllm"
		}
	}
	return true
}

// during reports whether it was there while a request was under way, or shortly before.
func (x *happened) during(f *failure) bool {
	return !x.from.After(f.end) && !x.to.Add(aftermath).Before(f.begin)
}

// atVictim reports whether an answer had begun on an engine that a fault befell meanwhile, or behind a link that one did. A
// machine that stands still befalls all.
func (c *chaos) atVictim(f *failure) bool {
	if f.contents > 0 && slices.ContainsFunc(c.stalls, func(x happened) bool { return x.during(f) }) {
		return true
	}
	return f.contents > 0 && slices.ContainsFunc(c.faults, func(x happened) bool {
		if !x.during(f) {
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
