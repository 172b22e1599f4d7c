package node

import (
	"strings"
	"testing"
)

func TestMostEnginesOfAModelEjectedIsNoted(t *testing.T) {
	tests := []struct {
		states string
		want   string
	}{
		{"own fresh ejected", ""},
		{"own ejected", ""},
		{"own ejected ejected", "2 of 3 engines of model m"},
		{"ejected", "1 of 1 engines of model m"},
		{"full ejected down unreachable", ""},
		{"ejected down", "1 of 1 engines of model m"},
		{"", ""},
	}
	for _, tt := range tests {
		t.Run(tt.states, func(t *testing.T) {
			engines := []EngineStatus{{State: "own", Models: []string{"other"}}}
			for state := range strings.FieldsSeq(tt.states) {
				engines = append(engines, EngineStatus{State: state, Models: []string{"m"}})
			}
			got := strings.Join(overruled(engines), "; ")
			if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("notes %q, want %q", got, tt.want)
			}
		})
	}
}
