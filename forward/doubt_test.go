package forward

import (
	"bytes"
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
	if got, err := parseEnding(appendEnding(lie)); got != e || !errors.Is(err, engine.ErrImplausible) {
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
			if got := testutil.ToFloat64(a.metrics.doubts); got != float64(tt.lies) {
				t.Errorf("%s: %v loads doubted, want %d", tt.name, got, tt.lies)
			}
			after, _ := a.View.Candidate("b/0", time.Now())
			if after.Load.KVUsage != 0 || after.State != Fresh || tt.lies == 3 && after.Load.Seq != before.Load.Seq {
				t.Errorf("%s: the view took %+v, state %v", tt.name, after.Load, after.State)
			}
			if n := strings.Count(log.String(), "load not believed"); n != 1 || !strings.Contains(log.String(), "agent=b engine=b/0") {
				t.Errorf("%s: warned %d times, want once, with the names: %s", tt.name, n, log)
			}
		})
	}
}

func TestBounceStandsWithoutItsLoad(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		b.book.set(func(k *memBooker) { k.lie, k.refuse = true, "down" })
		a.book.refuse = "draining"
		c := &call{Engine: "0", Method: http.MethodPost, Path: "/v1/chat/completions", QueuedAtProbe: -1}
		_, err := a.askPeer(t.Context(), "b", c, nil, 1, newAnswer(discardWriter{http.Header{}}, 0, false))
		if refused, ok := errors.AsType[*bounce](err); !ok || refused.Reason != "down" || errors.Is(err, engine.ErrImplausible) {
			t.Errorf("got %v, want the bounce alone", err)
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

func TestDoubtIsNamedOnceAMinuteForAFewEngines(t *testing.T) {
	var d doubted
	now := time.Unix(1000, 0)
	for i := range maxDoubted {
		if id := engine.MakeID("b", fmt.Sprint(i)); !d.first(id, now) || d.first(id, now.Add(doubtGap-1)) {
			t.Fatalf("%s: want the first, and none within the gap", id)
		}
	}
	if d.first("b/new", now.Add(doubtGap-1)) || len(d.at) != maxDoubted {
		t.Errorf("one more than is remembered was named: %d", len(d.at))
	}
	if !d.first("b/0", now.Add(doubtGap)) || len(d.at) != 1 {
		t.Errorf("after the gap: not named again, or %d are remembered", len(d.at))
	}
}
