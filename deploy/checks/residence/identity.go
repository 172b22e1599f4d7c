package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// checkIdentity sends the same streams through an agent that learns and to an engine alone: two engines of one seed. What
// clients read must be the same, byte for byte.
func checkIdentity(ctx context.Context, h *check.Harness) error {
	kinds, streams := []string{simengine.KindVLLM, simengine.KindSGLang, simengine.KindTRTLLM, kindOther}, 1000
	if h.Short {
		kinds, streams = kinds[:1], 100
	}
	for _, kind := range kinds {
		total := identity{}
		// the first has thoughts, and a parser that swallows tokens for them
		for i, template := range []string{simengine.TemplateDropsThoughts, simengine.TemplatePlain} {
			if err := total.compare(ctx, h, kind, template, uint64(i), streams/2); err != nil {
				return fmt.Errorf("%s, %s: %w", kind, template, err)
			}
		}
		h.Figures.Zero("identity_"+kind+"_different", float64(total.different),
			"of %d streamed answers, %d with four choices, %d with tools, %d asked for usage; %.0f prompts were learned of%s",
			total.all, total.choices, total.tools, total.usage, total.lessons, total.first)
		if kind == simengine.KindVLLM {
			h.Figures.AtLeast("identity_"+kind+"_lessons", total.lessons, float64(total.all)/4, "prompts that were learned of in those streams")
		}
	}
	return nil
}

// kindOther is an engine that is none of those that are known by name.
const kindOther = "other"

// identity sums up streams of one kind of engine.
type identity struct {
	all, choices, tools, usage, different int
	lessons                               float64
	first                                 string // of those that differ
}

func (s *identity) compare(ctx context.Context, h *check.Harness, kind, template string, seed uint64, streams int) error {
	e := settings{Kind: kind, Template: template, BlockTokens: 16, CapacityTokens: 60_000, Speed: 200, AnswerTokens: 16, Seed: 5}
	events := kind == simengine.KindVLLM || kind == simengine.KindSGLang
	learning, err := startRig(ctx, h, plan{engine: e, events: events, replay: true})
	if err != nil {
		return err
	}
	defer learning.close()
	alone, err := startRig(ctx, h, plan{engine: e, option: "kv-events=off"})
	if err != nil {
		return err
	}
	defer alone.close()
	m, err := newMix(h, 30+seed, 0, streams, 1)
	if err != nil {
		return err
	}
	for i := range streams {
		c := m.take()
		shape(&c.request, i)
		got, err := learning.stream(learning.nodes[0].http, &c.request)
		if err != nil {
			return err
		}
		want, err := alone.stream(alone.nodes[0].engineAddr, &c.request)
		if err != nil {
			return err
		}
		s.add(&c.request, got.raw, want.raw)
		m.put(c, &got)
	}
	lessons, _ := learning.metric(learning.nodes[0], "kvmesh_engineagent_lessons_total")
	s.lessons += lessons
	return nil
}

func (r *rig) stream(addr string, req *request) (answer, error) {
	return r.chat(r.ctx, addr, req.body(), true)
}

// shape makes every fifth request one of four choices, and every second one that does not ask for usage.
func shape(r *request, i int) {
	r.Stream, r.N, r.MaxTokens = true, 0, min(r.MaxTokens, 24)
	if i%5 == 0 {
		r.N = 4
	}
	r.StreamOptions = nil
	if i%2 == 0 {
		r.StreamOptions = &streamOptions{IncludeUsage: true}
	}
}

func (s *identity) add(r *request, got, want []byte) {
	s.all++
	if r.N > 1 {
		s.choices++
	}
	if len(r.Tools) > 0 {
		s.tools++
	}
	if r.StreamOptions != nil {
		s.usage++
	}
	a, b := normal(got), normal(want)
	if bytes.Equal(a, b) {
		return
	}
	s.different++
	if s.first == "" {
		at := 0
		for at < min(len(a), len(b)) && a[at] == b[at] {
			at++
		}
		cut := func(x []byte) string {
			return strings.ReplaceAll(string(x[max(0, at-60):min(len(x), at+100)]), "\n", "|")
		}
		s.first = fmt.Sprintf("; the first differs at byte %d of %d: through the agent %q, from the engine %q", at, len(b), cut(a), cut(b))
	}
}

var (
	varying = regexp.MustCompile(`"(id|created|request_id|timings)":("[^"]*"|\d+|\{[^}]*\})`)
	choice  = regexp.MustCompile(`"choices":\[\{[^{]*"index":(\d+)`)
)

// normal takes out what differs between any two answers: ids and times, and in which order the choices of one answer take
// turns, which is the engine's.
func normal(stream []byte) []byte {
	events := bytes.SplitAfter(varying.ReplaceAll(stream, []byte(`"$1":0`)), []byte("\n\n"))
	turn := func(event []byte) string {
		if m := choice.FindSubmatch(event); m != nil {
			return string(m[1])
		}
		return "last" // usage and [DONE]
	}
	slices.SortStableFunc(events, func(a, b []byte) int { return strings.Compare(turn(a), turn(b)) })
	return bytes.Join(events, nil)
}
