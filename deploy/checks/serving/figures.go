package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sync"
)

// figure is one measured number and the bound that it must keep.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Bound float64 `json:"bound"`
	OK    bool    `json:"ok"`
	Note  string  `json:"note"` // which side of the bound is right, and what was measured
}

// figures prints figures as they are measured and counts those that fall short. It is safe for concurrent use.
type figures struct {
	mu    sync.Mutex
	out   *json.Encoder
	total int
	short []string // names
}

func newFigures(w io.Writer) *figures {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return &figures{out: out}
}

func (f *figures) atMost(name string, value, bound float64, format string, args ...any) {
	f.add(figure{name, value, bound, value <= bound, "at most; " + fmt.Sprintf(format, args...)})
}

func (f *figures) atLeast(name string, value, bound float64, format string, args ...any) {
	f.add(figure{name, value, bound, value >= bound, "at least; " + fmt.Sprintf(format, args...)})
}

func (f *figures) zero(name string, value float64, format string, args ...any) {
	f.add(figure{name, value, 0, value == 0, "exactly; " + fmt.Sprintf(format, args...)})
}

// broken reports a check that could not measure.
func (f *figures) broken(check string, err error) {
	f.add(figure{check, 0, 1, false, "not measured: " + err.Error()})
}

func (f *figures) add(x figure) {
	if math.IsNaN(x.Value) || math.IsInf(x.Value, 0) {
		x.Note, x.Value, x.OK = fmt.Sprintf("%s (the value is %v)", x.Note, x.Value), 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total++
	if !x.OK {
		f.short = append(f.short, x.Name)
	}
	_ = f.out.Encode(x)
}

// failed returns the names of the figures that fell short.
func (f *figures) failed() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.short
}
