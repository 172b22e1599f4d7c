package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

const (
	// churnCapacity holds some of the conversations that go on, and not all: evictions are constant.
	churnCapacity = 150_000
	churnSpeed    = 20
	churnBlock    = 16
	// churnPace leaves what is learned its share of the agent's time: a real engine of this speed would answer a few
	// requests a second.
	churnPace    = 5 * time.Millisecond
	eventsBound  = 0.02
	mirrorBound  = 0.08
	churnSeed    = 20
	compareEvery = 1000
	comparePairs = 50
)

// run is one round of traffic at one engine.
type run struct {
	name    string
	plan    plan
	bound   float64 // of the prediction's error
	compare bool    // what the agent knows with what the engine holds
	streams float64 // share of requests
}

// churnRuns are rounds of the same traffic, at engines whose caches are too small for it: each template with KV events, an
// engine without, one whose answers bring no token ids, and two with a second, sparse cache group.
func churnRuns() []run {
	var runs []run
	for _, t := range []string{
		simengine.TemplatePlain, simengine.TemplateToolsFirst, simengine.TemplateDropsThoughts,
		simengine.TemplateToolsInLastUser, simengine.TemplateDated,
	} {
		runs = append(runs, run{
			name: "churn_" + strings.ReplaceAll(t, "-", "_"), bound: eventsBound, compare: true, streams: 0.5,
			plan: plan{engine: churnEngine(t), events: true, replay: true},
		})
	}
	runs = append(runs, run{
		name: "churn_mirror", bound: mirrorBound, streams: 0.5,
		plan: plan{engine: churnEngine(simengine.TemplatePlain), option: "kv-events=off"},
	})
	sglang := churnEngine(simengine.TemplatePlain)
	sglang.Kind = simengine.KindSGLang
	runs = append(runs, run{
		name: "churn_sglang_streams", bound: mirrorBound, streams: 1, plan: plan{engine: sglang, events: true, replay: true},
	})
	for _, g := range []simengine.Group{{Kind: simengine.GroupSliding, Window: 512}, {Kind: simengine.GroupMamba}} {
		e := churnEngine(simengine.TemplatePlain)
		e.Groups = []simengine.Group{{Kind: simengine.GroupFull}, g}
		runs = append(runs, run{
			name: "groups_" + g.Kind, bound: eventsBound, compare: true, streams: 0.5,
			plan: plan{engine: e, events: true, replay: true},
		})
	}
	return runs
}

func churnEngine(template string) settings {
	return settings{
		Kind: simengine.KindVLLM, Template: template, BlockTokens: churnBlock, CapacityTokens: churnCapacity,
		Speed: churnSpeed, AnswerTokens: 40, RetokenizeRate: 0.05, Seed: 1,
	}
}

// play plays the traffic to its end.
func (c *run) play(ctx context.Context, h *check.Harness) error {
	requests, chats, every := 5000, 5000, compareEvery
	if h.Short {
		requests, chats, every = 300, 150, 100
	}
	m, err := newMix(h, churnSeed, requests, chats, c.streams)
	if err != nil {
		return err
	}
	r, err := startRig(ctx, h, c.plan)
	if err != nil {
		return err
	}
	defer r.close()
	p := &player{r: r, node: r.nodes[0], mix: m, pace: churnPace}
	for name, to := range map[string]**json.Encoder{"requests": &p.log, "compared": &p.compared} {
		f, err := os.Create(filepath.Join(r.dir, name+".jsonl"))
		if err != nil {
			return err
		}
		defer f.Close()
		*to = json.NewEncoder(f)
	}
	if c.plan.events {
		if err := p.awaitEvents(); err != nil {
			return err
		}
	}
	sums := comparison{block: c.plan.engine.BlockTokens}
	rng := rand.New(rand.NewPCG(churnSeed, 13))
	for m.left() {
		if err := p.play(every); err != nil {
			return err
		}
		if c.compare {
			time.Sleep(quiet)
			if err := p.compareAll(&sums, min(comparePairs, len(p.recent)), rng); err != nil {
				return err
			}
		}
		h.Say("%s: %s; mean error %.4f; ends wrong %d of %d, past one block %d of %d", c.name, m, mean(p.errors), sums.wrong,
			sums.ends, sums.parted.many+sums.elsewhere.many, sums.parted.n+sums.elsewhere.n)
	}
	p.figures(c.name, c.bound)
	if c.compare {
		sums.figures(p, c.name)
	}
	return p.learning(c.name)
}

// quiet is how long KV events may be on the way once nothing runs.
const quiet = 200 * time.Millisecond

// learning says in words what the agent asked for and learned.
func (p *player) learning(name string) error {
	var parts []string
	for _, m := range []string{
		"kvmesh_engineagent_lessons_total", "kvmesh_engineagent_kv_events_total", "kvmesh_engineagent_restarts_total",
	} {
		if v, ok := p.r.metric(p.node, m); ok {
			parts = append(parts, fmt.Sprintf("%s %.0f", m, v))
		}
	}
	s, err := p.r.status(p.node)
	p.r.h.Say("%s: speed-up %d; %s; notes %q", name, churnSpeed, strings.Join(parts, ", "), s.Notes)
	return err
}

// awaitEvents sends a few prompts until the agent knows one of them by KV events.
func (p *player) awaitEvents() error {
	w := newWriter(99, 1, 4)
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		req := request{Model: model, MaxTokens: 2, Messages: []message{{Role: "user", Content: w.prose(4000)}}}
		if _, err := p.r.chat(p.r.ctx, p.node.http, req.body(), false); err != nil {
			return err
		}
		time.Sleep(quiet)
		if e, err := p.r.estimate(p.node, req.body()); err != nil || e.Source == "events" {
			return err
		}
	}
	s, _ := p.r.status(p.node) // only for its notes
	return fmt.Errorf("the agent follows no KV events after 30 s: notes %q", s.Notes)
}
