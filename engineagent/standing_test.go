package engineagent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// admit asks without force, as most requests do.
func admit(a *Agent, ad Admission) (*Booking, book.Reason) {
	b, _, err := a.Admit(ad)
	if refused, ok := errors.AsType[*Refused](err); ok {
		return nil, refused.Reason
	}
	return b, ""
}

// learnSpeed teaches the speed that the engine is thought to have.
func learnSpeed(t *testing.T, a *Agent) {
	t.Helper()
	a.book.update(func(b *book.Book) {
		e := &book.Entry{Value: &Booking{turn: make(chan struct{})}}
		now := time.Now()
		b.Counts(true, false, now)
		b.Book(e, book.Work{New: engine.DefaultPrefillRate}, now)
		b.LearnPrefill(e, book.Work{New: engine.DefaultPrefillRate}, 0, true)
		b.Next(now)
		b.LearnPrefill(e, book.Work{New: engine.DefaultPrefillRate}, time.Second, true)
		b.End(e, now)
	})
}

func TestRequestsOfAStuckEngineAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		learnSpeed(t, a)
		running := mustAdmit(t, a, stream(time.Millisecond))
		running.FirstContent()
		var q turns
		first, queued := mustAdmit(t, a, stream(time.Second)), mustAdmit(t, a, stream(time.Second))
		q.wait(t.Context(), "first", first)
		q.wait(t.Context(), "queued", queued)
		q.want(t, "at once", "[first]")
		time.Sleep(2900 * time.Millisecond)
		if l := a.Load(); l.Flags&engine.Ejected != 0 {
			t.Error("a stream that is a little late takes the engine out")
		}
		told(a)
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if l := a.Load(); l.Flags&engine.Ejected == 0 || !told(a) {
			t.Error("peers are not told that the engine is quiet")
		}
		time.Sleep(11 * time.Second) // 4 × 1 s and 10 s from the hand-over; the second one was handed over meanwhile, or was not
		synctest.Wait()
		for name, b := range map[string]*Booking{"first": first, "queued": queued} {
			if !errors.Is(context.Cause(b.GivenUp()), errGivenUp) {
				t.Errorf("%s is not given up", name)
			}
			b.FirstContent() // too late
			b.Finish(Outcome{Failed: true})
		}
		if running.GivenUp().Err() != nil {
			t.Error("a request that has content is given up as well")
		}
		if s := a.Standing(); !s.Ejected || s.Cause != book.CauseStuck || s.Ever[book.CauseStuck] != 1 {
			t.Errorf("standing %+v", s)
		}
		if _, reason := admit(a, stream(time.Millisecond)); reason != book.ReasonEjected {
			t.Errorf("refused for %q", reason)
		}
		if notes := strings.Join(a.Notes(), "; "); !strings.Contains(notes, "accepts requests and does not answer") {
			t.Errorf("notes %q", notes)
		}
		running.Finish(Outcome{})
		q.wg.Wait()
		wantIdle(t, a)
	})
}

func told(a *Agent) bool {
	select {
	case <-a.Changed():
		return true
	default:
		return false
	}
}

func TestEngineWhoseCountersGrowIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		learnSpeed(t, a)
		b := mustAdmit(t, a, stream(time.Millisecond))
		for n := range 60 { // a call that shows when it is complete
			counters := map[string]float64{"vllm:generation_tokens_total": float64(n)}
			a.noteReading(&reading{counters: counters}, engine.KindVLLM, a.book.mark())
			time.Sleep(time.Second)
		}
		if s := a.Standing(); s.Ejected || b.GivenUp().Err() != nil {
			t.Errorf("standing %+v", s)
		}
		b.FirstContent()
		b.Finish(Outcome{})
		wantIdle(t, a)
	})
}

func TestEngineThatTellsNoCountersIsGivenMoreTime(t *testing.T) {
	for name, x := range map[string]struct {
		after time.Duration
		ill   func(*fakeEngine)
	}{
		"its metrics fail": {30 * time.Second, func(f *fakeEngine) { f.stall("/metrics", true) }},
		"nothing answers":  {10 * time.Second, func(f *fakeEngine) { f.set(hanging) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				f.report(metricsPage(1, 0, 0, 100) + "vllm:generation_tokens_total{engine=\"0\"} 7\n")
				a := newAgent(t, testConfig(f))
				stop := follow(t, a)
				time.Sleep(5 * time.Second)
				learnSpeed(t, a)
				x.ill(f)
				b := mustAdmit(t, a, stream(time.Millisecond))
				begun := time.Now()
				<-b.GivenUp().Done()
				if took := time.Since(begun); took < x.after || took > x.after+time.Second {
					t.Errorf("given up after %v", took)
				}
				b.Finish(Outcome{Failed: true})
				stop()
			})
		})
	}
}

func TestWhatRunsOnAStuckEngineIsGivenUpLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		learnSpeed(t, a)
		running, waits := mustAdmit(t, a, stream(time.Millisecond)), mustAdmit(t, a, stream(time.Millisecond))
		running.FirstContent()
		alive := a.Alive()
		time.Sleep(11 * time.Second)
		a.hear(answerGood) // the engine answers polls
		if waits.GivenUp().Err() == nil || alive.Err() != nil {
			t.Errorf("given up: what waits %v, what runs %v", waits.GivenUp().Err(), alive.Err())
		}
		waits.Finish(Outcome{Failed: true})
		time.Sleep(11 * time.Second)
		a.hear(answerGood)
		if !errors.Is(context.Cause(alive), errHung) || a.Alive().Err() != nil {
			t.Errorf("what runs ends with %v, what comes with %v", context.Cause(alive), a.Alive().Err())
		}
		running.Finish(Outcome{Failed: true})
		wantIdle(t, a)
	})
}

func TestEngineThatFailsIsTriedAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		for range 5 {
			b, reason := admit(a, stream(time.Millisecond))
			if reason != "" {
				t.Fatal(reason)
			}
			b.Finish(Outcome{Failed: true})
		}
		if _, reason := admit(a, stream(time.Millisecond)); reason != book.ReasonEjected {
			t.Fatalf("refused for %q", reason)
		}
		time.Sleep(5 * time.Second)
		trial, reason := admit(a, stream(time.Millisecond))
		_, second := admit(a, stream(time.Millisecond))
		if reason != "" || second != book.ReasonEjected {
			t.Fatalf("the first is refused for %q, the second for %q", reason, second)
		}
		trial.FirstContent()
		trial.Finish(Outcome{})
		if s := a.Standing(); !s.Returning {
			t.Errorf("standing %+v", s)
		}
		time.Sleep(20 * time.Second)
		if s := a.Standing(); s.Returning || s.Ejected {
			t.Errorf("standing %+v", s)
		}
		wantIdle(t, a)
	})
}

func TestQueueOfAnEjectedEngineGoesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		var q turns
		head, waits := mustAdmit(t, a, stream(time.Second)), mustAdmit(t, a, stream(time.Second))
		q.wait(t.Context(), "waits", waits)
		for range 5 {
			mustAdmit(t, a, stream(time.Minute)).Finish(Outcome{Failed: true})
		}
		q.want(t, "ejected", "[waits: "+errGivenUp.Error()+"]")
		waits.Finish(Outcome{})
		if head.GivenUp().Err() != nil {
			t.Error("what is with the engine is given up as well")
		}
		head.Finish(Outcome{})
		wantIdle(t, a)
	})
}

func TestRefusalsAndClientsThatLeaveAreNoFailures(t *testing.T) {
	a := upAgent(t, nil)
	for range 40 {
		mustAdmit(t, a, Admission{Bytes: 100, QueuedAtProbe: -1}).Finish(Outcome{Refused: true})
		mustAdmit(t, a, Admission{Bytes: 100, QueuedAtProbe: -1}).Finish(Outcome{})
	}
	if s := a.Standing(); s.Ejected {
		t.Errorf("standing %+v", s)
	}
}

func TestEngineThatWasDownReturnsByAndBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		if s := a.Standing(); s.Returning {
			t.Error("a mesh that starts is throttled")
		}
		a.hear(answerRefused)
		a.hear(answerGood)
		want := map[time.Duration]int{0: 1, 2500 * time.Millisecond: 2, 5 * time.Second: 4, 7500 * time.Millisecond: 8}
		for _, after := range []time.Duration{0, 2500 * time.Millisecond, 5 * time.Second, 7500 * time.Millisecond} {
			var all []*Booking
			for b, reason := admit(a, stream(time.Millisecond)); reason == ""; b, reason = admit(a, stream(time.Millisecond)) {
				all = append(all, b)
			}
			for _, b := range all {
				b.Finish(Outcome{})
			}
			if len(all) != want[after] {
				t.Errorf("%d requests after %v, want %d", len(all), after, want[after])
			}
			time.Sleep(2500 * time.Millisecond)
		}
		wantIdle(t, a)
	})
}
