package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// atOnce is how many requests are sent at once: enough that prompts meet in the engine, few enough that what is
// predicted just before a request is rarely overtaken by another.
const atOnce = 6

// player sends a mix through an agent and compares, for every request, what the agent believed just before it with what
// the engine then reports.
type player struct {
	r    *rig
	node *node
	mix  *mix
	pace time.Duration // least time between two requests; 0 for none
	lone bool          // one request at a time

	mu       sync.Mutex
	due      time.Time
	recent   []request // the last ones, as they were sent
	errors   []float64 // |predicted − reported| as a share of the prompt
	warm     []float64 // of those, where anything was predicted or reported
	over     []float64 // predicted − reported in tokens, where above 0
	prompt   int64     // tokens
	cached   int64
	expected int64
	sources  map[string]int
	failures []error
	began    time.Time
	took     time.Duration
	log      *json.Encoder // of what was predicted and reported, for whoever looks into a figure; without any text
	compared *json.Encoder // the same of comparisons
}

// logged is one line of that log.
type logged struct {
	Messages int
	Tools    int
	Stream   bool
	Estimate estimate
	Prompt   int
	Cached   int
}

// maxRecent is how many requests are remembered, to be compared later.
const maxRecent = 60

// play sends at most n requests and waits for their answers.
func (p *player) play(n int) error {
	if p.sources == nil {
		p.sources = map[string]int{}
	}
	p.began = time.Now()
	var wg sync.WaitGroup
	left := make(chan struct{}, n)
	for range n {
		left <- struct{}{}
	}
	close(left)
	lanes := atOnce
	if p.lone {
		lanes = 1
	}
	for range lanes {
		wg.Go(func() {
			for range left {
				p.wait()
				c := p.mix.take()
				if c == nil || p.r.ctx.Err() != nil {
					return
				}
				a, err := p.one(&c.request)
				if err != nil {
					p.mix.put(c, nil)
					p.fail(err)
					continue
				}
				p.mix.put(c, &a)
			}
		})
	}
	wg.Wait()
	p.took += time.Since(p.began)
	if len(p.failures) > n/100 {
		return fmt.Errorf("%d requests failed, the first: %w", len(p.failures), p.failures[0])
	}
	return p.r.ctx.Err()
}

// wait keeps to the pace.
func (p *player) wait() {
	p.mu.Lock()
	now := time.Now()
	p.due = maxTime(p.due.Add(p.pace), now.Add(-10*p.pace))
	d := p.due.Sub(now)
	p.mu.Unlock()
	if p.pace > 0 && d > 0 {
		time.Sleep(d)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (p *player) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = append(p.failures, err)
}

// one sends one request.
func (p *player) one(req *request) (answer, error) {
	body := req.body()
	e, err := p.r.estimate(p.node, body)
	if err != nil {
		return answer{}, err
	}
	a, err := p.r.chat(p.r.ctx, p.node.http, body, req.Stream)
	if err != nil {
		return a, err
	}
	if !a.usage || a.prompt == 0 {
		return a, fmt.Errorf("answer without usage")
	}
	p.note(req, e, a)
	return a, nil
}

func (p *player) note(req *request, e estimate, a answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := *req
	sent.Messages = slices.Clone(req.Messages)
	p.recent = append(p.recent, sent)
	if len(p.recent) > maxRecent {
		p.recent = p.recent[1:]
	}
	if p.log != nil {
		_ = p.log.Encode(logged{len(req.Messages), len(req.Tools), req.Stream, e, a.prompt, a.cached})
	}
	off := math.Abs(float64(e.Overlap-a.cached)) / float64(a.prompt)
	p.errors = append(p.errors, off)
	if e.Overlap > 0 || a.cached > 0 {
		p.warm = append(p.warm, off)
	}
	if e.Overlap > a.cached {
		p.over = append(p.over, float64(e.Overlap-a.cached)/float64(a.prompt))
	}
	p.prompt += int64(a.prompt)
	p.cached += int64(a.cached)
	p.expected += int64(e.Overlap)
	p.sources[e.Source]++
}

// figures tells how far predictions were off.
func (p *player) figures(name string, bound float64) {
	slices.Sort(p.errors)
	slices.Sort(p.warm)
	p.r.h.Figures.AtMost(name+"_prediction_error_mean", mean(p.errors), bound,
		"|predicted − reported cached tokens| ÷ prompt tokens, p95 %.4f; where either is above 0 (%d requests) mean %.4f, p95 %.4f; "+
			"too high in %d requests, by %.4f of the prompt; cached %.3f and predicted %.3f of all prompt tokens; by %v; %s; %.0f requests/s; %d failed",
		quantile(p.errors, 0.95), len(p.warm), mean(p.warm), quantile(p.warm, 0.95), len(p.over), mean(p.over),
		float64(p.cached)/float64(max(p.prompt, 1)), float64(p.expected)/float64(max(p.prompt, 1)), p.sources, p.mix,
		float64(len(p.errors))/p.took.Seconds(), len(p.failures))
}

// mean returns NaN for no values: a figure that falls short.
func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// quantile takes sorted values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
