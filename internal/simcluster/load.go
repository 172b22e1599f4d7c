package simcluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// exchange is one request as its client saw it.
type exchange struct {
	agent  int
	sent   time.Time
	began  time.Time // when the header of the answer came, which is with its first content; zero when none came
	ended  time.Time
	answer *Answer
	err    error
}

// fault says what is wrong with the answer; "" when it is whole.
func (x *exchange) fault() string {
	if x.err != nil {
		return x.err.Error()
	}
	return faultOf(x.answer)
}

// traffic is requests under way.
type traffic struct {
	c  *Cluster
	wg sync.WaitGroup

	mu  sync.Mutex
	all []*exchange
}

// send sends a request to an agent and does not wait.
func (f *traffic) send(ctx context.Context, agent int, body string) {
	f.wg.Go(func() {
		x := f.c.exchange(ctx, agent, body)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all = append(f.all, x)
	})
}

func (c *Cluster) exchange(ctx context.Context, agent int, body string) *exchange {
	x := &exchange{agent: agent, sent: time.Now()}
	defer func() { x.ended = time.Now() }()
	resp, err := c.Open(ctx, agent, body)
	if err != nil {
		x.err = err
		return x
	}
	defer resp.Body.Close()
	x.began = time.Now()
	x.answer = &Answer{Status: resp.StatusCode, Header: resp.Header}
	x.answer.Body, x.err = io.ReadAll(resp.Body)
	return x
}

// wait waits for all answers and returns them.
func (f *traffic) wait() []*exchange {
	f.wg.Wait()
	return f.all
}

// every sends one request each period to the agents in turn, with prompts of size bytes, for as long as it says.
func (f *traffic) every(t testing.TB, period, duration time.Duration, size int, agents ...int) {
	t.Helper()
	rng := f.c.Rand()
	for n := range int(duration / period) {
		f.send(t.Context(), agents[n%len(agents)], ChatBody("", text(rng.Uint64(), size)))
		time.Sleep(period)
	}
}

var lexicon = strings.Fields("the of and to in is that for it was on are as with his they at be this from have or by one " +
	"had not but what all were when we there can an your which their said if do will each about how up out them then she " +
	"many some so these would other into has more her two like him see time could no make than first been its who now")

// text returns n bytes of words that no other seed gives.
func text(seed uint64, n int) string {
	rng := rand.New(rand.NewPCG(seed, 7))
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(lexicon[rng.IntN(len(lexicon))])
		b.WriteByte(' ')
	}
	return b.String()[:n]
}

// faultOf says what is wrong with an answer; "" when it is whole.
func faultOf(a *Answer) string {
	if a.Status != http.StatusOK {
		return fmt.Sprintf("status %d: %s", a.Status, a.Body)
	}
	if !bytes.HasSuffix(a.Body, []byte("data: [DONE]\n\n")) || bytes.Contains(a.Body, []byte(`{"error":`)) {
		return fmt.Sprintf("by %s (%s), not whole, ends in: %s", a.Engine(), a.Header.Get("X-Kvmesh-Reason"), a.Body[max(0, len(a.Body)-300):])
	}
	return ""
}
