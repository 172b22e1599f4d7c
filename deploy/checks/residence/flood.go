package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

const (
	floodTime = 20 * time.Second
	floodRate = 20_000 // BlockStored events a second: one token each
	// floodPrompt is the length of one prompt in bytes, about 2,000 tokens.
	floodPrompt = 7000
)

// checkFlood lets an SGLang with pages of one token compute 20,000 new tokens a second, next to an agent that follows it
// on a core of its own. Requests go to the engine, so that what the agent does is to follow.
func checkFlood(ctx context.Context, h *check.Harness) error {
	e := settings{
		Kind: simengine.KindSGLang, BlockTokens: 1, CapacityTokens: 200_000, Speed: 50, AnswerTokens: 1, Seed: 1,
	}
	r, err := startRig(ctx, h, plan{engine: e, events: true, replay: true, pinned: true})
	if err != nil {
		return err
	}
	defer r.close()
	n := r.nodes[0]
	if err := (&player{r: r, node: n}).awaitEvents(); err != nil {
		return err
	}
	f := flood{r: r, n: n}
	before, err := f.reading()
	if err != nil {
		return err
	}
	f.run()
	after, err := f.reading()
	if err != nil {
		return err
	}
	time.Sleep(time.Second)
	return f.figures(before, after)
}

type flood struct {
	r      *rig
	n      *node
	tokens atomic.Int64 // that the engine computed
	failed atomic.Int64
	took   time.Duration
}

// reading is what an agent has used and counted up to a moment.
type reading struct {
	at     time.Time
	cpu    time.Duration
	rss    int // bytes
	events float64
}

func (f *flood) reading() (reading, error) {
	at := time.Now()
	cpu, rss, err := usageOf(f.n.agent.PID())
	events, _ := f.r.metric(f.n, "kvmesh_engineagent_kv_events_total")
	return reading{at, cpu, rss, events}, err
}

// run sends prompts of new text at the rate.
func (f *flood) run() {
	w := newWriter(77, 1, 1)
	var wg sync.WaitGroup
	begin := time.Now()
	slots := make(chan struct{}, 16)
	for sent := 0; time.Since(begin) < floodTime && f.r.ctx.Err() == nil; sent++ {
		// the next is due when the engine should have computed what was sent
		mean := 2000.0
		if done := f.tokens.Load(); done > 0 && sent > 10 {
			mean = float64(done) / float64(sent)
		}
		due := begin.Add(time.Duration(float64(sent) * mean / (1.05 * floodRate) * float64(time.Second)))
		time.Sleep(time.Until(due))
		slots <- struct{}{}
		w.next++
		text := fmt.Sprintf("%d ", sent) + string(w.text.Append(nil, w.next, floodPrompt))
		wg.Go(func() {
			defer func() { <-slots }()
			req := request{Model: model, MaxTokens: 1, Messages: []message{{Role: "user", Content: text}}}
			a, err := f.r.chat(f.r.ctx, f.n.engineAddr, req.body(), false)
			if err != nil {
				f.failed.Add(1)
			}
			f.tokens.Add(int64(a.prompt - a.cached))
		})
	}
	wg.Wait()
	f.took = time.Since(begin)
}

func (f *flood) figures(before, after reading) error {
	seconds := after.at.Sub(before.at).Seconds()
	gaps, known := f.r.metric(f.n, "kvmesh_engineagent_gaps_total")
	s, err := f.r.status(f.n)
	if err != nil {
		return err
	}
	lost := strings.Contains(strings.Join(s.Notes, "\n"), "lost KV events")
	if lost {
		gaps++
	}
	f.r.h.Figures.Zero("flood_gaps", gaps,
		"in %.0f s; the agent, on one core, took %.3f of it and %d MB, which were %d MB before; gaps are counted: %v; notes %q",
		seconds, (after.cpu-before.cpu).Seconds()/seconds, after.rss>>20, before.rss>>20, known, s.Notes)
	f.r.h.Figures.AtLeast("flood_stored_per_second", float64(f.tokens.Load())/f.took.Seconds(), floodRate,
		"BlockStored events of one token, at speed-up 50; the agent applied %.0f events of all kinds a second; %d requests failed",
		(after.events-before.events)/seconds, f.failed.Load())
	return nil
}

// usageOf returns what a process has used of a CPU, and its memory.
func usageOf(pid int) (cpu time.Duration, rss int, err error) {
	const ticks = 100 // a second: USER_HZ is that on every Linux
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// behind the name in parentheses, which may hold anything: utime, stime and rss are fields 14, 15 and 24 of all
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const utime, stime, pages = 14 - 3, 15 - 3, 24 - 3
	if len(fields) <= pages {
		return 0, 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var n [3]int
	for i, at := range []int{utime, stime, pages} {
		if n[i], err = strconv.Atoi(fields[at]); err != nil {
			return 0, 0, err
		}
	}
	return time.Duration(n[0]+n[1]) * time.Second / ticks, n[2] * os.Getpagesize(), nil
}
