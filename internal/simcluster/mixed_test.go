package simcluster

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

const (
	mixedAgents  = 4
	mixedClients = 64
	mixedBody    = 1 << 20 // the most that an agent takes
	mixedSlots   = 12      // requests that an engine runs at once
	// mixedFault is how long an engine goes on as it is.
	mixedFault = 500 * time.Millisecond
	// mixedPause is how long a client that was sent away waits, so that most requests are those of others.
	mixedPause = 200 * time.Millisecond
)

// mixedRequests is how many requests are made of each class, of 100,000 in all where KVMESH_LONG is set.
func mixedRequests() int {
	if os.Getenv("KVMESH_LONG") != "" {
		return 50_000
	}
	return 1500
}

// mixed is a client of requests that end in all ways.
type mixed struct {
	c    *Cluster
	rng  *rand.Rand
	http *client

	mu   *sync.Mutex
	ends map[string]int // of all clients, by how they ended
}

// mixedKind is something that clients do.
type mixedKind struct {
	share int // of the sum of all
	do    func(m *mixed) (end string)
}

var mixedKinds = []mixedKind{
	{30, func(m *mixed) string { return m.ask(ChatBody("", text(m.rng.Uint64(), 200+m.rng.IntN(3000)))) }},
	{5, func(m *mixed) string {
		return m.ask(strings.Replace(ChatBody("", "hello"), `"stream":true`, `"stream":false`, 1))
	}},
	{2, func(m *mixed) string { return m.ask(ChatBody("", text(m.rng.Uint64(), mixedBody/2))) }},
	{30, func(m *mixed) string {
		after := time.Duration(m.rng.Int64N(int64(300 * time.Millisecond)))
		if m.rng.IntN(3) == 0 {
			after /= 100 // before the accept, or while the peer is asked
		}
		ctx, cancel := context.WithTimeout(m.c.t.Context(), after)
		defer cancel()
		return m.askWithin(ctx, ChatBody("", text(m.rng.Uint64(), 200+m.rng.IntN(20_000))))
	}},
	{5, func(m *mixed) string { return m.halfBody() }},
	{5, func(m *mixed) string { return m.ask(`{"model":`) }},
	{3, func(m *mixed) string {
		return m.ask(`{"model":"sim-model","messages":[],"kv_transfer_params":{"x":1}}`)
	}},
	{5, func(m *mixed) string {
		return m.ask(`{"model":"nobody's","messages":[{"role":"user","content":"hello"}]}`)
	}},
	{3, func(m *mixed) string {
		return m.ended(m.c.do(m.c.t.Context(), http.MethodPost, "http://"+m.at()+"/v1/nothing", strings.NewReader("{}")))
	}},
	{3, func(m *mixed) string {
		return m.ended(m.c.do(m.c.t.Context(), http.MethodGet, "http://"+m.at()+"/v1/responses/resp_1", http.NoBody))
	}},
	{3, func(m *mixed) string { return m.ask(ChatBody("", strings.Repeat("x", mixedBody))) }},
}

func (m *mixed) at() string { return m.c.addr(m.rng.IntN(mixedAgents), portHTTP) }

// ask asks an agent, and returns how that ended.
func (m *mixed) ask(body string) string { return m.askWithin(m.c.t.Context(), body) }

func (m *mixed) askWithin(ctx context.Context, body string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+m.at()+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		m.c.t.Error(err)
		return ""
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := m.http.transport.RoundTrip(req)
	if err != nil {
		return gone(ctx, err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return gone(ctx, err)
	case strings.Contains(string(all), `data: {"error":`):
		return "error event"
	}
	return fmt.Sprint(resp.StatusCode)
}

func gone(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "canceled"
	}
	if strings.Contains(err.Error(), "EOF") {
		return "cut" // the engine died under an answer that is no stream
	}
	return err.Error()
}

func (m *mixed) ended(status int, _ string, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(status)
}

// halfBody goes in the middle of a body.
func (m *mixed) halfBody() string {
	conn, err := m.http.process.dial(m.c.t.Context(), "tcp", m.at())
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: mesh\r\nContent-Length: %d\r\n\r\n%s", 10_000, text(1, 5000))
	time.Sleep(time.Duration(m.rng.Int64N(int64(50 * time.Millisecond))))
	return "half a body"
}

func (m *mixed) play(n int) {
	sum := 0
	for _, k := range mixedKinds {
		sum += k.share
	}
	for range n {
		x := m.rng.IntN(sum)
		i := slices.IndexFunc(mixedKinds, func(k mixedKind) bool { x -= k.share; return x < 0 })
		end := mixedKinds[i].do(m)
		m.mu.Lock()
		m.ends[end]++
		m.mu.Unlock()
		if end == "429" || end == "503" {
			time.Sleep(mixedPause)
		}
	}
}

// mixedFaults are what engines show meanwhile; half of the time nothing.
var mixedFaults = []simengine.Faults{
	{},
	{},
	{},
	{},
	{},
	{},
	{ErrorRate: 0.3},
	{Unavailable: true},
	{TooMany: true},
	{Refuse: true},
	{DieAfterTokens: 3},
	{Slow: 5},
}

// TestAllIsUndoneAfterManyMixedOutcomes has requests end in every way, and looks whether anything of them is left.
func TestAllIsUndoneAfterManyMixedOutcomes(t *testing.T) {
	t.Run("plain", func(t *testing.T) { mixedOutcomes(t, forward.Class{Name: "plain"}) })
	t.Run("continued", func(t *testing.T) { mixedOutcomes(t, forward.Class{Name: "continued", Continue: true, Hedge: true}) })
}

func mixedOutcomes(t *testing.T, class forward.Class) {
	t.Helper()
	config := Config{
		Agents: mixedAgents, Delay: lan, Engine: engineWith(func(_ int, c *simengine.Config) {
			c.MaxRunning, c.PrefillRate = mixedSlots, 1_000_000 // else few large bodies are all that engines do
		}),
		Agent: atMost(mixedSlots, func(c *node.Config) {
			c.Forward.Policy.Classes = []forward.Class{class}
			c.Forward.MaxBody, c.Forward.BodyBudget = mixedBody, 4*mixedBody
			c.Forward.QueueLimit, c.Forward.QueueTimeout = 8, 300*time.Millisecond
		}),
	}
	begun := time.Now()
	Test(t, config, func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		rest := func() int {
			c.client.transport.CloseIdleConnections()
			time.Sleep(10 * time.Second) // longer than connections to engines are kept
			least := runtime.NumGoroutine()
			for range 50 { // polls and heartbeats come and go
				time.Sleep(37 * time.Millisecond)
				least = min(least, runtime.NumGoroutine())
			}
			return least
		}
		for i := range mixedAgents { // connections that stay are there
			chat(t, c, i, ChatBody("", "hello"))
		}
		before := rest()
		ends := c.mix(mixedRequests())
		for i := range mixedAgents {
			c.Engine(i).SetFaults(simengine.Faults{})
		}
		c.Quiet(time.Second)
		left := 0
		for i := range mixedAgents {
			s := c.Engine(i).Stats()
			left += s.Running + s.Waiting
		}
		after := rest()
		if left > 0 || after > before {
			t.Errorf("%d requests at engines; %d goroutines at rest, %d before", left, after, before)
		}
		t.Logf("figure mixed_%s_left %d requests", class.Name, left)
		t.Logf("figure mixed_%s_goroutines_more %d goroutines", class.Name, max(0, after-before))
		t.Logf("ends: %v", ends)
		for _, want := range []string{"200", "canceled", "400", "404", "413", "429", "half a body"} {
			if ends[want] == 0 {
				t.Errorf("no request ended with %q", want)
			}
		}
		for _, end := range slices.Sorted(maps.Keys(ends)) {
			if strings.Contains(end, " ") && end != "error event" && end != "half a body" {
				t.Errorf("%d requests ended with %q", ends[end], end)
			}
		}
	})
	t.Logf("figure mixed_%s_requests_per_second %.0f 1/s, of %d", class.Name, float64(mixedRequests())/time.Since(begun).Seconds(), mixedRequests())
}

// mix plays n requests while engines fail, and returns how they ended.
func (c *Cluster) mix(n int) map[string]int {
	rng, ends, mu := c.Rand(), map[string]int{}, &sync.Mutex{}
	var wg sync.WaitGroup
	for range mixedClients {
		m := &mixed{c: c, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), http: newClient(c.net), mu: mu, ends: ends}
		wg.Go(func() {
			defer m.http.close()
			m.play(n / mixedClients)
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return ends
		case <-time.After(mixedFault):
			c.Engine(rng.IntN(mixedAgents)).SetFaults(mixedFaults[rng.IntN(len(mixedFaults))])
		}
	}
}
