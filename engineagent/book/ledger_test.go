package book

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// plainLedger recounts everything from a list of all requests.
type plainLedger struct {
	entries []*plainEntry
	head    *plainEntry
	since   time.Time
}

type plainEntry struct {
	newTokens      int
	content, ended bool
}

func (l *plainLedger) tick(now time.Time) {
	for _, e := range l.entries {
		if !e.content && !e.ended {
			if l.head != e {
				l.head, l.since = e, now
			}
			return
		}
	}
	l.head = nil
}

func (l *plainLedger) count() (waiting, running int) {
	for _, e := range l.entries {
		switch {
		case e.ended:
		case e.content:
			running++
		default:
			waiting++
		}
	}
	return waiting, running
}

func (l *plainLedger) queuedSeconds(rate float64, now time.Time) (s float64) {
	for _, e := range l.entries {
		if e.content || e.ended {
			continue
		}
		own := float64(e.newTokens) / rate
		if e == l.head {
			own = max(own-now.Sub(l.since).Seconds(), 0)
		}
		s += own
	}
	return s
}

func TestLedgerAgreesWithPlainLedger(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	var l ledger
	var plain plainLedger
	var all []*Entry
	now := time.Unix(1000, 0)
	for range 3000 {
		now = now.Add(time.Duration(rng.IntN(200)) * time.Millisecond)
		if i := rng.IntN(len(all) + 1); i == len(all) || rng.IntN(3) == 0 {
			n := 1 + rng.IntN(5000)
			all = append(all, &Entry{newTokens: n})
			plain.entries = append(plain.entries, &plainEntry{newTokens: n})
			l.book(all[len(all)-1], now)
		} else if rng.IntN(2) == 0 {
			l.content(all[i], now)
			plain.entries[i].content = plain.entries[i].content || !plain.entries[i].ended
		} else {
			l.end(all[i], now)
			plain.entries[i].ended = true
		}
		plain.tick(now)
		waiting, running := plain.count()
		got, want := l.queuedSeconds(1000, now), plain.queuedSeconds(1000, now)
		if len(l.waiting) != waiting || l.running != running || math.Abs(got-want) > 1e-6 {
			t.Fatalf("waiting %d, running %d, queued %v s; plain ledger has %d, %d, %v",
				len(l.waiting), l.running, got, waiting, running, want)
		}
	}
}
