package engineagent

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

func TestRefusals(t *testing.T) {
	queue := func(t *testing.T, a *Agent) { // one second of prefill at the default rate
		mustAdmit(t, a, Admission{Bytes: engine.DefaultPrefillRate * engine.DefaultBytesPerToken})
	}
	tests := []struct {
		name string
		make func(*testing.T, *Agent)
		ask  Admission
		want book.Reason
	}{
		{"idle engine", nil, Admission{}, ""},
		{"down", func(_ *testing.T, a *Agent) { a.hear(answerRefused) }, Admission{Second: true}, book.ReasonDown},
		{"draining", func(_ *testing.T, a *Agent) { a.SetCordoned(true) }, Admission{Second: true}, book.ReasonDraining},
		{"uncordoned", func(_ *testing.T, a *Agent) { a.SetCordoned(true); a.SetCordoned(false) }, Admission{}, ""},
		{"full by requests", func(t *testing.T, a *Agent) {
			for range 4 {
				mustAdmit(t, a, Admission{})
			}
		}, Admission{Second: true}, book.ReasonFull},
		{"full by memory", func(_ *testing.T, a *Agent) {
			a.noteReading(&reading{running: 1, waiting: 1, kvUsage: 0.95}, engine.KindVLLM, book.Mark{})
		}, Admission{}, book.ReasonFull},
		{"memory in use but nobody waits", func(_ *testing.T, a *Agent) {
			a.noteReading(&reading{running: 1, kvUsage: 1}, engine.KindVLLM, book.Mark{})
		}, Admission{}, ""},
		{"memory in use and an answer that is no stream runs", func(t *testing.T, a *Agent) {
			mustAdmit(t, a, Admission{})
			a.noteReading(&reading{running: 1, kvUsage: 1}, engine.KindVLLM, a.book.mark())
		}, Admission{QueuedAtProbe: -1}, ""},
		{"full by memory that our own requests wait for", func(t *testing.T, a *Agent) {
			mustAdmit(t, a, Admission{})
			a.noteReading(&reading{waiting: 1, kvUsage: 1}, engine.KindVLLM, a.book.mark())
		}, Admission{}, book.ReasonFull},
		{"other generation", nil, Admission{Generation: 1}, book.ReasonGeneration},
		{"other generation at the second owner", nil, Admission{Generation: 1, Second: true}, ""},
		{"queue grew since the probe", queue, Admission{QueuedAtProbe: 0.4}, book.ReasonQueue},
		{"queue grew little", queue, Admission{QueuedAtProbe: 0.6}, ""},
		{"not probed", queue, Admission{QueuedAtProbe: -1}, ""},
		{"queue grew at the second owner", queue, Admission{Second: true}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := upAgent(t, func(c *Config) { c.MaxRunning = 4; c.Now = newClock().Now })
			if tt.make != nil {
				tt.make(t, a)
			}
			before := a.Load().InFlight
			b, load, err := a.Admit(tt.ask)
			var got book.Reason
			if r, ok := errors.AsType[*Refused](err); ok {
				got = r.Reason
			}
			if got != tt.want || (b == nil) != (tt.want != "") {
				t.Fatalf("refused for %q, want %q", got, tt.want)
			}
			if booked := load.InFlight - before; (booked == 1) != (tt.want == "") {
				t.Errorf("%d booked", booked)
			}
		})
	}
}

func TestBurstNeverExceedsTheEngine(t *testing.T) {
	a := upAgent(t, func(c *Config) { c.MaxRunning = 8 })
	var wg sync.WaitGroup
	var mu sync.Mutex
	var got []*Booking
	for range 100 {
		wg.Go(func() {
			if b, _, err := a.Admit(Admission{Bytes: 100, QueuedAtProbe: -1}); err == nil {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, b)
			}
		})
	}
	wg.Wait()
	if len(got) != 8 {
		t.Errorf("%d of 100 requests booked, want 8", len(got))
	}
	for _, b := range got {
		b.Finish(Outcome{})
	}
	wantIdle(t, a)
}

func TestRandomBookingsReturnAllCountersToZero(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	a := upAgent(t, func(c *Config) { c.MaxRunning = 2000 })
	var wg sync.WaitGroup
	for stream := range uint64(8) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, stream))
			for range 125 {
				endAtRandom(t, a, rng)
			}
		})
	}
	wg.Wait()
	wantIdle(t, a)
}

// endAtRandom books one request and ends it from several goroutines at once, at any stage.
func endAtRandom(t *testing.T, a *Agent, rng *rand.Rand) {
	p := prompt(rng.Uint64N(4), rng.Uint64N(20), rng.Uint64N(50), 1+rng.IntN(20))
	b, load, err := a.Admit(Admission{Prompt: p, QueuedAtProbe: -1, Forced: true})
	if err != nil {
		t.Errorf("admit: %v", err)
		return
	}
	wantTellable(t, load)
	o := Outcome{HasUsage: rng.IntN(2) == 0, Failed: rng.IntN(3) == 0}
	if o.HasUsage {
		o.Usage = openai.Usage{
			PromptTokens: rng.IntN(1<<17) - 100, CompletionTokens: rng.IntN(500) - 10,
			CachedTokens: rng.IntN(1<<17) - 100, HasCached: rng.IntN(2) == 0,
		}
	}
	restart := rng.IntN(40) == 0
	content := rng.IntN(3)
	var wg sync.WaitGroup
	for range content {
		wg.Go(b.FirstContent)
	}
	if restart {
		wg.Go(func() { a.mu.Lock(); defer a.mu.Unlock(); a.restartLocked("test") })
	}
	for range 1 + rng.IntN(2) {
		wg.Go(func() { b.Finish(o) })
	}
	wg.Wait()
	b.FirstContent()
	b.Finish(o)
}

func TestQueueShrinksAsItsHeadIsWorkedOff(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	second := Admission{Bytes: engine.DefaultPrefillRate * engine.DefaultBytesPerToken, QueuedAtProbe: -1}
	first, next := mustAdmit(t, a, second), mustAdmit(t, a, second)
	steps := []struct {
		name string
		do   func()
		want float64
	}{
		{"both wait", func() {}, 2},
		{"a quarter of the head is done", func() { c.advance(250 * time.Millisecond) }, 1.75},
		{"the head is late and counts as done", func() { c.advance(5 * time.Second) }, 1},
		{"the next became head", func() { first.FirstContent() }, 1},
		{"half of it is done", func() { c.advance(500 * time.Millisecond) }, 0.5},
		{"the end of a running one changes nothing", func() { first.Finish(Outcome{}) }, 0.5},
		{"the client of the head went away", func() { next.Finish(Outcome{}) }, 0},
	}
	for _, s := range steps {
		s.do()
		if got := a.Load().QueuedSeconds; math.Abs(got-s.want) > 0.001 {
			t.Errorf("%s: %.3f s queued, want %.3f", s.name, got, s.want)
		}
	}
	wantIdle(t, a)
}

func TestSecondPromptOfAFamilyOverlaps(t *testing.T) {
	a := upAgent(t, nil)
	b := mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 1, 20)})
	if b.Overlap() != 0 {
		t.Errorf("overlap %d in an empty cache", b.Overlap())
	}
	b.FirstContent()
	b.Finish(Outcome{})
	b = mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 2, 20)})
	if want := 10 * 4000 / 4; b.Overlap() != want {
		t.Errorf("overlap %d, want %d", b.Overlap(), want)
	}
	b.Finish(Outcome{})
	wantIdle(t, a)
}

func TestOutputOfARunningRequestTakesRoom(t *testing.T) {
	a := upAgent(t, func(c *Config) { c.CapacityTokens = 11_000 })
	b := mustAdmit(t, a, Admission{Prompt: prompt(1, 5, 0, 5), QueuedAtProbe: -1}) // 5,000 tokens
	b.FirstContent()
	b.Finish(Outcome{})
	long := mustAdmit(t, a, Admission{Prompt: prompt(2, 5, 0, 5), QueuedAtProbe: -1})
	defer long.Finish(Outcome{})
	for range 2000 {
		long.FirstContent()
	}
	if b := mustAdmit(t, a, Admission{Prompt: prompt(1, 5, 0, 1), QueuedAtProbe: -1}); b.Overlap() == 0 {
		t.Error("all of the first prompt is forgotten, where 2,000 tokens of output drive out one of its keys")
	}
	if b := mustAdmit(t, a, Admission{Prompt: prompt(1, 5, 0, 5), QueuedAtProbe: -1}); b.Overlap() > 4000 {
		t.Errorf("overlap %d beside 2,000 tokens of output", b.Overlap())
	}
}

func TestAbandonedPromptLeavesNoResidency(t *testing.T) {
	a := upAgent(t, nil)
	mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 1, 20)}).Finish(Outcome{Failed: true})
	b := mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 1, 20)})
	if b.Overlap() != 0 {
		t.Errorf("overlap %d with a prompt that was never computed", b.Overlap())
	}
}

func TestPromptThatIsTooLongForTheEngineDrivesNothingOut(t *testing.T) {
	tests := []struct {
		name    string
		context int // of the models; 0 when they do not say
		keys    int // of the long prompt, 1,000 tokens each
	}{
		{"longer than the cache", 0, 51},
		{"longer than the context", 20_000, 45},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := upAgent(t, func(c *Config) { c.CapacityTokens = 50_000 })
			models := []card{{ID: "adapter", Root: "a"}, {ID: "m", Root: "m", MaxModelLen: float64(tt.context)}}
			a.noteDescription(engine.KindVLLM, models, serverInfo{})
			b := mustAdmit(t, a, Admission{Prompt: prompt(1, 20, 0, 20), QueuedAtProbe: -1})
			b.FirstContent()
			b.Finish(Outcome{})
			mustAdmit(t, a, Admission{Prompt: prompt(2, 0, 0, tt.keys), QueuedAtProbe: -1}).Finish(Outcome{Failed: true})
			b = mustAdmit(t, a, Admission{Prompt: prompt(1, 20, 0, 20), QueuedAtProbe: -1})
			if want := 19_999; b.Overlap() != want {
				t.Errorf("overlap %d, want %d", b.Overlap(), want)
			}
		})
	}
}

func TestEngineWithoutPrefixCacheHasNoResidency(t *testing.T) {
	a := upAgent(t, nil)
	a.noteReading(&reading{noPrefixCache: true}, engine.KindVLLM, book.Mark{})
	for range 2 {
		b := mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 1, 20)})
		b.FirstContent()
		b.Finish(Outcome{})
		if b.Overlap() != 0 {
			t.Errorf("overlap %d", b.Overlap())
		}
	}
}

func TestSequenceGrowsOverRestartsOfTheAgent(t *testing.T) {
	c := newClock()
	edit := func(cfg *Config) { cfg.Now = c.Now }
	a := upAgent(t, edit)
	var last engine.Load
	for range 200 {
		l := a.Load()
		if l.Seq <= last.Seq {
			t.Fatalf("seq %d after %d", l.Seq, last.Seq)
		}
		last = l
	}
	generation := a.Engine().Generation
	c.advance(time.Millisecond)
	b := upAgent(t, edit)
	if got := b.Load().Seq; got <= last.Seq {
		t.Errorf("seq %d of a restarted agent, %d before", got, last.Seq)
	}
	if b.Engine().Generation <= generation {
		t.Error("generation does not grow")
	}
}

func TestChangedTellsNewsOnce(t *testing.T) {
	a := upAgent(t, func(c *Config) { c.MaxRunning = 2 })
	told := func() bool {
		select {
		case <-a.Changed():
			return true
		default:
			return false
		}
	}
	told() // up
	var b [2]*Booking
	steps := []struct {
		name string
		do   func()
		want bool
	}{
		{"one request", func() { b[0] = mustAdmit(t, a, Admission{}) }, false},
		{"full", func() { b[1] = mustAdmit(t, a, Admission{}) }, true},
		{"content", func() { b[0].FirstContent() }, false},
		{"no longer full", func() { b[0].Finish(Outcome{}) }, true},
		{"empty", func() { b[1].Finish(Outcome{}) }, true},
		{"draining", func() { a.SetCordoned(true) }, true},
		{"draining still", func() { a.SetCordoned(true) }, false},
		{"admitting again", func() { a.SetCordoned(false) }, true},
		{"down", func() { a.hear(answerRefused) }, true},
		{"up in a new life", func() { a.hear(answerGood) }, true},
		{"described", func() { a.noteReading(&reading{blockTokens: 16}, engine.KindVLLM, book.Mark{}) }, true},
		{"described again", func() { a.noteReading(&reading{blockTokens: 16}, engine.KindVLLM, book.Mark{}) }, false},
	}
	for _, s := range steps {
		if s.do(); told() != s.want {
			t.Errorf("%s: told %v, want %v", s.name, !s.want, s.want)
		}
	}
}

func BenchmarkBooking(b *testing.B) {
	a := upAgent(b, nil)
	p := prompt(1, 200, 0, 250) // 1 MB: as many boundaries as 100,000 tokens have
	b.ReportAllocs()
	for b.Loop() {
		k := mustAdmit(b, a, Admission{Prompt: p, QueuedAtProbe: -1})
		k.FirstContent()
		k.Finish(Outcome{})
	}
}
