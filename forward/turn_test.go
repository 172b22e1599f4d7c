package forward

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

// eachSide runs f with a request of a that a's own engine serves, and with one that b's does.
func eachSide(t *testing.T, f func(t *testing.T, a, owner, other *memAgent)) {
	t.Helper()
	for _, remote := range []bool{false, true} {
		mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
			owner, other := a, b
			if remote {
				owner, other = b, a
			}
			other.book.refuse = "draining"
			f(t, a, owner, other)
		})
	}
}

func TestRequestIsSentWhenItIsItsTurn(t *testing.T) {
	eachSide(t, func(t *testing.T, a, owner, _ *memAgent) {
		const wait = 7 * time.Second // longer than any deadline of the accept
		owner.book.turn = func(context.Context) error { time.Sleep(wait); return nil }
		start := time.Now()
		var sent time.Duration
		owner.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sent = time.Since(start)
			echoEngine{"x"}.ServeHTTP(w, r)
		})
		if w := a.post(t.Context(), chatBody); w.Body.String() != (echoEngine{"x"}).answer() || sent < wait || sent > wait+time.Second {
			t.Errorf("got %d %q, sent to the engine after %v", w.Code, w.Body, sent)
		}
		if n := len(owner.book.outcomes()); n != 1 {
			t.Errorf("the owner booked it %d times", n)
		}
	})
}

func TestEngineThatGoesDownBeforeTheTurnBouncesTheRequest(t *testing.T) {
	stored := strings.Replace(chatBody, `"stream"`, `"store":true,"stream"`, 1)
	for _, body := range []string{chatBody, stored} {
		eachSide(t, func(t *testing.T, a, owner, other *memAgent) {
			owner.engine = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				t.Error("the engine that is down was asked")
			})
			owner.book.turn = func(context.Context) error {
				owner.book.set(func(b *memBooker) { b.down = true })
				other.book.set(func(b *memBooker) { b.refuse = "" })
				return errors.New("down")
			}
			w := a.post(t.Context(), body)
			if !strings.HasSuffix(w.Body.String(), doneChunk) || a.last().Attempts[len(a.last().Attempts)-2].Result != "bounce_down" {
				t.Errorf("got %d %q after %v", w.Code, w.Body, a.last().Attempts)
			}
			if o := owner.book.outcomes(); len(o) != 1 || o[0].Failed {
				t.Errorf("outcomes %+v: the engine failed nothing", o)
			}
		})
	}
}

func TestClientThatGoesAwayBeforeTheTurnLeavesNoTrace(t *testing.T) {
	eachSide(t, func(t *testing.T, a, owner, _ *memAgent) {
		owner.book.turn = func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
		owner.engine = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the engine was asked") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a.post(ctx, chatBody)
		if e := a.last(); e.Outcome != outcomeCanceled {
			t.Errorf("outcome %q, want canceled", e.Outcome)
		}
		time.Sleep(time.Second)
		if o := owner.book.outcomes(); len(o) != 1 || o[0].Failed {
			t.Errorf("outcomes %+v: the engine failed nothing", o)
		}
	})
}
