package engineagent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// mood is how a fake engine treats its callers.
type mood int

const (
	well        mood = iota
	refusing         // nobody listens
	resetting        // connections break
	hanging          // never answers
	unavailable      // 503
)

// fakeEngine is an engine's HTTP side in memory.
type fakeEngine struct {
	mu    sync.Mutex
	mood  mood
	pages map[string]string // path → body; others are 404
	hang  map[string]bool   // paths that never answer
	asked map[string]int
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{
		pages: map[string]string{
			"/health":    "",
			"/v1/models": vllmModels,
			"/version":   `{"version":"0.25.1"}`,
			"/metrics":   metricsPage(0, 0, 0, 100),
		},
		hang:  make(map[string]bool),
		asked: make(map[string]int),
	}
}

// metricsPage is a vLLM page of a process that began at started.
func metricsPage(running, waiting int, usage float64, started int) string {
	return fmt.Sprintf("process_start_time_seconds %d\nvllm:num_requests_running{engine=\"0\"} %d\n"+
		"vllm:num_requests_waiting{engine=\"0\"} %d\nvllm:kv_cache_usage_perc{engine=\"0\"} %g\n"+
		"vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"10000\"} 1\n",
		started, running, waiting, usage)
}

func (f *fakeEngine) set(m mood) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mood = m
}

func (f *fakeEngine) report(metrics string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages["/metrics"] = metrics
}

func (f *fakeEngine) remove(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pages, path)
}

func (f *fakeEngine) stall(path string, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang[path] = on
}

func (f *fakeEngine) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[path]
}

// RoundTrip implements http.RoundTripper.
func (f *fakeEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.asked[r.URL.Path]++
	m, hang := f.mood, f.hang[r.URL.Path]
	body, found := f.pages[r.URL.Path]
	f.mu.Unlock()
	switch {
	case m == refusing:
		return nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	case m == resetting:
		return nil, fmt.Errorf("read: %w", syscall.ECONNRESET)
	case m == hanging || hang:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case m == unavailable:
		return response(http.StatusServiceUnavailable, ""), nil
	case !found:
		return response(http.StatusNotFound, ""), nil
	}
	return response(http.StatusOK, body), nil
}

func response(code int, body string) *http.Response {
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}}
}

func testConfig(f *fakeEngine) Config {
	return Config{
		ID: "a/e", URL: &url.URL{Scheme: "http", Host: "engine"}, Transport: f,
		Jitter: func() float64 { return 0.5 },
	}
}

func newAgent(t testing.TB, c Config) *Agent {
	t.Helper()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// follow runs a until the test ends, or until the returned function is called.
func follow(t *testing.T, a *Agent) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

// upAgent returns an agent whose engine is up, without polls.
func upAgent(t testing.TB, edit func(*Config)) *Agent {
	t.Helper()
	c := testConfig(newFakeEngine())
	if edit != nil {
		edit(&c)
	}
	a := newAgent(t, c)
	a.hear(answerGood)
	return a
}

// clock is a Now that moves only when told.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_700_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// prompt returns a prompt of n boundaries, one each 4,000 bytes, that shares its first shared keys with others of the
// same family.
func prompt(family, shared, unique uint64, n int) *cachestate.Prompt {
	p := &cachestate.Prompt{Bytes: int64(n) * 4000}
	for i := range n {
		k := family<<32 | uint64(i)
		if uint64(i) >= shared {
			k |= (unique + 1) << 48
		}
		p.Keys = append(p.Keys, cachestate.Key(k*0x9e3779b97f4a7c15))
		p.Offsets = append(p.Offsets, uint32(i+1)*4000)
	}
	return p
}

// mustAdmit books a request, also on an engine that is ejected.
func mustAdmit(t testing.TB, a *Agent, ad Admission) *Booking {
	t.Helper()
	ad.Forced = true
	b, _, err := a.Admit(ad)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantIdle fails when anything is left in the counters, and when the load cannot be told to a peer.
func wantIdle(t testing.TB, a *Agent) {
	t.Helper()
	l := a.Load()
	if l.InFlight != 0 || l.Waiting != 0 || l.QueuedSeconds != 0 {
		t.Errorf("counters left: %+v", l)
	}
	wantTellable(t, l)
}

func wantTellable(t testing.TB, l engine.Load) {
	t.Helper()
	if l.InFlight < 0 || l.Waiting < 0 || l.QueuedSeconds < 0 || l.Waiting > l.InFlight {
		t.Errorf("load out of range: %+v", l)
	}
	if _, _, err := engine.ParseLoad(engine.AppendLoad(nil, l)); err != nil {
		t.Errorf("load cannot be told: %v", err)
	}
}

// repeat calls f at every period until the returned function is called.
func repeat(f func(), period time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(period); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				f()
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}
