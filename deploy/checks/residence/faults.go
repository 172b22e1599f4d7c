package main

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

//go:embed testdata/*.txt
var scripts embed.FS

// checkFaults runs the scripts in testdata, each at an engine of its own, with a replay socket and without. A script's
// lines are:
//
//	buffer N    how many batches the engine can replay; before all others
//	warm N      send N requests, after which the agent must be right
//	send N      send N requests
//	fault JSON  break the stream of KV events as POST /sim/faults says
//	restart     the engine does what another process in its place would do, in no time
//	kill        end the engine's process and start another
//	clear       empty the engine's cache
//	sleep D     wait
//	return      the stream is whole again from here on
//	right D     since the return, within D, what the agent believes of 50 prompts is what the engine holds, or less and marked
func checkFaults(ctx context.Context, h *check.Harness) error {
	files, err := fs.Glob(scripts, "testdata/*.txt")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := scripts.ReadFile(file)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".txt")
		for _, replay := range []bool{true, false} {
			if h.Short && (!replay || name != "lost" && name != "restart") {
				continue
			}
			figure := "faults_" + strings.ReplaceAll(name, "-", "_") + map[bool]string{true: "_replay", false: "_no_replay"}[replay]
			if err := runScript(ctx, h, figure, string(text), replay); err != nil {
				h.Figures.Broken(figure, err)
			}
		}
	}
	return ctx.Err()
}

// script is one run of a script.
type script struct {
	p          *player
	name       string
	generation uint64 // of the engine before the fault
	returned   time.Time
	slowest    time.Duration // from a return until nothing was wrong
	last       verdict
	failed     bool
}

func runScript(ctx context.Context, h *check.Harness, name, text string, replay bool) error {
	pl := plan{engine: churnEngine(simengine.TemplatePlain), events: true, replay: replay}
	pl.engine.RetokenizeRate = 0
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if n, ok := strings.CutPrefix(line, "buffer "); ok {
			if _, err := fmt.Sscan(n, &pl.engine.BufferSteps); err != nil {
				return err
			}
		} else if line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	m, err := newMix(h, churnSeed+1, 0, 10_000, 0.5)
	if err != nil {
		return err
	}
	r, err := startRig(ctx, h, pl)
	if err != nil {
		return err
	}
	defer r.close()
	s := script{name: name, p: &player{r: r, node: r.nodes[0], mix: m, pace: churnPace}}
	if err := s.p.awaitEvents(); err != nil {
		return err
	}
	for _, line := range lines {
		if err := s.do(line); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return s.figures()
}

func (s *script) do(line string) error {
	command, argument, _ := strings.Cut(line, " ")
	r, n := s.p.r, s.p.node
	switch command {
	case "warm":
		return s.warm(argument)
	case "send":
		return s.send(argument)
	case "fault":
		return r.sim(n, "/sim/faults", argument)
	case "restart":
		return r.sim(n, "/sim/restart", "")
	case "kill":
		return r.replaceEngine(n)
	case "clear":
		return r.sim(n, "/reset_prefix_cache", "")
	case "sleep":
		d, err := time.ParseDuration(argument)
		time.Sleep(d)
		return err
	case "return":
		s.returned = time.Now()
		return nil
	case "right":
		d, err := time.ParseDuration(argument)
		if err != nil {
			return err
		}
		return s.right(d)
	}
	return fmt.Errorf("unknown command %q", command)
}

func (s *script) send(argument string) error {
	n, err := strconv.Atoi(argument)
	if err != nil {
		return err
	}
	return s.p.play(n)
}

// warm fills the engine; an agent that is wrong before the fault says nothing about the fault.
func (s *script) warm(argument string) error {
	if err := s.send(argument); err != nil {
		return err
	}
	status, err := s.p.r.status(s.p.node)
	if err != nil {
		return err
	}
	err = check.Await(s.p.r.ctx, 3*time.Second, "an agent that is right before the fault", func() bool {
		v, err := s.judge()
		s.last = v
		return err == nil && v.wrong == 0 && v.low == 0
	})
	if err != nil {
		return fmt.Errorf("%w: %+v", err, s.last)
	}
	s.generation = status.Engines[0].Generation // a rig without its one engine is not ready
	return nil
}

// verdict compares what an agent believes of prompts with what its engine holds.
type verdict struct {
	right, lower, low, wrong int // lower: less than it holds, but marked; low: not marked; wrong: more than it holds
	held                     int // prompts of which the engine holds something
	first                    string
}

// faultPrompts is how many prompts are looked at.
const faultPrompts = 50

func (s *script) judge() (verdict, error) {
	var v verdict
	marked, err := s.marked()
	if err != nil {
		return v, err
	}
	recent := s.p.recent[max(0, len(s.p.recent)-faultPrompts):]
	for i := range recent {
		e, t, err := s.p.both(&recent[i])
		if err != nil {
			return v, err
		}
		v.add(e, t, marked)
	}
	return v, nil
}

func (v *verdict) add(e estimate, t truth, marked bool) {
	if t.Hit > 0 {
		v.held++
	}
	believed, held := e.Overlap/churnBlock, t.Hit/churnBlock
	if !e.Exact && believed > held { // a position between two known ones
		believed--
	}
	switch {
	case believed == held || !e.Exact && believed < held && e.Overlap > 0: // agents ask for no ids of prompts below two blocks
		v.right++
		return
	case believed > held:
		v.wrong++
	case marked:
		v.lower++
	default:
		v.low++
	}
	if v.first == "" {
		v.first = fmt.Sprintf("; the first that is not: estimate %+v, truth %+v", e, t)
	}
}

// marked reports whether the agent says that it lost track of the engine: in a note, or by another generation than at
// the start, with which all that was advertised before is withdrawn.
func (s *script) marked() (bool, error) {
	status, err := s.p.r.status(s.p.node)
	if err != nil {
		return false, err
	}
	for _, note := range status.Notes {
		if strings.Contains(note, "lost KV events") || strings.Contains(note, "cannot be followed") {
			return true, nil
		}
	}
	return len(status.Engines) == 1 && s.generation != 0 && status.Engines[0].Generation != s.generation, nil
}

// right waits until the agent is right; after some time, less than the engine holds will do, when that is marked.
func (s *script) right(within time.Duration) error {
	const giveUp = 4 * time.Second
	for {
		v, err := s.judge()
		if err != nil {
			return err
		}
		s.last = v
		since := time.Since(s.returned)
		switch {
		case v.wrong+v.low > 0:
			s.slowest = max(s.slowest, since)
			s.failed = since > within+giveUp
		case v.lower == 0 || since > within:
			return nil
		}
		if s.failed {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *script) figures() error {
	status, err := s.p.r.status(s.p.node)
	if err != nil {
		return err
	}
	v, never := s.last, ""
	if s.failed {
		never = "; it never was"
	}
	s.p.r.h.Figures.AtMost(s.name+"_seconds", s.slowest.Seconds(), 2,
		"from the return of the stream until the agent is right, or has less and marks it, 0 for at the first look%s; at last, of %d prompts right %d, "+
			"lower and marked %d, lower %d, too high %d; the engine holds some of %d%s; notes %q",
		never, min(faultPrompts, len(s.p.recent)), v.right, v.lower, v.low, v.wrong, v.held, v.first, status.Notes)
	return nil
}
