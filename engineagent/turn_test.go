package engineagent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// stream is a request without keys whose prefill takes so long at the default speed.
func stream(prefill time.Duration) Admission {
	return Admission{
		Bytes:         int64(prefill.Seconds() * engine.DefaultPrefillRate * engine.DefaultBytesPerToken),
		QueuedAtProbe: -1, Traits: openai.TraitStream,
	}
}

// turns is what became of bookings that wait.
type turns struct {
	mu  sync.Mutex
	log []string
	wg  sync.WaitGroup
}

func (q *turns) wait(ctx context.Context, name string, b *Booking) {
	q.wg.Go(func() {
		err := b.Turn(ctx)
		q.mu.Lock()
		defer q.mu.Unlock()
		if err != nil {
			name += ": " + err.Error()
		}
		q.log = append(q.log, name)
	})
}

// take returns what happened since it was last asked.
func (q *turns) take() string {
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	log := q.log
	q.log = nil
	return fmt.Sprint(log)
}

func (q *turns) want(t *testing.T, when, want string) {
	t.Helper()
	if got := q.take(); got != want {
		t.Errorf("%s: %s, want %s", when, got, want)
	}
}

func TestRequestsWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		var q turns
		b := map[string]*Booking{}
		for _, r := range []struct {
			name    string
			prefill time.Duration
		}{{"first", time.Second}, {"long", 3 * time.Second}, {"short", time.Second}, {"middle", 2 * time.Second}} {
			b[r.name] = mustAdmit(t, a, stream(r.prefill))
			q.wait(t.Context(), r.name, b[r.name])
		}
		q.want(t, "at once", "[first]")
		if n := a.Queued(); n != 3 {
			t.Errorf("%d wait with the owner, want 3", n)
		}
		time.Sleep(time.Second)
		b["first"].FirstContent()
		q.want(t, "after the first content", "[short]")
		b["short"].Finish(Outcome{Failed: true})
		q.want(t, "after an end", "[middle]")
		time.Sleep(5*time.Second - time.Nanosecond)
		q.want(t, "while a stream is only slow", "[]")
		time.Sleep(time.Nanosecond)
		q.want(t, "when its tokens do not show", "[long]")
		for _, b := range b {
			b.Finish(Outcome{})
		}
		q.wg.Wait()
		wantIdle(t, a)
	})
}

func TestQueueCanBeTurnedOff(t *testing.T) {
	a := upAgent(t, func(c *Config) { c.NoQueue = true })
	for range 3 {
		if b := mustAdmit(t, a, stream(time.Minute)); b.Turn(t.Context()) != nil || a.Queued() != 0 {
			t.Errorf("%d wait with the owner", a.Queued())
		}
	}
}

func TestRequestThatIsGivenUpInTheQueueLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		var q turns
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		head, given, next := mustAdmit(t, a, stream(time.Second)), mustAdmit(t, a, stream(time.Second)), mustAdmit(t, a, stream(time.Second))
		q.wait(ctx, "given up", given)
		q.wait(t.Context(), "next", next)
		cancel(gone)
		q.want(t, "client gone", "[given up: gone]")
		given.Finish(Outcome{})
		given.Finish(Outcome{})
		head.FirstContent()
		q.want(t, "the place is the next one's", "[next]")
		head.Finish(Outcome{})
		next.Finish(Outcome{})
		wantIdle(t, a)
		if err := given.Turn(ctx); !errors.Is(err, gone) {
			t.Errorf("a finished booking got its turn: %v", err)
		}
	})
}

func TestEngineThatGoesDownFreesItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, nil)
		var q turns
		head, waits := mustAdmit(t, a, stream(time.Second)), mustAdmit(t, a, stream(time.Second))
		q.wait(t.Context(), "waits", waits)
		q.want(t, "up", "[]")
		a.hear(answerRefused)
		q.want(t, "down", "[waits: "+ErrDown.Error()+"]")
		if err := waits.Turn(t.Context()); !errors.Is(err, ErrDown) {
			t.Errorf("asked again: %v", err)
		}
		waits.Finish(Outcome{})
		head.Finish(Outcome{})
		a.hear(answerGood)
		again := mustAdmit(t, a, stream(time.Second))
		if err := again.Turn(t.Context()); err != nil {
			t.Errorf("up again: %v", err)
		}
		again.Finish(Outcome{})
		wantIdle(t, a)
	})
}

func TestManyWaitersAllGetTheirTurnOrLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := upAgent(t, func(c *Config) { c.MaxRunning = 1000 })
		var wg sync.WaitGroup
		for i := range uint64(300) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(i, 7))
				time.Sleep(time.Duration(rng.IntN(10_000)) * time.Millisecond)
				b := mustAdmit(t, a, stream(time.Duration(1+rng.IntN(1000))*time.Millisecond))
				defer b.Finish(Outcome{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(60_000))*time.Millisecond)
				defer cancel()
				if b.Turn(ctx) != nil || rng.IntN(4) == 0 {
					return
				}
				time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
				b.FirstContent()
				time.Sleep(time.Second)
			})
		}
		wg.Wait()
		wantIdle(t, a)
		if a.Queued() != 0 {
			t.Errorf("%d wait with the owner", a.Queued())
		}
	})
}

func TestWindowIsOneStepOfPrefill(t *testing.T) {
	tests := []struct {
		name string
		edit func(*Config)
		note func(a *Agent)
		want int
	}{
		{"nothing known", nil, func(*Agent) {}, book.DefaultWindow},
		{"SGLang says", nil, func(a *Agent) { a.noteDescription(engine.KindSGLang, nil, serverInfo{PrefillStep: 4096}) }, 4096},
		{"SGLang computes whole prompts", nil, func(a *Agent) {
			a.noteDescription(engine.KindSGLang, nil, serverInfo{PrefillStep: -1})
		}, book.DefaultWindow},
		{"two ranks", nil, func(a *Agent) {
			a.noteReading(&reading{ranks: 2}, engine.KindVLLM, book.Mark{})
		}, 2 * book.DefaultWindow},
		{"the configuration goes first", func(c *Config) { c.PrefillStep = 2048 }, func(a *Agent) {
			a.noteDescription(engine.KindSGLang, nil, serverInfo{PrefillStep: 4096})
		}, 2048},
		{"off", func(c *Config) { c.NoQueue = true }, func(a *Agent) {
			a.noteReading(&reading{ranks: 2}, engine.KindVLLM, book.Mark{})
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := upAgent(t, tt.edit)
			tt.note(a)
			if got := a.windowLocked(); got != tt.want {
				t.Errorf("window of %d tokens, want %d", got, tt.want)
			}
		})
	}
}

func TestWiderWindowLetsRequestsGo(t *testing.T) {
	a := upAgent(t, func(c *Config) { c.PrefillStep = 1 })
	mustAdmit(t, a, stream(time.Second))
	b := mustAdmit(t, a, stream(time.Second))
	if a.Queued() != 1 {
		t.Fatalf("%d wait with the owner, want 1", a.Queued())
	}
	a.noteReading(&reading{ranks: 1 << 15}, engine.KindVLLM, a.book.mark())
	if err := b.Turn(t.Context()); err != nil || a.Queued() != 0 {
		t.Errorf("%d wait with the owner, turn %v", a.Queued(), err)
	}
}
