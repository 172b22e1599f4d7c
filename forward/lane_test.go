package forward

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// laneOf opens a lane to a client that reads nothing.
func laneOf(t *testing.T) *lane {
	t.Helper()
	return openLane(t, newAnswer(discardWriter{http.Header{}}, 0, false))
}

func openLane(t *testing.T, a *answer) *lane {
	t.Helper()
	l := a.lane(t.Context(), lane{another: func() bool { return false }, onAccept: func(engine.Load) {}})
	t.Cleanup(l.close)
	return l
}

// eventHead is that of an engine's stream.
func eventHead() *head {
	return &head{http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}}}
}

func TestFirstLaneWithContentHasTheAnswer(t *testing.T) {
	w := httptest.NewRecorder()
	a := newAnswer(w, openai.RouteChat, false)
	slow, fast := openLane(t, a), openLane(t, a)
	for _, l := range []*lane{slow, fast} {
		if err := errors.Join(l.head(eventHead()), l.data([]byte("role "), false)); err != nil {
			t.Fatal(err)
		}
	}
	if w.Flushed || a.started() || slow.ctx.Err() != nil {
		t.Fatalf("%q went out, or a lane was stopped, before there was content", w.Body)
	}
	if err := fast.data([]byte("fast "), true); err != nil || !slow.lost() || fast.ctx.Err() != nil {
		t.Errorf("got %v; the slow one lost: %t, the fast one: %v", err, slow.lost(), fast.ctx.Err())
	}
	for _, err := range []error{slow.data([]byte("slow "), true), slow.end()} {
		if !errors.Is(err, errLost) {
			t.Errorf("the slow lane got %v, want errLost", err)
		}
	}
	if err := errors.Join(fast.data([]byte("done"), true), fast.end()); err != nil || w.Body.String() != "role fast done" {
		t.Errorf("got %q, %v", w.Body, err)
	}
}

func TestLaneThatTakesOverWritesNoSecondHeader(t *testing.T) {
	w := httptest.NewRecorder()
	a := newAnswer(w, openai.RouteChat, true)
	defer a.close()
	calls := 0
	a.onContent = func() { calls++ }
	first := openLane(t, a)
	_ = first.head(eventHead())
	if err := first.data([]byte("one "), true); err != nil {
		t.Fatal(err)
	}
	first.close()
	a.release()
	second := openLane(t, a)
	_ = second.head(&head{http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}, "X-Second": {"1"}}})
	err := errors.Join(second.data([]byte("two "), false), second.data([]byte("three"), true))
	if err != nil || w.Body.String() != "one two three" || w.Header().Get("X-Second") != "" || calls != 1 {
		t.Errorf("got %q with header %v, %d first contents, %v", w.Body, w.Header(), calls, err)
	}
}

// stuckWriter is a client that takes the header and then nothing until it is let go.
type stuckWriter struct {
	*httptest.ResponseRecorder
	free chan struct{}
}

func (s stuckWriter) Write(b []byte) (int, error) {
	<-s.free
	return s.ResponseRecorder.Write(b)
}

// TestSlowClientHoldsUpNoOtherLane has the winner's write wait for the client: the loser must end all the same.
func TestSlowClientHoldsUpNoOtherLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := stuckWriter{httptest.NewRecorder(), make(chan struct{})}
		a := newAnswer(w, openai.RouteChat, true)
		defer a.close()
		winner, loser := openLane(t, a), openLane(t, a)
		written := make(chan error)
		go func() {
			written <- errors.Join(winner.head(eventHead()), winner.data([]byte("one"), true))
		}()
		synctest.Wait()
		if err := loser.data([]byte("two"), true); !errors.Is(err, errLost) || !loser.lost() || !a.started() {
			t.Errorf("got %v, lost: %t, while the client is slow", err, loser.lost())
		}
		close(w.free)
		if err := <-written; err != nil || w.Body.String() != "one" {
			t.Errorf("got %q, %v", w.Body, err)
		}
	})
}

// TestLanesInARaceSendOneAnswer has many lanes answer at once, with the comments between.
func TestLanesInARaceSendOneAnswer(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			w := httptest.NewRecorder()
			a := newAnswer(w, openai.RouteChat, true)
			const n = 4
			errs := make(chan error, n)
			for i := range n {
				l := openLane(t, a)
				go func() {
					word := bytes.Repeat([]byte{byte('a' + i)}, 3)
					errs <- errors.Join(l.head(eventHead()), l.data(word, true), l.data(word, true), l.end())
				}()
			}
			a.comment()
			lost := 0
			for range n {
				if err := <-errs; errors.Is(err, errLost) {
					lost++
				} else if err != nil {
					t.Error(err)
				}
			}
			a.close()
			got, _ := io.ReadAll(w.Body)
			got = bytes.TrimPrefix(got, []byte(": waiting for the first token\n\n"))
			if lost != n-1 || len(got) != 6 || len(slices.Compact(got)) != 1 {
				t.Errorf("got %q, and %d lanes lost", got, lost)
			}
		})
	}
}

func TestWhatTwoLanesHoldIsBounded(t *testing.T) {
	w := httptest.NewRecorder()
	a := newAnswer(w, openai.RouteChat, false)
	lanes := []*lane{openLane(t, a), openLane(t, a)}
	piece := bytes.Repeat([]byte(" "), maxHeld/4)
	for _, l := range lanes {
		_ = l.head(eventHead())
	}
	for range 4 {
		for _, l := range lanes {
			if err := l.data(piece, false); err != nil || a.started() {
				t.Fatalf("%v with %d bytes held, started %t", err, len(l.held), a.started())
			}
		}
	}
	err := lanes[0].data(piece, false)
	if err != nil || len(lanes[0].held) > 0 || w.Body.Len() != maxHeld+len(piece) || !lanes[1].lost() {
		t.Errorf("%v; %d bytes held, %d written, the other lane lost: %t", err, len(lanes[0].held), w.Body.Len(), lanes[1].lost())
	}
	if err := lanes[1].data(piece, false); !errors.Is(err, errLost) {
		t.Errorf("the other lane goes on: %v", err)
	}
}

func TestEnginesHeaderIsBounded(t *testing.T) {
	for size, ok := range map[int]bool{maxHeaderText / 2: true, 2 * maxHeaderText: false} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Long", strings.Repeat("x", size)) }))
		transport := NewEngineTransport()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, engine.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(r)
		if (err == nil) != ok {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
		transport.CloseIdleConnections()
		engine.Close()
	}
}
