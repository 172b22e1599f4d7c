package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// impossible is a load that no engine can have.
var impossible = engine.Load{Seq: 1 << 40, KVUsage: 2}

func TestFramesStandWithoutALoadThatCannotBeTrue(t *testing.T) {
	want := verdict{Reason: "full"}
	if got, err := parseVerdict(appendVerdict(verdict{"full", impossible})); got != want || !errors.Is(err, engine.ErrImplausible) {
		t.Errorf("verdict: %+v %v, want %+v", got, err, want)
	}
	e := ending{Usage: openai.Usage{PromptTokens: 5}, HasUsage: true}
	lie := e
	lie.Load = impossible
	if got, err := parseEnding(appendEnding(lie)); cmp.Diff(e, got) != "" || !errors.Is(err, engine.ErrImplausible) {
		t.Errorf("ending: %+v %v, want %+v", got, err, e)
	}
	good := EngineLoad{"b", engine.Load{Seq: 3, InFlight: 2}}
	r, err := ParseReport(AppendReport(nil, Report{Period: time.Second, Loads: []EngineLoad{{"a", impossible}, good, {"c", impossible}}}))
	if diff := cmp.Diff([]EngineLoad{good}, r.Loads); err != nil || diff != "" {
		t.Errorf("report: %v, loads (-want +got):\n%s", err, diff)
	}
	if len(r.Doubts) != 2 || r.Doubts[0].Name != "a" || r.Doubts[1].Name != "c" {
		t.Errorf("doubts %+v, want a and c", r.Doubts)
	}
}

// hearing is where a's log goes.
func hearing(a *memAgent) *bytes.Buffer {
	var log bytes.Buffer
	a.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return &log
}

func TestLoadThatCannotBeTrueCostsNoAnswer(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lies  int // of the probe's answer, the accept and the end
		start func(b *memAgent)
	}{
		{"always", 3, func(b *memAgent) { b.book.set(func(k *memBooker) { k.lie = true }) }},
		{"at the end", 1, func(b *memAgent) {
			b.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b.book.set(func(k *memBooker) { k.lie = true })
				echoEngine{"b"}.ServeHTTP(w, r)
			})
		}},
	} {
		mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
			log := hearing(a)
			a.book.refuse = "draining"
			tt.start(b)
			before, _ := a.View.Candidate("b/0", time.Now())
			w := a.post(t.Context(), chatBody)
			if e := a.last(); w.Body.String() != (echoEngine{"b"}.answer()) || e.Outcome != outcomeOK || e.PromptTokens != 10 {
				t.Errorf("%s: got %d %q, event %+v", tt.name, w.Code, w.Body, e)
			}
			if got := testutil.ToFloat64(a.metrics.doubts.WithLabelValues(DoubtLoad)); got != float64(tt.lies) {
				t.Errorf("%s: %v loads doubted, want %d", tt.name, got, tt.lies)
			}
			after, _ := a.View.Candidate("b/0", time.Now())
			if after.Load.KVUsage != 0 || after.State != Fresh || tt.lies == 3 && after.Load.Seq != before.Load.Seq {
				t.Errorf("%s: the view took %+v, state %v", tt.name, after.Load, after.State)
			}
			if after.Known {
				t.Errorf("%s: the load counts as known", tt.name)
			}
			if n := strings.Count(log.String(), `msg="not believed" agent=b engine=b/0 what="load out of range"`); n != 1 {
				t.Errorf("%s: warned %d times, want once, with the names: %s", tt.name, n, log)
			}
			if d := a.Doubts(); len(d) != 1 || d[0].Agent != "b" || d[0].Engine != "b/0" || d[0].What != DoubtLoad || d[0].Count != tt.lies {
				t.Errorf("%s: doubts %+v", tt.name, d)
			}
		})
	}
}

func TestBounceStandsWithoutItsLoad(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.set(func(k *memBooker) { k.lie, k.refuse = true, "down" })
		a.book.refuse = "draining"
		c := &call{Engine: "0", Method: http.MethodPost, Path: "/v1/chat/completions", QueuedAtProbe: -1}
		_, err := a.askPeer(t.Context(), "b", c, nil, 1, laneOf(t))
		if refused, ok := errors.AsType[*bounce](err); !ok || refused.Reason != "down" || errors.Is(err, engine.ErrImplausible) {
			t.Errorf("got %v, want the bounce alone", err)
		}
	})
}

// endingBooker ends a request that asks for ever.
type endingBooker struct {
	*memBooker
	asked int
	end   context.CancelFunc
}

func (b *endingBooker) Admit(ad Admission) (Booking, engine.Load, error) {
	if b.asked++; b.asked > 1000 {
		b.end()
	}
	return b.memBooker.Admit(ad)
}

// TestFullEngineWhoseLoadIsDoubtedIsNotAskedForEver: the next decision does not know that it is full.
func TestFullEngineWhoseLoadIsDoubtedIsNotAskedForEver(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.down = true
		b.book.set(func(k *memBooker) { k.lie, k.refuse = true, "full" })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		booker := &endingBooker{memBooker: b.book, end: cancel}
		e := b.Owner.engines["0"]
		e.Booker = booker
		b.Owner.engines["0"] = e
		if w := a.post(ctx, chatBody); w.Code != http.StatusServiceUnavailable || booker.asked != maxAttempts {
			t.Errorf("got %d after %d questions, want 503 after %d", w.Code, booker.asked, maxAttempts)
		}
	})
}

func TestLoadOfAFailureIsTaken(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse = "draining"
		b.engine = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			b.book.NoteUnreachable()
			panic("reset")
		})
		a.post(t.Context(), chatBody)
		if c, _ := a.View.Candidate("b/0", time.Now()); c.Load.Flags&engine.Down == 0 {
			t.Errorf("the view has %+v after the failure said that the engine is down", c.Load)
		}
	})
}

func TestDoubtedLoadIsUnknownUntilOneIsTrue(t *testing.T) {
	m := newMemMesh(t, "a", "b")
	g, now := m.agents["a"], time.Now()
	at := func(r Report) Candidate {
		r.Period = time.Second
		g.Hear("b", r, now)
		c, _ := g.View.Candidate("b/0", now)
		return c
	}
	before := at(Report{Loads: []EngineLoad{{"0", engine.Load{Seq: 1 << 50, InFlight: 9, Flags: engine.Full}}}})
	if !before.Known || before.Eligible() {
		t.Fatalf("at first: %+v", before)
	}
	doubt := Report{Doubts: []EngineDoubt{{"0", engine.ErrImplausible}}}
	for range 2 {
		if c := at(doubt); c.Known || c.Load.InFlight != 0 || !c.Eligible() || c.State != Fresh {
			t.Errorf("doubted: %+v, want it unknown", c)
		}
	}
	if c := at(Report{Loads: []EngineLoad{{"0", engine.Load{Seq: 1<<50 - 1, InFlight: 8}}}}); c.Known {
		t.Errorf("an older load came: %+v, want it unknown still", c)
	}
	if c := at(Report{Loads: []EngineLoad{{"0", engine.Load{Seq: 1<<50 + 1, InFlight: 3}}}}); !c.Known || c.Load.InFlight != 3 {
		t.Errorf("a newer load came: %+v, want it known", c)
	}
}

func TestDoubtIsNamedOnceAMinute(t *testing.T) {
	var d doubts
	now := time.Unix(1000, 0)
	for i, tt := range []struct {
		engine engine.ID
		what   string
		after  time.Duration
		warn   bool
	}{
		{"b/0", DoubtLoad, 0, true},
		{"b/0", DoubtLoad, doubtGap - 1, false},
		{"b/1", DoubtLoad, doubtGap - 1, true},
		{"b/0", DoubtDigest, doubtGap - 1, true},
		{"", DoubtGeometry, doubtGap - 1, true},
		{"b/0", DoubtLoad, doubtGap, true},
		{"b/0", DoubtLoad, doubtGap + 1, false},
	} {
		if got := d.note("b", tt.engine, tt.what, now.Add(tt.after)); got != tt.warn {
			t.Errorf("%d: %s of %q after %v: warned %t, want %t", i, tt.what, tt.engine, tt.after, got, tt.warn)
		}
	}
	last := d.list[len(d.list)-1]
	if len(d.list) != 4 || last.Count != 4 || last.Engine != "b/0" || last.What != DoubtLoad || !last.Last.Equal(now.Add(doubtGap+1)) {
		t.Errorf("remembered %+v, want four, the last one told four times", d.list)
	}
}

func TestOneAgentTakesFewPlacesAmongTheDoubts(t *testing.T) {
	var d doubts
	now := time.Unix(1000, 0)
	d.note("honest", "honest/0", DoubtLoad, now)
	warnings := 0
	for i := range 1000 {
		if d.note("liar", engine.MakeID("liar", fmt.Sprint(i)), DoubtLoad, now) {
			warnings++
		}
	}
	last := d.list[len(d.list)-1]
	if len(d.list) != 1+maxDoubtsOf+1 || warnings != maxDoubtsOf+1 || last.Engine != "" || last.Count != 1000-maxDoubtsOf {
		t.Errorf("%d are remembered, %d times warned, last %+v", len(d.list), warnings, last)
	}
}

func TestDoubtsBeyondTheBoundForgetTheOldestWithoutMoreWarnings(t *testing.T) {
	var d doubts
	now := time.Unix(1000, 0)
	note := func(from, to int, now time.Time) (warnings int) {
		for i := from; i < to; i++ {
			if agent := fmt.Sprint(i); d.note(agent, engine.MakeID(agent, "0"), DoubtLoad, now) {
				warnings++
			}
		}
		return warnings
	}
	if n := note(0, maxDoubts, now); n != maxDoubts {
		t.Errorf("warned of %d, want each", n)
	}
	if n := note(maxDoubts, maxDoubts+10, now.Add(doubtGap-1)); n != 0 || len(d.list) != maxDoubts || d.list[0].Agent != "10" {
		t.Errorf("beyond the bound: warned of %d, %d remembered, the oldest %+v", n, len(d.list), d.list[0])
	}
	if n := note(maxDoubts+10, maxDoubts+20, now.Add(doubtGap)); n != 10 {
		t.Errorf("in place of quiet ones: warned of %d, want each", n)
	}
}
