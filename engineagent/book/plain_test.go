package book

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// plainBook keeps every request in one list, looks through all of it each time, and moves in steps of a millisecond.
type plainBook struct {
	all    []*plainEntry // in the order of arrival
	window int
	now    int // milliseconds
	ever   int // requests that were handed over
}

type plainEntry struct {
	prefill int // milliseconds
	whole   bool
	came    int
	handed  int // its place in the order of hand-over; 0 before
	worked  int // milliseconds as head
	late    bool
	content bool
	ended   bool
}

// head is what the engine prefills: of those handed over, the first without content that is not late.
func (p *plainBook) head() (head *plainEntry) {
	for _, e := range p.all {
		if e.atWork() && (head == nil || e.handed < head.handed) {
			head = e
		}
	}
	return head
}

func (e *plainEntry) atWork() bool { return e.handed > 0 && !e.late && !e.content && !e.ended }

func (p *plainBook) tick() {
	p.now++
	e := p.head()
	if e == nil {
		return
	}
	e.worked++
	e.late = e.worked >= e.limit()
}

func (e *plainEntry) limit() int {
	if e.whole {
		return e.prefill
	}
	return 2*e.prefill + 1000
}

// next sorts all that wait, by what they are now worth.
func (p *plainBook) next() *plainEntry {
	var queued []*plainEntry
	atWork := 0
	for _, e := range p.all {
		if e.atWork() {
			atWork += e.prefill * tokensPerMillisecond
		}
		if e.handed == 0 && !e.content && !e.ended {
			queued = append(queued, e)
		}
	}
	if len(queued) == 0 || p.window > 0 && atWork >= p.window {
		return nil
	}
	slices.SortStableFunc(queued, func(a, b *plainEntry) int {
		return 10*a.prefill - (p.now - a.came) - (10*b.prefill - (p.now - b.came))
	})
	p.ever++
	queued[0].handed = p.ever
	return queued[0]
}

func (p *plainBook) count() (queued, waiting, running int, seconds float64) {
	for _, e := range p.all {
		switch {
		case e.ended:
		case e.content:
			running++
		case e.handed == 0:
			queued++
			seconds += float64(e.prefill) / 1000
		default:
			waiting++
			if !e.late {
				seconds += float64(max(e.prefill-e.worked, 0)) / 1000
			}
		}
	}
	return queued, waiting, running, seconds
}

// tokensPerMillisecond is the default speed.
const tokensPerMillisecond = engine.DefaultPrefillRate / 1000

// twins are a Book and a plainBook that are told the same.
type twins struct {
	t     *testing.T
	book  *Book
	plain *plainBook
	all   []*Entry
	start time.Time
}

func (w *twins) now() time.Time { return w.start.Add(time.Duration(w.plain.now) * time.Millisecond) }

func (w *twins) accept(prefill int, whole bool) {
	e := &Entry{Value: len(w.all)}
	w.all = append(w.all, e)
	w.plain.all = append(w.plain.all, &plainEntry{prefill: prefill, whole: whole, came: w.plain.now})
	w.book.Book(e, Work{New: prefill * tokensPerMillisecond, Whole: whole}, w.now())
}

// hand hands over all that both let go, and compares which.
func (w *twins) hand() {
	w.t.Helper()
	for {
		e, p := w.book.Next(w.now()), w.plain.next()
		switch {
		case e == nil && p == nil:
			return
		case e == nil || p == nil || e.Value.(int) != slices.Index(w.plain.all, p):
			w.t.Fatalf("at %d ms: handed over %+v, want %+v", w.plain.now, e, p)
		}
	}
}

// pass lets time pass. The Book may miss it, but for what Wake asks for.
func (w *twins) pass(ms int) {
	w.t.Helper()
	for range ms {
		w.plain.tick()
		if at, ok := w.book.Wake(); ok && !at.After(w.now()) {
			w.hand()
		}
	}
}

func (w *twins) compare() {
	w.t.Helper()
	queued, waiting, running, seconds := w.plain.count()
	l := w.book.Load(w.now())
	if w.book.Queued() != queued || l.Waiting != queued+waiting || l.InFlight != queued+waiting+running ||
		math.Abs(l.QueuedSeconds-seconds) > 1e-6 {
		w.t.Fatalf("at %d ms: %d with the owner and %+v; plain book has %d, %d waiting, %d running, %v s",
			w.plain.now, w.book.Queued(), l, queued, waiting, running, seconds)
	}
}

func TestBookAgreesWithPlainBook(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	for _, window := range []int{0, 1, DefaultWindow} {
		start := time.Unix(1000, 0)
		w := &twins{
			t: t, start: start, plain: &plainBook{window: window},
			book: New(Config{MaxRunning: 1 << 20, Window: window, ShortestFirst: true}, start),
		}
		for range 1000 {
			w.pass(rng.IntN(200))
			if i := rng.IntN(len(w.all) + 1); i == len(w.all) || rng.IntN(2) == 0 {
				w.accept(1+rng.IntN(700), rng.IntN(4) == 0)
			} else if e, p := w.all[i], w.plain.all[i]; rng.IntN(2) == 0 {
				w.book.End(e, w.now())
				p.ended = true
			} else if p.handed > 0 {
				w.book.Content(e, w.now())
				p.content = p.content || !p.ended
			}
			w.hand()
			w.compare()
		}
	}
}
