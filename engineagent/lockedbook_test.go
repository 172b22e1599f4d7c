package engineagent

import (
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// patience is how long a test waits for what should have come at once, before it fails.
const patience = 10 * time.Second

// TestProbeIsAnsweredWhileALessonIsTaught: a lesson holds the Agent's lock, as events and Publish do.
func TestProbeIsAnsweredWhileALessonIsTaught(t *testing.T) {
	a := upAgent(t, func(c *Config) { c.MaxRunning = 1 })
	running := mustAdmit(t, a, Admission{Bytes: 4000, QueuedAtProbe: -1})
	a.mu.Lock()
	told := make(chan string, 2)
	go func() {
		if l := a.Load(); l.InFlight != 1 || a.Booked() != 1 || a.Queued() != 0 {
			told <- "the load is another one"
		}
		if _, l, err := a.Admit(Admission{QueuedAtProbe: -1}); err == nil || l.InFlight != 1 {
			told <- "a full engine accepted"
		}
		close(told)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case fault, ok := <-told:
		if ok {
			t.Error(fault)
		}
	case <-timer.C:
		t.Error("neither a probe nor a refusal was answered while the Agent's lock was held")
	}
	a.mu.Unlock()
	running.Finish(Outcome{})
	wantIdle(t, a)
}

// TestPeersHearOfACordonWhileALessonIsTaught: the book tells its states without the Agent's lock.
func TestPeersHearOfACordonWhileALessonIsTaught(t *testing.T) {
	a := upAgent(t, nil)
	for len(a.changed) > 0 {
		<-a.changed
	}
	a.mu.Lock()
	done := make(chan struct{})
	go func() { a.SetCordoned(true); close(done) }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		if len(a.changed) != 1 || a.Load().Usable() {
			t.Error("a cordon is no news")
		}
	case <-timer.C:
		t.Error("a cordon waits for the Agent's lock")
	}
	a.mu.Unlock()
}

func TestLessonsEventsAndRequestsGoTogether(t *testing.T) {
	a := toldAgent(t, func(c *Config) { c.MaxRunning = 64 })
	var wg sync.WaitGroup
	each := func(f func(i int)) {
		wg.Go(func() {
			for i := range 60 {
				f(i)
			}
		})
	}
	each(func(i int) {
		b, _, err := a.Admit(Admission{Prompt: dense(prompt(uint64(i), 0, 0, 8)), QueuedAtProbe: -1, Route: openai.RouteChat})
		if err != nil {
			t.Errorf("refused: %v", err)
			return
		}
		b.FirstContent()
		if b.WantsPrompt() {
			b.Learn(tokensOf(uint32(i), 800), time.Microsecond)
		}
		b.Finish(Outcome{HasUsage: true, Usage: openai.Usage{PromptTokens: 800, CompletionTokens: 20}})
	})
	each(func(i int) {
		var events []cachestate.BlockEvent
		for j := range 2*eventsAtOnce + 1 {
			events = append(events, storedTokens(tokensOf(uint32(i), 4*(j+1))))
		}
		(*sink)(a).Apply(0, events)
	})
	each(func(int) { a.Publish() })
	each(func(int) { wantTellable(t, a.Load()) })
	each(func(i int) { a.SetCordoned(false); a.NoteUnreachable() })
	wg.Wait()
	wantIdle(t, a)
}

func TestEveryEventOfALongBatchIsTakenIn(t *testing.T) {
	a := toldAgent(t, nil)
	before := a.blocks.Stats().Stored
	for _, n := range []int{0, 1, eventsAtOnce, eventsAtOnce + 1, 3*eventsAtOnce + 5} {
		var events []cachestate.BlockEvent
		for i := range n {
			events = append(events, storedTokens(tokensOf(uint32(100*n+i+20), 4)))
		}
		(*sink)(a).Apply(0, events)
		got := a.blocks.Stats().Stored - before
		if before = a.blocks.Stats().Stored; got != uint64(n) {
			t.Errorf("of a batch of %d, %d are known", n, got)
		}
	}
}
