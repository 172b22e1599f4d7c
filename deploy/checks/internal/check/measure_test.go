package check

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatTestsMeasuredIsBounded(t *testing.T) {
	tests := Tests{Most: map[string]float64{"loss_equal": 10, "loss_errors": 0}, Least: map[string]float64{"loss_rounds": 3}}
	cases := []struct {
		name, out string
		failed    []string
		broken    bool
	}{
		{"kept", "    play.go:28: figure loss_equal 9.5 s\n    play.go:28: figure loss_errors 0 times\nfigure loss_rounds 3\nok\n", nil, false},
		{"too late", "figure loss_equal 10.5 s\nfigure loss_errors 0 times\nfigure loss_rounds 3\n", []string{"loss_equal"}, false},
		{"too few", "figure loss_equal 10 s\nfigure loss_errors 0 times\nfigure loss_rounds 2\n", []string{"loss_rounds"}, false},
		{"one is missing", "figure loss_equal 9 s\nfigure loss_rounds 3\n", nil, true},
		{"the least is missing", "figure loss_equal 9 s\nfigure loss_errors 0\n", nil, true},
		{"no number", "figure loss_equal soon s\n", nil, true},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			h := &Harness{Figures: NewFigures(&out)}
			if err := tests.report(h, tt.out); (err != nil) != tt.broken {
				t.Errorf("error %v, want one: %v", err, tt.broken)
			}
			if diff := cmp.Diff(tt.failed, h.Figures.Failed()); diff != "" {
				t.Errorf("failed (-want +got):\n%s%s", diff, out.String())
			}
		})
	}
}
