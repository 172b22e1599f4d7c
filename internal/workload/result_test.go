package workload

import (
	"math"
	"testing"
	"time"
)

func TestCoV(t *testing.T) {
	tests := []struct {
		name string
		give []float64
		want float64
	}{
		{"none", nil, 0},
		{"zeros", []float64{0, 0}, 0},
		{"equal", []float64{3, 3, 3}, 0},
		{"one and three", []float64{1, 3}, 0.5},
		{"all on one of four", []float64{4, 0, 0, 0}, math.Sqrt(3)},
	}
	for _, tt := range tests {
		if got := CoV(tt.give); math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("%s: CoV(%v) = %v, want %v", tt.name, tt.give, got, tt.want)
		}
	}
}

func TestQuantileIsAValueThatOccurred(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	tests := []struct {
		give []time.Duration
		q    float64
		want time.Duration
	}{
		{hundred, 0.50, 50},
		{hundred, 0.95, 95},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred, 0, 1},
		{[]time.Duration{7}, 0.99, 7},
		{[]time.Duration{1, 9}, 0.5, 1},
		{[]time.Duration{1, 9}, 0.51, 9},
	}
	for _, tt := range tests {
		if got := quantile(tt.give, tt.q); got != tt.want {
			t.Errorf("quantile(%d values, %v) = %d, want %d", len(tt.give), tt.q, got, tt.want)
		}
	}
}

func TestFailedRequestsAreCountedAndNotMeasured(t *testing.T) {
	r := Summarize([]Sample{
		{TTFT: time.Second, Total: 2 * time.Second, Usage: true, PromptTokens: 100, CachedTokens: 40, OutputTokens: 5},
		{TTFT: 3 * time.Second, Total: 4 * time.Second},
		{TTFT: time.Hour, Total: time.Hour, Error: ErrorStream},
		{Error: ErrorDial},
		{Error: ErrorDial},
	})
	if r.Requests != 5 || r.Errors[ErrorDial] != 2 || r.Errors[ErrorStream] != 1 || r.NoUsage != 1 {
		t.Errorf("counts are %+v", r)
	}
	if r.CachedTokenRatio != 0.4 || r.OutputTokens != 5 {
		t.Errorf("cached ratio %v, output %d, want 0.4 and 5", r.CachedTokenRatio, r.OutputTokens)
	}
	if r.TTFT.Mean != 2 || r.TTFT.P99 != 3 || r.Total.P50 != 2 {
		t.Errorf("times are %+v and %+v", r.TTFT, r.Total)
	}
}

func TestNoSamplesHaveNoNaN(t *testing.T) {
	if r := Summarize(nil); r.CachedTokenRatio != 0 || r.TTFT != (Summary{}) {
		t.Errorf("Summarize(nil) = %+v", r)
	}
}

func TestPickers(t *testing.T) {
	next := RoundRobin(3)
	for i := range 7 {
		if got := next(Request{}); got != i%3 {
			t.Errorf("pick %d is %d, want %d", i, got, i%3)
		}
	}
	a, b := Random(3, 5), Random(3, 5)
	var count [3]int
	for range 3000 {
		i := a(Request{})
		if i != b(Request{}) {
			t.Fatal("one seed, two sequences")
		}
		count[i]++
	}
	for i, n := range count {
		if n < 900 || n > 1100 {
			t.Errorf("target %d was drawn %d times of 3000", i, n)
		}
	}
}
