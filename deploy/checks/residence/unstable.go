package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

const (
	unstableRequests = 600
	unstablePace     = 40 * time.Millisecond
	unstableSpeed    = 2
	// unstableBound is what two runs of equal traffic differ by.
	unstableBound = 1.15
)

// checkUnstable serves a model that puts system text and tools into the last user message, so that no turn shares its
// beginning with the one before. The same conversations are played twice at three engines: as they are, and each request
// with an argument of its own for the template, which makes nothing of it: engines cache as before, but no two requests
// share a prompt key, and load alone decides.
func checkUnstable(ctx context.Context, h *check.Harness) error {
	plain, err := unstableLeg(ctx, h, false)
	if err != nil {
		return err
	}
	apart, err := unstableLeg(ctx, h, true)
	if err != nil {
		return err
	}
	h.Figures.AtMost("unstable_ttft_mean_ratio", mean(plain.ttft)/mean(apart.ttft), unstableBound,
		"mean TTFT %.3f s, and %.3f s where keys differ and load alone decides; speed-up %d, %d requests each, "+
			"%d failed; cached %.3f and %.3f of the prompt tokens; by engine %v and %v",
		mean(plain.ttft), mean(apart.ttft), unstableSpeed, len(plain.ttft), plain.failed+apart.failed,
		plain.share(), apart.share(), plain.engines, apart.engines)
	h.Figures.AtLeast("unstable_shown", float64(plain.shown), 1, "agents of 3 whose notes say that the model's layout is unstable: %q", plain.notes)
	return nil
}

// leg is one run of that traffic.
type leg struct {
	r     *rig
	apart bool
	mix   *mix

	mu             sync.Mutex
	ttft           []float64 // seconds
	prompt, cached int
	failed, shown  int
	engines        map[string]int
	notes          []string
}

func (l *leg) share() float64 { return float64(l.cached) / float64(max(l.prompt, 1)) }

func unstableLeg(ctx context.Context, h *check.Harness, apart bool) (*leg, error) {
	e := settings{
		Kind: simengine.KindVLLM, Template: simengine.TemplateToolsInLastUser, BlockTokens: 16, CapacityTokens: 400_000,
		Speed: unstableSpeed, AnswerTokens: 40, Seed: 3,
	}
	r, err := startRig(ctx, h, plan{agents: 3, engine: e, events: true, replay: true})
	if err != nil {
		return nil, err
	}
	defer r.close()
	l := &leg{r: r, apart: apart, engines: map[string]int{}}
	if l.mix, err = newMix(h, 40, 0, 10_000, 1); err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range unstableRequests {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * unstablePace)))
		c := l.mix.take()
		wg.Go(func() { l.send(c, i) })
	}
	wg.Wait()
	return l, l.look()
}

func (l *leg) send(c *conversation, i int) {
	c.TemplateArgs = nil
	if l.apart {
		c.TemplateArgs = map[string]any{"turn": i}
	}
	n := l.r.nodes[i%len(l.r.nodes)]
	a, err := l.r.stream(n.http, &c.request)
	if err != nil {
		l.mix.put(c, nil)
	} else {
		l.mix.put(c, &a)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed++
		return
	}
	l.ttft = append(l.ttft, a.ttft.Seconds())
	l.engines[a.engine]++
	l.prompt += a.prompt
	l.cached += a.cached
}

// look reads what agents say of the layout.
func (l *leg) look() error {
	for _, n := range l.r.nodes {
		s, err := l.r.status(n)
		if err != nil {
			return err
		}
		for _, note := range s.Notes {
			if strings.Contains(note, "renders a conversation anew") {
				l.shown++
				break
			}
		}
		l.notes = append(l.notes, s.Notes...)
	}
	return nil
}
