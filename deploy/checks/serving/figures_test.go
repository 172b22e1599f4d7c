package main

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFiguresThatFallShortAreNamed(t *testing.T) {
	var out strings.Builder
	f := newFigures(&out)
	f.atMost("low", 1, 1, "")
	f.atMost("too_high", 1.1, 1, "")
	f.atLeast("high", 2, 1, "")
	f.atLeast("too_low", 0.5, 1, "")
	f.zero("zero", 0, "")
	f.zero("not_zero", 1, "")
	f.atMost("no_number", math.NaN(), 1, "")
	f.atLeast("division_by_zero", math.Inf(1), 1, "")
	want := []string{"too_high", "too_low", "not_zero", "no_number", "division_by_zero"}
	if diff := cmp.Diff(want, f.failed()); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 8 {
		t.Errorf("%d lines, want one for each of 8 figures:\n%s", lines, out.String())
	}
}

func TestFigureIsOneLineOfJSON(t *testing.T) {
	var out strings.Builder
	newFigures(&out).atMost("hop_ms", 2.5, 4, "mean of %d", 7)
	want := `{"name":"hop_ms","value":2.5,"bound":4,"ok":true,"note":"at most; mean of 7"}` + "\n"
	if out.String() != want {
		t.Errorf("figure = %s, want %s", out.String(), want)
	}
}

func TestChecksAreChosenByNameOrSize(t *testing.T) {
	all := []check{{name: "a", short: true}, {name: "b"}, {name: "clone"}}
	tests := []struct {
		name, only string
		short      bool
		nested     string
		want       []string
	}{
		{"all", "", false, "", []string{"a", "b", "clone"}},
		{"short", "", true, "", []string{"a"}},
		{"inside a clone", "", false, "1", []string{"a", "b"}},
		{"named", "b,a", false, "", []string{"a", "b"}},
		{"named and short", "b", true, "", []string{"b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(nestedVariable, tt.nested)
			got, err := choose(append([]check(nil), all...), tt.only, tt.short)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, names(got)); diff != "" {
				t.Errorf("choose (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := choose(all, "a,nothing", false); err == nil {
		t.Error("a name that no check has is accepted")
	}
}

func TestWorstErrorIsOneWithoutAnyCachedToken(t *testing.T) {
	good, bad, none := repeat{overlap: 100, cached: 100}, repeat{overlap: 90, cached: 100}, repeat{}
	for _, order := range [][]repeat{{good, bad, none}, {none, bad, good}} {
		got := order[0]
		for _, r := range order[1:] {
			if compareFloat(r.relativeError(), got.relativeError()) > 0 {
				got = r
			}
		}
		if got != none {
			t.Errorf("worst of %v is %v", order, got)
		}
	}
}
