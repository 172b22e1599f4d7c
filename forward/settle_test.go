package forward

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// full1 runs f with a mesh of one agent, whose engine has one slot, and that is taken.
func full1(t *testing.T, f func(t *testing.T, m *memMesh, a *memAgent)) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, "a")
		a := m.agents["a"]
		a.book.set(func(b *memBooker) { b.limit, b.n = 1, 1 })
		m.tell()
		f(t, m, a)
		synctest.Wait()
		m.idle()
	})
}

// release frees the slot that nobody's request took.
func (a *memAgent) release() {
	a.book.occupy(-1)
	a.mesh.tell()
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func TestPriorityAndKeyDecideWhoIsServedFirst(t *testing.T) {
	full1(t, func(t *testing.T, _ *memMesh, a *memAgent) {
		err := a.SetPolicy(&Policy{Classes: []Class{
			{Name: "urgent", Match: Match{Header: map[string]string{"X-Class": "urgent"}}, Priority: 1},
			{Name: "batch", Match: Match{Header: map[string]string{"X-Class": "batch"}}, Priority: -1},
		}})
		if err != nil {
			t.Fatal(err)
		}
		long := strings.Replace(chatBody, "hello", strings.Repeat("hello ", 180), 1) // a quantum
		var mu sync.Mutex
		var order []string
		slow := a.engine
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			slow.ServeHTTP(w, r)
		})
		send := func(class, key string) {
			go func() {
				a.post(t.Context(), long, header("X-Class", class), header("Authorization", "Bearer "+key))
				mu.Lock()
				defer mu.Unlock()
				order = append(order, class+" "+key)
			}()
			synctest.Wait()
		}
		for range 2 {
			send("batch", "k")
		}
		for range 3 {
			send("", "many")
		}
		send("", "one")
		send("urgent", "k")
		if _, waiting := a.Active(); waiting != 7 {
			t.Errorf("%d wait", waiting)
		}
		a.release()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := strings.Join(order, ", "); got != "urgent k,  many,  one,  many,  many, batch k, batch k" {
			t.Errorf("served in order: %s", got)
		}
	})
}

func TestFullMeshSaysWhenToComeAgain(t *testing.T) {
	full1(t, func(t *testing.T, m *memMesh, a *memAgent) {
		a.room.limit.requests = 0
		start := time.Now()
		w := a.post(t.Context(), chatBody)
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "2" || time.Since(start) > 0 {
			t.Errorf("got %d after %v with Retry-After %q", w.Code, time.Since(start), w.Header().Get("Retry-After"))
		}
		for _, want := range []string{`"type":"rate_limit_error"`, `"code":"mesh_full"`, "as many requests wait as may"} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s is not in %s", want, w.Body)
			}
		}
		if n := testutil.ToFloat64(a.metrics.refused.WithLabelValues(refusedRequests)); n != 1 {
			t.Errorf("counted %v", n)
		}
		if e := a.last(); e.Outcome != "full" || e.Refused != refusedRequests {
			t.Errorf("outcome %q, refused %q", e.Outcome, e.Refused)
		}
		a.book.set(func(b *memBooker) { b.n, b.down = 0, true })
		m.tell()
		if w := a.post(t.Context(), chatBody); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "5" {
			t.Errorf("without an engine: %d with Retry-After %q", w.Code, w.Header().Get("Retry-After"))
		}
	})
}

func TestWhatWaitsIsShownByClass(t *testing.T) {
	full1(t, func(t *testing.T, _ *memMesh, a *memAgent) {
		for i := range 3 {
			go a.post(t.Context(), chatBody, header("X-Api-Key", fmt.Sprint("secret", i%2)))
		}
		time.Sleep(2 * time.Second)
		gauge := newWaitingByClass(a.Ingress)
		if n := testutil.ToFloat64(gauge); n != 3 {
			t.Errorf("the gauge says %v", n)
		}
		q := a.Queues()
		if len(q) != 1 || q[0].Waiting != 3 || q[0].Classes[DefaultClass] != 3 || q[0].Keys != 2 || q[0].Oldest != 2 || q[0].Bytes != int64(3*len(chatBody)) {
			t.Errorf("queues %+v", q)
		}
		if s := fmt.Sprintf("%+v", q); strings.Contains(s, "secret") {
			t.Errorf("a key is shown: %s", s)
		}
		a.release()
		time.Sleep(time.Second)
		if n := testutil.ToFloat64(gauge); n != 0 || len(a.Queues()) != 0 {
			t.Errorf("the gauge says %v of an empty room, the page %v", n, a.Queues())
		}
	})
}

// TestAcceptedRequestIsNotRefusedWhenTheQueueIsFull has the engine that accepted it fail while the other one is full.
func TestAcceptedRequestIsNotRefusedWhenTheQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemMesh(t, "a", "b")
		a, b := m.agents["a"], m.agents["b"]
		a.room.limit.requests = 0
		b.book.set(func(b *memBooker) { b.limit, b.n = 1, 1 })
		m.tell()
		a.engine = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		start := time.Now()
		time.AfterFunc(3*time.Second, b.release)
		w := a.post(t.Context(), chatBody)
		if w.Code != http.StatusOK || time.Since(start) < 3*time.Second {
			t.Errorf("got %d after %v and %v", w.Code, time.Since(start), a.last().Attempts)
		}
		synctest.Wait()
		m.idle()
	})
}

// TestWaitingRequestsThatAreCancelledLeaveNothing cancels them one by one, some when a slot becomes free.
func TestWaitingRequestsThatAreCancelledLeaveNothing(t *testing.T) {
	full1(t, func(t *testing.T, _ *memMesh, a *memAgent) {
		var cancels []context.CancelFunc
		for i := range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			go a.post(ctx, chatBody, header("X-Api-Key", fmt.Sprint(i%3)))
		}
		time.Sleep(time.Second)
		for i, cancel := range slices.Backward(cancels) {
			if i == 10 {
				a.release()
			}
			cancel()
			time.Sleep(time.Duration(i%2) * time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		a.room.isEmpty(t)
	})
}
