package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestMostEnginesAreNoOutliers(t *testing.T) {
	const e, f, d = engine.Ejected, engine.Full, engine.Down
	tests := []struct {
		name  string
		flags []engine.Flags
		want  bool
	}{
		{"none", []engine.Flags{0, 0}, false},
		{"half", []engine.Flags{e, 0}, false},
		{"more than half", []engine.Flags{e, e, 0}, true},
		{"the only one", []engine.Flags{e}, true},
		{"full ones serve soon", []engine.Flags{e, f}, false},
		{"those that are down do not serve", []engine.Flags{e, d}, true},
		{"one that is ejected and down", []engine.Flags{e | d, 0}, false},
		{"nobody", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var all []Candidate
			for i, flags := range tt.flags {
				c := candidate(string(rune('a'+i))+"/0", 0, 0, 0)
				c.Load.Flags = flags
				all = append(all, c)
			}
			if got := Overrule(all); got != tt.want {
				t.Errorf("overruled %t, want %t", got, tt.want)
			}
			for _, c := range all {
				if c.Forced != (tt.want && c.Load.Flags&e != 0) {
					t.Errorf("%s with flags %b: forced %t", c.ID, c.Load.Flags, c.Forced)
				}
			}
		})
	}
}

func TestEjectionNeverLeavesARequestWithoutEngine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawCandidates(t)
		able, eligible, waits := 0, 0, false
		for _, c := range all {
			if c.State != Unreachable && c.Load.Usable() {
				able++
			}
			waits = waits || c.State != Unreachable && c.Load.Flags&(engine.Full|engine.Down|engine.Draining) == engine.Full
		}
		Overrule(all)
		for i := range all {
			if all[i].Eligible() {
				eligible++
			}
		}
		if eligible > able || able > 0 && eligible == 0 && !waits {
			t.Fatalf("%d engines could serve, %d may, and none is full", able, eligible)
		}
	})
}

// silentEngine takes requests and answers nothing before release is closed; then what echoEngine does.
type silentEngine struct {
	name    string
	release chan struct{}
}

func (e silentEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-e.release:
		echoEngine{e.name}.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

func TestRequestOnAStuckEngineIsServedElsewhere(t *testing.T) {
	eachSide(t, func(t *testing.T, a, owner, other *memAgent) {
		owner.engine = silentEngine{"x", nil}
		time.AfterFunc(10*time.Second, func() {
			other.book.set(func(b *memBooker) { b.refuse = "" })
			owner.book.set(func(b *memBooker) { b.eject = true; b.choke(errors.New("silent")) })
		})
		start := time.Now()
		w := a.post(t.Context(), chatBody)
		attempts := a.last().Attempts
		if !strings.HasSuffix(w.Body.String(), doneChunk) || attempts[len(attempts)-2].Result != "stuck" || time.Since(start) > 11*time.Second {
			t.Errorf("got %d %q after %v and %v", w.Code, w.Body, attempts, time.Since(start))
		}
		if o := owner.book.outcomes(); len(o) != 1 || !o[0].Failed {
			t.Errorf("outcomes %+v: the engine failed one", o)
		}
	})
}

func TestContentAfterARequestWasGivenUpIsNotPassedOn(t *testing.T) {
	eachSide(t, func(t *testing.T, a, owner, other *memAgent) {
		release := make(chan struct{})
		owner.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			owner.book.set(func(b *memBooker) { b.eject = true; b.choke(errors.New("silent")) }) // its connection is not closed yet
			other.book.set(func(b *memBooker) { b.refuse = "" })
			close(release)
			echoEngine{"late"}.ServeHTTP(w, r)
		})
		w := a.post(t.Context(), chatBody)
		<-release
		if strings.Contains(w.Body.String(), "late") || !strings.HasSuffix(w.Body.String(), doneChunk) {
			t.Errorf("got %q after %v", w.Body, a.last().Attempts)
		}
	})
}

func TestQueuedRequestOfAStuckEngineWasNeverSent(t *testing.T) {
	stored := strings.Replace(chatBody, `"stream"`, `"store":true,"stream"`, 1)
	eachSide(t, func(t *testing.T, a, owner, other *memAgent) {
		owner.engine = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the engine was asked") })
		owner.book.turn = func(context.Context) error {
			owner.book.set(func(b *memBooker) { b.eject = true; b.choke(errors.New("silent")) })
			other.book.set(func(b *memBooker) { b.refuse = "" })
			return errors.New("silent")
		}
		w := a.post(t.Context(), stored)
		attempts := a.last().Attempts
		if !strings.HasSuffix(w.Body.String(), doneChunk) || attempts[len(attempts)-2].Result != "bounce_ejected" {
			t.Errorf("got %d %q after %v", w.Code, w.Body, attempts)
		}
	})
}

func TestEjectedEngineServesWhenThereIsNoOther(t *testing.T) {
	mesh2(t, func(t *testing.T, m *memMesh, a, b *memAgent) {
		b.book.set(func(b *memBooker) { b.eject = true })
		for range 20 {
			if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK || a.last().Engine != "a/0" {
				t.Fatalf("got %d from %s", w.Code, a.last().Engine)
			}
		}
		a.book.set(func(b *memBooker) { b.eject = true })
		served := map[engine.ID]int{}
		for range 20 {
			if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK {
				t.Fatalf("got %d %q", w.Code, w.Body)
			}
			served[a.last().Engine]++
		}
		if len(served) != 2 {
			t.Errorf("served by %v, want both: neither is an outlier", served)
		}
	})
}
