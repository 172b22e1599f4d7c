package forward

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// More of what is left of a request whose client goes is in internal/simcluster, by stage and protocol.

func TestClientThatGoesWhileAPeerIsDialedLeavesNothing(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
		a.book.refuse, b.far = "draining", true
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		begun := time.Now()
		a.post(ctx, chatBody)
		if took := time.Since(begun); took != 20*time.Millisecond {
			t.Errorf("its request ended after %v", took)
		}
		if e := a.last(); e.Outcome != outcomeCanceled || a.View.StateOf("b", time.Now()) != Fresh {
			t.Errorf("outcome %q, and the peer is %v", e.Outcome, a.View.StateOf("b", time.Now()))
		}
	})
}

// goingReceiver is one that goes away at one of its calls.
type goingReceiver struct{ at string }

var errGone = errors.New("gone")

func (r goingReceiver) step(name string) error {
	if r.at == name {
		return errGone
	}
	return nil
}

func (r goingReceiver) accepted(engine.Load) error { return r.step("accepted") }
func (r goingReceiver) head(*head) error           { return r.step("head") }
func (r goingReceiver) data(_ []byte, c bool) error {
	return r.step(map[bool]string{true: "content", false: "data"}[c])
}
func (r goingReceiver) tokens(*tokens) error { return r.step("tokens") }

// TestReceiverThatGoesIsNoFailureOfTheEngine tells of its going by an error alone, before the end of any context.
func TestReceiverThatGoesIsNoFailureOfTheEngine(t *testing.T) {
	for _, at := range []string{"accepted", "body", "head", "data", "content"} {
		t.Run(at, func(t *testing.T) {
			mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
				c := &call{Engine: "0", Method: http.MethodPost, Path: "/v1/chat/completions", BodySize: len(chatBody)}
				body := func() ([]byte, error) { return []byte(chatBody), goingReceiver{at}.step("body") }
				if _, err := a.Owner.serve(t.Context(), c, body, goingReceiver{at}); !errors.Is(err, errGone) {
					t.Errorf("error %v", err)
				}
				if ends := a.book.outcomes(); len(ends) != 1 || ends[0].Failed || ends[0].Refused {
					t.Errorf("outcomes %+v", ends)
				}
			})
		})
	}
}

// TestOwnerThatStopsHandsOver cuts requests at the owner, one that waits for its turn and one whose answer has not begun.
func TestOwnerThatStopsHandsOver(t *testing.T) {
	waits := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for name, tt := range map[string]struct {
		turn   func(context.Context) error
		engine http.Handler
		want   string
	}{
		"before its turn":    {waits, silent, "bounce_draining"},
		"before its content": {nil, silent, reasonStopped},
	} {
		t.Run(name, func(t *testing.T) {
			mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
				a.book.refuse, b.book.turn, b.engine = "draining", tt.turn, tt.engine
				done := make(chan struct{})
				go func() {
					defer close(done)
					if w := a.post(t.Context(), chatBody); w.Code != http.StatusOK || w.Body.String() != (echoEngine{"a"}).answer() {
						t.Errorf("got %d %q", w.Code, w.Body)
					}
				}()
				synctest.Wait()
				a.book.set(func(k *memBooker) { k.refuse = "" })
				b.book.set(func(k *memBooker) { k.refuse = "draining" })
				b.Cut()
				<-done
				if e := a.last(); len(e.Attempts) < 2 || !hasResult(e.Attempts, tt.want) {
					t.Errorf("attempts %+v, want one with %s", e.Attempts, tt.want)
				}
				for _, o := range b.book.outcomes() {
					if o.Failed {
						t.Errorf("outcome %+v: the engine had no part in it", o)
					}
				}
			})
		})
	}
}

func hasResult(all []Attempt, result string) bool {
	for _, a := range all {
		if a.Result == result {
			return true
		}
	}
	return false
}
