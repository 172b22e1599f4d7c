package engineagent

import (
	"testing"
	"time"
)

func TestFailingEngineLooksBusyUntilItAnswers(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	fail := func(o Outcome) { mustAdmit(t, a, Admission{Bytes: 100, QueuedAtProbe: -1}).Finish(o) }
	for _, want := range []float64{0.5, 1, 2, 4, 5, 5} {
		fail(Outcome{Failed: true})
		if got := a.Load().QueuedSeconds; got != want {
			t.Fatalf("%v s queued, want %v", got, want)
		}
	}
	c.advance(4 * time.Second)
	if got := a.Load().QueuedSeconds; got != 1 {
		t.Errorf("%v s queued after 4 s, want 1", got)
	}
	fail(Outcome{Refused: true})
	fail(Outcome{})
	if got := a.Load().QueuedSeconds; got != 1 {
		t.Errorf("%v s queued: a request that the engine refused, or whose client left, says nothing", got)
	}
	b := mustAdmit(t, a, Admission{Bytes: 100, QueuedAtProbe: -1})
	b.FirstContent()
	b.Finish(Outcome{})
	if got := a.Load().QueuedSeconds; got != 0 {
		t.Errorf("%v s queued after an answer, want none", got)
	}
}
