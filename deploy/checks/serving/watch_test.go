package main

import (
	"testing"
	"time"
)

func TestLastChoiceCountsOnlyRequestsAfterTheSignal(t *testing.T) {
	signal := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(offset, ttft time.Duration, engines ...string) decision {
		d := decision{Time: signal.Add(offset), TTFT: ttft}
		for _, e := range engines {
			d.Attempts = append(d.Attempts, attempt{Engine: e})
		}
		return d
	}
	tests := []struct {
		name  string
		give  []decision
		after time.Duration
		n     int
	}{
		{"before", []decision{at(-time.Second, time.Second, "c/sim", "a/sim")}, 0, 0},
		{"first attempt", []decision{at(300*time.Millisecond, time.Second, "c/sim", "a/sim")}, 300 * time.Millisecond, 1},
		{"later attempt", []decision{at(300*time.Millisecond, time.Second, "a/sim", "c/sim", "b/sim")}, 1300 * time.Millisecond, 1},
		{"twice", []decision{at(300*time.Millisecond, time.Second, "c/sim", "c/sim", "b/sim")}, 1300 * time.Millisecond, 1},
		{"another engine", []decision{at(300*time.Millisecond, time.Second, "a/sim")}, 0, 0},
		{"latest wins", []decision{at(time.Second, 0, "c/sim"), at(2*time.Second, 0, "c/sim")}, 2 * time.Second, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWatch(nil, nil)
			for i, d := range tt.give {
				w.decisions[string(rune('a'+i))] = d
			}
			if after, n := w.lastChoice("c/sim", signal); after != tt.after || n != tt.n {
				t.Errorf("lastChoice = %v, %d; want %v, %d", after, n, tt.after, tt.n)
			}
		})
	}
}
