package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/internal/workload"
)

// Workloads returns the names of the workloads.
func Workloads() []string {
	return []string{"conversation", "synthetic", "mixture", "coding-agent", "sessions"}
}

// traceBlocks is an engine's cache for recorded traffic: 2 M tokens, a 32B model on two H100.
const (
	traceBlockTokens = 512
	traceBlocks      = 4000
)

// CacheTokens is the size of an engine's cache for recorded conversations, unless the run says otherwise.
const CacheTokens = traceBlocks * traceBlockTokens

// trafficOf prepares the workload of c and puts its own values where c has none.
func trafficOf(c *Config) (*traffic, error) {
	t := &traffic{Machine: MachineFIFO, blockTokens: traceBlockTokens, cacheBlocks: traceBlocks, covered: true}
	switch c.Workload {
	case "conversation":
		t.span, t.warmUp = 1200*time.Second, 360*time.Second
		return t, t.replay(c, false)
	case "synthetic":
		t.span, t.warmUp = 600*time.Second, 180*time.Second
		if c.Trace == nil {
			return nil, errors.New("the synthetic workload needs its trace")
		}
		return t, t.replay(c, false)
	case "mixture":
		t.span, t.warmUp = 900*time.Second, 270*time.Second
		return t, t.replay(c, true)
	case "coding-agent":
		t.span, t.warmUp, t.cacheBlocks = 900*time.Second, 270*time.Second, codingBlocks
		return t, t.coding(c)
	case "sessions":
		return t, t.chat(c)
	}
	return nil, fmt.Errorf("there is no workload %q; there are %v", c.Workload, Workloads())
}

// replay makes t open-loop traffic, with generated streams mixed in or not.
func (t *traffic) replay(c *Config, mixed bool) error {
	c.settle(t)
	trace := c.Trace
	if trace == nil {
		slice, err := workload.ConversationSlice()
		if err != nil {
			return err
		}
		trace = &slice
	}
	if trace.BlockTokens != traceBlockTokens || len(trace.Requests) == 0 {
		return fmt.Errorf("a trace of %d requests in blocks of %d tokens: there must be some, and %d tokens a block",
			len(trace.Requests), trace.BlockTokens, traceBlockTokens)
	}
	p := newReplay(trace, c)
	if mixed {
		p.mixIn(trace, c)
	}
	if c.Burst > 0 {
		p.bunch(c.Burst)
	}
	t.recorded = p
	t.open = func(w *world) source { return &player{replay: p, w: w} }
	return nil
}

func (t *traffic) coding(c *Config) error {
	c.settle(t)
	all, err := codingSessionsOf(c.Sessions)
	t.open = func(w *world) source { return newCoder(w, all) }
	return err
}

func (t *traffic) chat(c *Config) error {
	t.Machine, t.blockTokens, t.cacheBlocks, t.covered = MachineStep, chatBlockTokens, chatCacheBlocks, false
	t.span, t.warmUp = 180*time.Second, 30*time.Second
	c.settle(t)
	shape, ok := chatShapes[c.Shape]
	if !ok {
		return fmt.Errorf("there is no shape %q of sessions; there are two and six", c.Shape)
	}
	t.open = func(w *world) source { return newChatter(w, shape) }
	return nil
}

// settle puts the workload's values where c has none.
func (c *Config) settle(t *traffic) {
	c.Span, c.CacheBlocks = cmp.Or(c.Span, t.span), cmp.Or(c.CacheBlocks, t.cacheBlocks)
	c.WarmUp = cmp.Or(c.WarmUp, min(t.warmUp, c.Span*3/10))
	c.Ingresses = cmp.Or(c.Ingresses, c.Engines)
}
