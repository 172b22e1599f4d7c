package simcluster

import (
	"context"
	"io"
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
func (f *traffic) every(t *testing.T, period, duration time.Duration, size int, agents ...int) {
	t.Helper()
	rng := f.c.Rand()
	for n := range int(duration / period) {
		f.send(t.Context(), agents[n%len(agents)], ChatBody("", text(rng.Uint64(), size)))
		time.Sleep(period)
	}
}

// attempted fails the test for every request that agent i took in between from and to, and for which it tried the engine
// beside agent j.
func attempted(t *testing.T, c *Cluster, i, j int, from, to time.Time) {
	t.Helper()
	events, err := c.Decisions(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, e := range events {
		if e.Time.Before(from) || e.Time.After(to) {
			continue
		}
		seen++
		for _, a := range e.Attempts {
			if string(a.Engine) == EngineID(j) {
				t.Errorf("%s tried %s %v after it should not: %+v", Name(i), a.Engine, e.Time.Sub(from), e.Attempts)
			}
		}
	}
	if seen == 0 {
		t.Errorf("%s took in no request between %v and %v", Name(i), from, to)
	}
}
