package node

import (
	"fmt"
	"maps"
	"slices"
)

// overruled says of which models so many engines are ejected that they are chosen all the same.
func overruled(engines []EngineStatus) []string {
	type tally struct{ could, ejected int }
	models := map[string]tally{}
	for i := range engines {
		e := &engines[i]
		for _, model := range e.Models {
			t := models[model]
			switch e.State {
			case stateEjected:
				t.could, t.ejected = t.could+1, t.ejected+1
			case "own", "fresh", "suspect", "full":
				t.could++
			}
			models[model] = t
		}
	}
	var notes []string
	for _, model := range slices.Sorted(maps.Keys(models)) {
		if t := models[model]; 2*t.ejected > t.could {
			notes = append(notes, fmt.Sprintf("%d of %d engines of model %s are ejected: that is no outlier, so they serve all the same", t.ejected, t.could, model))
		}
	}
	return notes
}
