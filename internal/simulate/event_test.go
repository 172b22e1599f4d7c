package simulate

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestEventsComeInOrderOfTimeThenOfScheduling(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var q agenda
	var last event
	pending := 0
	for range 5000 {
		if pending > 0 && rng.IntN(3) == 0 {
			e, ok := q.next()
			if !ok || e.before(&last) {
				t.Fatalf("%v came after %v", e, last)
			}
			last = e
			pending--
			continue
		}
		q.add(event{at: last.at + time.Duration(rng.IntN(5))})
		pending++
	}
	for range pending {
		e, ok := q.next()
		if !ok || e.before(&last) {
			t.Fatalf("%v came after %v", e, last)
		}
		last = e
	}
	if _, ok := q.next(); ok {
		t.Error("an event is left")
	}
}
