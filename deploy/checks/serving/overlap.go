package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	overlapPromptBytes = 20_000
	// overlapPause is from the first request to the next: a digest period of a small mesh is 0.5 s.
	overlapPause = 1500 * time.Millisecond
	overlapBound = 0.05
)

// textKind is a kind of system message. Kinds differ in bytes per token, which a mesh must learn from the engines'
// answers: each kind gets a mesh of its own that has seen nothing else.
type textKind struct {
	name   string
	text   func(rng *rand.Rand, n int) string
	rounds int
}

func (h *harness) textKinds() []textKind {
	kinds := []textKind{{"prose", prose, 6}, {"dense", dense, 2}, {"repeated", repeated, 2}}
	if h.Short {
		for i := range kinds {
			kinds[i].rounds /= 2
		}
	}
	return kinds
}

// checkOverlap sends prompts with the same system message through different agents: the engine that has it must answer,
// and the mesh must have known how much of it that engine has.
func checkOverlap(ctx context.Context, h *harness) error {
	for _, kind := range h.textKinds() {
		if err := h.overlapOf(ctx, kind); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	return nil
}

func (h *harness) overlapOf(ctx context.Context, kind textKind) error {
	m, err := startMesh(ctx, h, []string{"a", "b", "c"})
	if err != nil {
		return err
	}
	defer m.Close()
	var all []repeat
	client, rng := newClient(), rand.New(rand.NewPCG(1, 2))
	for range kind.rounds {
		r, err := m.repeats(ctx, client, rng, kind.text)
		if err != nil {
			return err
		}
		all = append(all, r...)
	}
	h.overlapFigures("overlap_"+kind.name, all)
	return nil
}

// repeat is one request whose system message an engine has seen.
type repeat struct {
	first, engine  string // where the first request went, and where this one went
	agent          string
	overlap        int // tokens, as the mesh expected
	cached, prompt int // tokens, as the engine reports
}

func (r repeat) relativeError() float64 {
	return math.Abs(float64(r.overlap-r.cached)) / float64(r.cached)
}

// repeats sends a new system message through the first agent and then again through each of the others.
func (m *testMesh) repeats(ctx context.Context, client *http.Client, rng *rand.Rand, text func(*rand.Rand, int) string) ([]repeat, error) {
	system := text(rng, overlapPromptBytes)
	header, _, err := chat{system: system, user: prose(rng, 200), maxTokens: 8}.ask(ctx, client, m.Agents[0].HTTP)
	if err != nil {
		return nil, fmt.Errorf("first request: %w", err)
	}
	time.Sleep(overlapPause)
	var out []repeat
	for _, a := range m.Agents[1:] {
		r := repeat{first: header.Get("X-Kvmesh-Engine"), agent: a.Name}
		c := chat{id: fmt.Sprintf("again-%d", rng.Uint64()), system: system, user: prose(rng, 200), maxTokens: 8}
		again, used, err := c.ask(ctx, client, a.HTTP)
		if err != nil {
			return nil, fmt.Errorf("request through %s: %w", a.Name, err)
		}
		r.engine, r.cached, r.prompt = again.Get("X-Kvmesh-Engine"), used.Details.CachedTokens, used.PromptTokens
		m.h.Say("overlap: first on %s; through %s answered by %s (%s), overlap %s, cached %d of %d", r.first, a.Name, r.engine,
			again.Get("X-Kvmesh-Reason"), again.Get("X-Kvmesh-Overlap"), r.cached, r.prompt)
		if r.engine != r.first {
			m.explain(ctx, a, c.id)
		}
		if r.overlap, err = strconv.Atoi(again.Get("X-Kvmesh-Overlap")); err != nil {
			return nil, fmt.Errorf("read x-kvmesh-overlap of %s: %w", a.Name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// explain tells how an agent decided on a request.
func (m *testMesh) explain(ctx context.Context, a *agent, id string) {
	d, err := decisionOn(ctx, a, id)
	if err != nil {
		m.h.Say("%v", err)
		return
	}
	m.h.Say("agent %s on %s: %s, attempts %+v, candidates %+v", a.Name, id, d.Outcome, d.Attempts, d.Candidates)
}

func (h *harness) overlapFigures(name string, all []repeat) {
	elsewhere, remote := 0, 0
	for _, r := range all {
		if r.engine != r.first {
			elsewhere++
		}
		if !strings.HasPrefix(r.engine, r.agent+"/") {
			remote++
		}
	}
	worst := slices.MaxFunc(all, func(a, b repeat) int { return compareFloat(a.relativeError(), b.relativeError()) })
	h.Figures.Zero(name+"_answered_elsewhere", float64(elsewhere), "of %d requests with a system message of %d bytes that one engine had; %d of them went over a hop", len(all),
		overlapPromptBytes, remote)
	h.Figures.AtMost(name+"_relative_error_max", worst.relativeError(), overlapBound,
		"through %s: x-kvmesh-overlap %d, cached %d of %d tokens", worst.agent, worst.overlap, worst.cached, worst.prompt)
	var sum float64
	for _, r := range all {
		sum += r.relativeError()
	}
	h.Figures.AtMost(name+"_relative_error_mean", sum/float64(len(all)), overlapBound, "over the same requests")
}

// compareFloat orders NaN, an error without any cached token, above all numbers.
func compareFloat(a, b float64) int {
	switch {
	case math.IsNaN(b) || a < b:
		return -1
	case math.IsNaN(a) || a > b:
		return 1
	default:
		return 0
	}
}
