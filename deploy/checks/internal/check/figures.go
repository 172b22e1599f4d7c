package check

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
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

// Figures prints figures as they are measured and counts those that fall short. It is safe for concurrent use.
type Figures struct {
	mu    sync.Mutex
	out   *json.Encoder
	total int
	short []string // names
}

// NewFigures returns figures that are printed to w.
func NewFigures(w io.Writer) *Figures {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return &Figures{out: out}
}

// AtMost adds a figure that is right up to its bound.
func (f *Figures) AtMost(name string, value, bound float64, format string, args ...any) {
	f.add(figure{name, value, bound, value <= bound, "at most; " + fmt.Sprintf(format, args...)})
}

// AtLeast adds a figure that is right from its bound on.
func (f *Figures) AtLeast(name string, value, bound float64, format string, args ...any) {
	f.add(figure{name, value, bound, value >= bound, "at least; " + fmt.Sprintf(format, args...)})
}

// Zero adds a figure that is right when it is 0.
func (f *Figures) Zero(name string, value float64, format string, args ...any) {
	f.add(figure{name, value, 0, value == 0, "exactly; " + fmt.Sprintf(format, args...)})
}

// Broken reports a check that could not measure.
func (f *Figures) Broken(check string, err error) {
	f.add(figure{check, 0, 1, false, "not measured: " + err.Error()})
}

// Copy adds the figures in the output of another program, and returns how many there were.
func (f *Figures) Copy(out string) (n int) {
	for line := range strings.Lines(out) {
		var x figure
		if json.Unmarshal([]byte(line), &x) == nil && x.Name != "" {
			f.add(x)
			n++
		}
	}
	return n
}

func (f *Figures) add(x figure) {
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

// Failed returns the names of the figures that fell short.
func (f *Figures) Failed() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.short
}
