package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Tests are tests of one package that measure something: each prints what it found as a line "figure NAME VALUE UNIT", and
// fails by itself when what it expects does not come true.
type Tests struct {
	Package string // ./internal/simcluster
	Run     string // pattern of their names
	Long    bool   // in their long form
	Flags   []string
	Prefix  string             // of the figures' names that notes leave out
	Most    map[string]float64 // bounds, by figure
	Least   map[string]float64
}

// Measure runs the tests and bounds the figures that they print; the others are notes.
func (t *Tests) Measure(ctx context.Context, h *Harness) error {
	c := Command{Dir: h.Root, Args: append([]string{
		"go", "test", "-count=1", "-v", "-timeout", "2h", "-run", t.Run, t.Package,
	}, t.Flags...)}
	if t.Long {
		c.Env = []string{"KVMESH_LONG=1"}
	}
	done := h.Working(t.Package + " " + t.Run)
	out, runErr := c.Run(ctx)
	done()
	if err := t.report(h, out); err != nil && runErr == nil {
		return err
	}
	return runErr
}

func (t *Tests) report(h *Harness, out string) error {
	figures, err := readMeasured(out)
	if err != nil {
		return err
	}
	var notes []string
	for _, f := range figures {
		notes = append(notes, fmt.Sprintf("%s %g %s", strings.TrimPrefix(f.name, t.Prefix), f.value, f.unit))
	}
	all := strings.Join(notes, ", ")
	seen := map[string]bool{}
	for _, f := range figures {
		if bound, ok := t.Most[f.name]; ok {
			seen[f.name] = true
			h.Figures.AtMost(f.name, f.value, bound, "%s; measured together: %s", f.unit, all)
		}
		if bound, ok := t.Least[f.name]; ok {
			seen[f.name] = true
			h.Figures.AtLeast(f.name, f.value, bound, "%s; measured together: %s", f.unit, all)
		}
	}
	missing := slices.DeleteFunc(slices.Sorted(maps.Keys(t.Most)), func(name string) bool { return seen[name] })
	missing = append(missing, slices.DeleteFunc(slices.Sorted(maps.Keys(t.Least)), func(name string) bool { return seen[name] })...)
	if len(missing) > 0 {
		return fmt.Errorf("the tests did not print %s, but %q", strings.Join(missing, ", "), all)
	}
	return nil
}

// measured is one line "figure NAME VALUE UNIT".
type measured struct {
	name  string
	value float64
	unit  string
}

func readMeasured(out string) ([]measured, error) {
	var figures []measured
	for line := range strings.Lines(out) {
		_, rest, ok := strings.Cut(line, "figure ")
		words := strings.Fields(rest)
		if !ok || len(words) < 2 {
			continue
		}
		value, err := strconv.ParseFloat(words[1], 64)
		if err != nil {
			return nil, fmt.Errorf("read figure: %w", err)
		}
		figures = append(figures, measured{words[0], value, strings.Join(words[2:], " ")})
	}
	return figures, nil
}

// Working says twice a minute that something goes on, until its result is called.
func (h *Harness) Working(what string) (done func()) {
	const period = 30 * time.Second
	begin, ended := time.Now(), make(chan struct{})
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(period):
				h.Say("%s: %.0f s so far", what, time.Since(begin).Seconds())
			}
		}
	}()
	return func() {
		close(ended)
		h.Say("%s: %.0f s", what, time.Since(begin).Seconds())
	}
}
