package check

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFiguresThatFallShortAreNamed(t *testing.T) {
	var out strings.Builder
	f := NewFigures(&out)
	f.AtMost("low", 1, 1, "")
	f.AtMost("too_high", 1.1, 1, "")
	f.AtLeast("high", 2, 1, "")
	f.AtLeast("too_low", 0.5, 1, "")
	f.Zero("zero", 0, "")
	f.Zero("not_zero", 1, "")
	f.AtMost("no_number", math.NaN(), 1, "")
	f.AtLeast("division_by_zero", math.Inf(1), 1, "")
	want := []string{"too_high", "too_low", "not_zero", "no_number", "division_by_zero"}
	if diff := cmp.Diff(want, f.Failed()); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 8 {
		t.Errorf("%d lines, want one for each of 8 figures:\n%s", lines, out.String())
	}
}

func TestFigureIsOneLineOfJSON(t *testing.T) {
	var out strings.Builder
	NewFigures(&out).AtMost("hop_ms", 2.5, 4, "mean of %d", 7)
	want := `{"name":"hop_ms","value":2.5,"bound":4,"ok":true,"note":"at most; mean of 7"}` + "\n"
	if out.String() != want {
		t.Errorf("figure = %s, want %s", out.String(), want)
	}
}

func TestFiguresOfAnotherProgramAreCopied(t *testing.T) {
	var out strings.Builder
	f := NewFigures(&out)
	n := f.Copy("begins\n" + `{"name":"a","value":2,"bound":1,"ok":false,"note":""}` + "\n" + `{"other":1}` + "\n")
	if n != 1 || !cmp.Equal(f.Failed(), []string{"a"}) {
		t.Errorf("%d figures copied, failed %v; want one, a", n, f.Failed())
	}
}

func TestChecksAreChosenByNameOrSize(t *testing.T) {
	all := []Check{{Name: "a", Short: true}, {Name: "b"}, {Name: "far", Asked: true}}
	tests := []struct {
		name, only string
		short      bool
		want       []string
	}{
		{"all", "", false, []string{"a", "b"}},
		{"short", "", true, []string{"a"}},
		{"named", "b,a", false, []string{"a", "b"}},
		{"named and short", "b", true, []string{"b"}},
		{"only when it is asked for", "far", false, []string{"far"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := choose(append([]Check(nil), all...), tt.only, tt.short)
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
