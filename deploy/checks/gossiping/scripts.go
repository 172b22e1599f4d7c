package main

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
)

// script is a script of internal/simcluster in its long form, and what bounds its figures. Each fails by itself when what it
// expects does not come true: a client error, a ghost, a stale digest that was used.
type script struct {
	name   string
	bounds map[string]float64 // at most, by figure
}

func scripts() []script {
	return []script{
		{"loss", map[string]float64{"loss_digests_equal": 10, "loss_client_errors": 0}},
		{"halves", map[string]float64{"halves_healed_views_equal": 15, "halves_client_errors": 0}},
		{"lost", map[string]float64{"lost_back_views_equal": 15, "lost_client_errors": 0}},
		{"restarts", map[string]float64{
			"restarts_client_errors": 0, "restarts_overclaimed": 256, "restarts_goroutines_more": 16, "restarts_heap_more": 4,
		}},
		{"flapping", map[string]float64{"flapping_steady_views_equal": 5, "flapping_client_errors": 0}},
		{"joining", map[string]float64{"joining_seeded_views_equal": 20, "joining_moved_views_equal": 5, "joining_newcomer_views_equal": 60}},
		{"twin", map[string]float64{"twin_twins_refused": 15, "twin_client_errors": 0}},
		{"upgrade", map[string]float64{"upgrade_upgraded_views_equal": 5, "upgrade_client_errors": 0}},
		{"bulk", map[string]float64{"bulk_beside_first_bytes_p95": 600, "bulk_client_errors": 0}},
	}
}

// checkScripts plays whole clusters in fake time.
func checkScripts(ctx context.Context, h *check.Harness) error {
	for _, s := range scripts() {
		begin := time.Now()
		out, err := check.Command{Dir: h.Root, Env: []string{"KVMESH_LONG=1"}, Args: []string{
			"go", "test", "-count=1", "-v", "-timeout", "2h", "-run", "^TestScripts$/^" + s.name + "$", "./internal/simcluster",
		}}.Run(ctx)
		if err != nil {
			h.Figures.Broken("script_"+s.name, err)
			continue
		}
		h.Say("script %s: %.0f s", s.name, time.Since(begin).Seconds())
		if err := s.report(h, out); err != nil {
			h.Figures.Broken("script_"+s.name, err)
		}
	}
	return nil
}

// report bounds the figures that a script printed; the others are notes.
func (s *script) report(h *check.Harness, out string) error {
	figures, err := readFigures(out)
	if err != nil {
		return err
	}
	var notes []string
	for _, f := range figures {
		notes = append(notes, fmt.Sprintf("%s %g %s", strings.TrimPrefix(f.name, s.name+"_"), f.value, f.unit))
	}
	seen := 0
	for _, f := range figures {
		if bound, ok := s.bounds[f.name]; ok {
			seen++
			h.Figures.AtMost(f.name, f.value, bound, "%s; all of the script: %s", f.unit, strings.Join(notes, ", "))
		}
	}
	if seen != len(s.bounds) {
		return fmt.Errorf("only %d of %d figures were printed: %s", seen, len(s.bounds), strings.Join(notes, ", "))
	}
	return nil
}

// scriptFigure is one line "figure NAME VALUE UNIT".
type scriptFigure struct {
	name  string
	value float64
	unit  string
}

func readFigures(out string) ([]scriptFigure, error) {
	var figures []scriptFigure
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		_, rest, ok := strings.Cut(lines.Text(), "figure ")
		words := strings.Fields(rest)
		if !ok || len(words) < 2 {
			continue
		}
		value, err := strconv.ParseFloat(words[1], 64)
		if err != nil {
			return nil, fmt.Errorf("read figure: %w", err)
		}
		figures = append(figures, scriptFigure{words[0], value, strings.Join(words[2:], " ")})
	}
	return figures, nil
}
