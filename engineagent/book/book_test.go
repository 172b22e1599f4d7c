package book

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// rig is a Book in the hands of a script.
type rig struct {
	*Book
	now     time.Time
	entries map[string]*Entry
}

func newRig(c Config) *rig {
	start := time.Unix(1_700_000_000, 0)
	return &rig{Book: New(c, start), now: start, entries: map[string]*Entry{}}
}

// usual is a Config as agents have it.
func usual() Config { return Config{MaxRunning: 256, Window: DefaultWindow, ShortestFirst: true} }

// second is a second's prefill.
const second = engine.DefaultPrefillRate

func (r *rig) book(name string, w Work) {
	r.entries[name] = &Entry{Value: name}
	r.Book.Book(r.entries[name], w, r.now)
}

func (r *rig) pass(d time.Duration) { r.now = r.now.Add(d) }

// handed hands over what may go now and names it.
func (r *rig) handed() string {
	var names []string
	for e := r.Next(r.now); e != nil; e = r.Next(r.now) {
		names = append(names, e.Value.(string))
	}
	return strings.Join(names, " ")
}

func (r *rig) content(name string) time.Duration { return r.Content(r.entries[name], r.now) }
func (r *rig) end(name string) bool              { return r.End(r.entries[name], r.now) }

func TestOrderInWhichRequestsReachTheEngine(t *testing.T) {
	fcfs, off := usual(), usual()
	fcfs.ShortestFirst, off.Window = false, 0
	tests := []struct {
		name   string
		config Config
		do     func(r *rig)
		want   string // handed over at once, and after each first content
	}{
		{"one that exceeds the window", usual(), func(r *rig) { r.book("a", Work{New: 100_000}) }, "a"},
		{"small ones up to a step", usual(), func(r *rig) {
			for i := range 4 {
				r.book(fmt.Sprint(i), Work{New: 4000})
			}
		}, "0 1 2, 3"},
		{"shortest new work first", usual(), func(r *rig) {
			for i, n := range []int{20_000, 50_000, 10_000, 30_000} {
				r.book(fmt.Sprint(i), Work{New: n})
			}
		}, "2, 0, 3, 1"},
		{"equals as they came", usual(), func(r *rig) {
			for i := range 4 {
				r.book(fmt.Sprint(i), Work{New: DefaultWindow})
			}
		}, "0, 1, 2, 3"},
		{"ten seconds of waiting are a second of work", usual(), func(r *rig) {
			r.book("head", Work{New: DefaultWindow})
			r.handed()
			r.book("two seconds", Work{New: 2 * second})
			r.pass(9900 * time.Millisecond)
			r.book("one later", Work{New: second})
			r.pass(200 * time.Millisecond)
			r.book("one too late", Work{New: second})
		}, "one later, two seconds, one too late"},
		{"first come first served", fcfs, func(r *rig) {
			for i, n := range []int{20_000, 50_000, 10_000} {
				r.book(fmt.Sprint(i), Work{New: n})
			}
		}, "0, 1, 2"},
		{"no queue", off, func(r *rig) {
			for i := range 3 {
				r.book(fmt.Sprint(i), Work{New: 100_000 / (i + 1)})
			}
		}, "2 1 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(tt.config)
			tt.do(r)
			var got []string
			for names := r.handed(); names != ""; names = r.handed() {
				got = append(got, names)
				for _, e := range r.entries {
					if e.state == stateWaiting {
						r.Content(e, r.now)
					}
				}
			}
			if got := strings.Join(got, ", "); got != tt.want {
				t.Errorf("handed over %q, want %q", got, tt.want)
			}
		})
	}
}

func TestOnlyTimeAtTheEngineIsPrefill(t *testing.T) {
	r := newRig(usual())
	r.book("a", Work{New: second})
	r.book("b", Work{New: 2 * second})
	r.handed()
	r.pass(time.Second)
	if took := r.content("a"); took != time.Second {
		t.Errorf("a took %v", took)
	}
	r.handed()
	r.pass(3 * time.Second)
	if took := r.content("b"); took != 3*time.Second || !r.entries["b"].alone {
		t.Errorf("b took %v, alone %t; want the 3 s after a second with the owner", took, r.entries["b"].alone)
	}
}

func TestHeadThatShowsNothingHoldsNobodyUp(t *testing.T) {
	tests := []struct {
		name  string
		whole bool
		late  time.Duration
	}{
		{"an answer that is no stream", true, time.Second},
		{"a stream", false, 3 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(usual())
			if _, ok := r.Wake(); ok {
				t.Error("an empty queue is to be woken")
			}
			r.book("a", Work{New: second, Whole: tt.whole})
			r.handed()
			r.book("b", Work{New: second})
			if at, ok := r.Wake(); !ok || at.Sub(r.now) != tt.late {
				t.Fatalf("wake after %v, want %v", at.Sub(r.now), tt.late)
			}
			r.pass(tt.late - 1)
			if got := r.handed(); got != "" {
				t.Errorf("%s handed over too soon", got)
			}
			r.pass(1)
			if got := r.handed(); got != "b" || r.entries["b"].alone {
				t.Errorf("handed over %q, alone %t", got, r.entries["b"].alone)
			}
			r.pass(500 * time.Millisecond)
			if l := r.Load(r.now); l.Waiting != 2 || l.QueuedSeconds != 0.5 {
				t.Errorf("load %+v, want half a second of b", l)
			}
			if took := r.content("a"); took != tt.late+500*time.Millisecond {
				t.Errorf("prefill of %v, want all of it", took)
			}
			if l := r.Load(r.now); l.Waiting != 1 || l.InFlight != 2 {
				t.Errorf("load %+v after the first content", l)
			}
		})
	}
}

func TestLessonDoesNotWorkInThePast(t *testing.T) {
	config := usual()
	config.Window = 0
	r := newRig(config)
	r.book("a", Work{New: second, Whole: true})
	r.book("b", Work{New: second, Whole: true})
	r.handed()
	r.pass(800 * time.Millisecond)
	r.Load(r.now)
	for range 500 { // four times as fast as thought: a has been late for long
		r.LearnPrefill(&Entry{alone: true}, Work{New: second}, 250*time.Millisecond, true)
	}
	if s := r.Load(r.now).QueuedSeconds; !near(s, 0.25, 0.01) {
		t.Errorf("%.3f s queued, want all of b", s)
	}
}

func TestRequestThatLeavesTheQueueIsNeverHandedOver(t *testing.T) {
	r := newRig(usual())
	for _, name := range []string{"a", "b", "c"} {
		r.book(name, Work{New: second})
	}
	r.handed()
	if !r.end("b") || r.end("b") {
		t.Error("b does not end once")
	}
	r.end("a")
	if got := r.handed(); got != "c" {
		t.Errorf("handed over %q, want c", got)
	}
	r.end("c")
	if l := r.Load(r.now); l.InFlight != 0 || l.Waiting != 0 || l.QueuedSeconds != 0 || r.Queued() != 0 {
		t.Errorf("counters left: %+v", l)
	}
	if r.End(&Entry{}, r.now) {
		t.Error("an entry that was never booked ended")
	}
}

func TestReadingsDoNotCoverWhatTheOwnerHolds(t *testing.T) {
	r := newRig(usual())
	for _, name := range []string{"a", "b", "c"} {
		r.book(name, Work{New: second})
	}
	r.handed()
	asked := r.Mark()
	r.content("a")
	r.handed()
	r.Read(Reading{Running: 4, Waiting: 1}, asked)
	if got := r.Foreign(); got != 3 {
		t.Errorf("%d foreign requests of 5, want 3: a was with the engine, b came to it since, c is with the owner", got)
	}
}

func TestAbsurdPromptsKeepALoadThatCanBeTold(t *testing.T) {
	r := newRig(usual())
	for i := range 5 {
		r.book(fmt.Sprint(i), Work{Prompt: math.MaxInt32, New: math.MaxInt32})
	}
	r.handed()
	if l := r.Load(r.now); l.QueuedSeconds != maxQueuedSeconds {
		t.Errorf("%v s queued", l.QueuedSeconds)
	}
	for i := range 5 {
		r.end(fmt.Sprint(i))
	}
	if l := r.Load(r.now); l.QueuedSeconds != 0 {
		t.Errorf("%v s left", l.QueuedSeconds)
	}
}
