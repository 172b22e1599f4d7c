package simengine

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestHeadersComeBeforeThePrefillAndTheFirstTokenAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		start := time.Now()
		resp := r.open(t.Context(), "POST", "/v1/chat/completions", chat(40_000, `,"stream":true,"max_tokens":3`))
		if d := time.Since(start); d != 0 {
			t.Errorf("headers came after %v, want at once", d)
		}
		n := len(r.tok.encode(nil, renderPlain(&conversation{turns: []turn{{role: "user", text: textOf(40_000)}}})))
		got := readEvents(t, resp.Body)
		first := prefillTime(16000, n, n, 0)
		want := []time.Duration{first, first, first + stepTime(1, false), first + 2*stepTime(1, false)}
		for i, w := range want {
			if d := got[i].at.Sub(start); d != w {
				t.Errorf("event %d (%s) came after %v, want %v", i, got[i].data, d, w)
			}
		}
	})
}

func TestTimesOfTheEngineModel(t *testing.T) {
	tests := []struct {
		name string
		got  time.Duration
		want time.Duration
	}{
		{"16,000 new tokens, empty context", prefillTime(16000, 16000, 16000, 0), 15*time.Millisecond + 1122070312},
		{"one new token on 65,536", prefillTime(16000, 65537, 1, 0).Round(time.Microsecond), 15*time.Millisecond + 125*time.Microsecond},
		{"250 decoding double it", prefillTime(16000, 1, 1, 250).Round(time.Microsecond), 15*time.Millisecond + 125*time.Microsecond},
		{"step of one", stepTime(1, false), 20100 * time.Microsecond},
		{"step of 100 while one waits", stepTime(100, true), 45 * time.Millisecond},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
		}
	}
}

func TestPrefillsRunOneAtATimeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		start := time.Now()
		done := make([]time.Duration, 3)
		var wg sync.WaitGroup
		for i := range done {
			wg.Go(func() {
				r.post("/v1/completions", `{"model":"sim-model","max_tokens":1,"prompt":"`+string(rune('a'+i))+textOf(8000)+`"}`)
				done[i] = time.Since(start)
			})
			synctest.Wait()
		}
		wg.Wait()
		for i := range done[1:] {
			if gap := done[i+1] - done[i]; gap < 100*time.Millisecond {
				t.Errorf("request %d finished %v after the one before, want a whole prefill", i+1, gap)
			}
		}
	})
}

func TestAbortedPrefillStopsAndTheNextStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		r.open(ctx, "POST", "/v1/chat/completions", chat(300_000, `,"stream":true`)) // seconds of prefill
		synctest.Wait()
		second := r.open(t.Context(), "POST", "/v1/chat/completions", chat(400, `,"stream":true,"max_tokens":1`))
		synctest.Wait()
		if s := r.Stats(); s.Running != 1 || s.Waiting != 1 {
			t.Fatalf("running %d, waiting %d, want 1 and 1", s.Running, s.Waiting)
		}
		time.Sleep(500 * time.Millisecond)
		cancel()
		synctest.Wait()
		s := r.Stats()
		if s.Aborted != 1 || s.Waiting != 0 || s.Running != 1 || !s.LastAbort.Equal(time.Now()) {
			t.Errorf("after the abort: %+v, want 1 aborted now, the other running", s)
		}
		before := time.Now()
		readEvents(t, second.Body)
		if d := time.Since(before); d > 50*time.Millisecond {
			t.Errorf("the next request took %v after the abort, want its own short prefill", d)
		}
		if s := r.Stats(); s.UsedBlocks != 0 || s.Running+s.Waiting != 0 {
			t.Errorf("at rest: %+v, want no block and no place held", s)
		}
	})
}

func TestAbortedDecodeFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.MaxRunning = 1 })
		ctx, cancel := context.WithCancel(t.Context())
		r.open(ctx, "POST", "/v1/chat/completions", chat(400, `,"stream":true,"max_tokens":4000,"ignore_eos":true`))
		time.Sleep(time.Second)
		waiting := r.open(t.Context(), "POST", "/v1/chat/completions", chat(200, `,"stream":true,"max_tokens":1`))
		time.Sleep(time.Second)
		if s := r.Stats(); s.Running != 1 || s.Waiting != 1 {
			t.Fatalf("running %d, waiting %d, want 1 and 1 with MaxRunning 1", s.Running, s.Waiting)
		}
		cancel()
		start := time.Now()
		readEvents(t, waiting.Body)
		if d := time.Since(start); d > 50*time.Millisecond {
			t.Errorf("the waiting request took %v after the abort", d)
		}
	})
}

func TestRequestWaitsWhileTheCacheIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.CapacityTokens = 1600 })
		var wg sync.WaitGroup
		for _, prompt := range []string{"first ", "second "} {
			wg.Go(func() {
				r.post("/v1/completions", `{"model":"sim-model","max_tokens":100,"ignore_eos":true,"prompt":"`+prompt+textOf(3200)+`"}`)
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		if s := r.Stats(); s.Running != 1 || s.Waiting != 1 {
			t.Errorf("running %d, waiting %d, want the second to wait for blocks", s.Running, s.Waiting)
		}
		wg.Wait()
		if s := r.Stats(); s.Evictions == 0 || s.Finished != 2 {
			t.Errorf("%+v, want both finished and blocks of the first evicted", s)
		}
	})
}

func TestDecodeWithoutBlocksPreemptsTheYoungest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.CapacityTokens = 1600 })
		answers := make([]string, 2)
		var wg sync.WaitGroup
		for i, prompt := range []string{"first ", "second "} {
			wg.Go(func() {
				_, answers[i] = r.post("/v1/completions",
					`{"model":"sim-model","max_tokens":600,"ignore_eos":true,"prompt":"`+prompt+textOf(1600)+`"}`)
			})
			synctest.Wait()
		}
		wg.Wait()
		s := r.Stats()
		if s.Preemptions == 0 || s.Finished != 2 || s.GenerationTokens != 1200 {
			t.Errorf("%+v, want a preemption and both answers whole", s)
		}
		for i, a := range answers {
			if got := at(decode(t, a), "usage", "completion_tokens"); got != 600.0 {
				t.Errorf("answer %d has %v tokens, want 600", i, got)
			}
		}
	})
}

func TestSpeedAndSlowScaleAllTimes(t *testing.T) {
	took := func(speed, slow float64) (d time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.Speed, c.Faults.Slow = speed, slow })
			start := time.Now()
			r.post("/v1/chat/completions", chat(4000, `,"max_tokens":20,"ignore_eos":true`))
			d = time.Since(start)
		})
		return d
	}
	real := took(1, 0)
	for _, tt := range []struct{ speed, slow, factor float64 }{{10, 0, 10}, {1, 4, 0.25}} {
		got, want := took(tt.speed, tt.slow), time.Duration(float64(real)/tt.factor)
		if got.Round(time.Millisecond) != want.Round(time.Millisecond) {
			t.Errorf("speed %v, slow %v: %v, want %v", tt.speed, tt.slow, got, want)
		}
	}
}

func TestIdleConnectionIsClosedAfterKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newMemNet()
		e, err := New(DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { e.Serve(ctx, ln) })
		conn, err := ln.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write([]byte("GET /health HTTP/1.1\r\nHost: e\r\n\r\n"))
		buf := make([]byte, 4096)
		if _, err := conn.Read(buf); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := conn.Read(buf); err == nil {
			t.Error("idle connection still gives data")
		}
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("idle connection was closed after %v, want 5 s", d)
		}
	})
}

func TestInFlightSecondsIsTheIntegralOfLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		start := time.Now()
		r.post("/v1/chat/completions", chat(4000, `,"max_tokens":50,"ignore_eos":true`))
		busy := time.Since(start).Seconds()
		time.Sleep(10 * time.Second)
		if got := r.Stats().InFlightSeconds; got < busy-0.001 || got > busy+0.001 {
			t.Errorf("in flight %v s, want %v s", got, busy)
		}
	})
}

func TestManyStreamsShareSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				resp := r.open(t.Context(), "POST", "/v1/chat/completions", chat(400, `,"stream":true,"max_tokens":100,"ignore_eos":true`))
				if n := len(readEvents(t, resp.Body)); n != 102 { // role, tokens, [DONE]
					t.Errorf("%d events, want 102", n)
				}
			})
		}
		wg.Wait()
		if s := r.Stats(); s.Finished != 100 || s.UsedBlocks != 0 || s.GenerationTokens != 100*100 {
			t.Errorf("%+v, want 100 answers of 100 tokens and nothing held", s)
		}
	})
}

func TestHangAndRefuseAndErrors(t *testing.T) {
	tests := []struct {
		name   string
		faults Faults
		path   string
		status int // 0: no answer
	}{
		{"unavailable", Faults{Unavailable: true}, "/health", 503},
		{"too many", Faults{TooMany: true}, "/v1/chat/completions", 429},
		{"error rate", Faults{ErrorRate: 1, ErrorStatus: 502}, "/v1/chat/completions", 502},
		{"error rate leaves health alone", Faults{ErrorRate: 1}, "/health", 200},
		{"refuse", Faults{Refuse: true}, "/v1/chat/completions", 0},
		{"hang", Faults{Hang: true}, "/v1/chat/completions", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				if status, body := r.post("/sim/faults", jsonOf(tt.faults)); status != http.StatusOK {
					t.Fatalf("POST /sim/faults = %d %s", status, body)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				method := "POST"
				if tt.path == "/health" {
					method = "GET"
				}
				req, _ := http.NewRequestWithContext(ctx, method, "http://engine"+tt.path, nil)
				req.Header.Set("Content-Type", "application/json")
				resp, err := r.client.Do(req)
				status := 0
				if err == nil {
					resp.Body.Close()
					status = resp.StatusCode
				}
				if status != tt.status {
					t.Errorf("status = %d (%v), want %d", status, err, tt.status)
				}
			})
		})
	}
}

func TestStreamDiesAfterTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Faults.DieAfterTokens = 5 })
		got := r.stream("/v1/chat/completions", chat(400, `,"stream":true`))
		if len(got) != 6 || got[5].data == "[DONE]" { // role and five tokens
			t.Errorf("%d events, want 6 and no end", len(got))
		}
		synctest.Wait()
		if s := r.Stats(); s.Running != 0 || s.Aborted != 1 {
			t.Errorf("%+v, want the sequence aborted", s)
		}
	})
}

func TestHangAfterHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Faults.HangAfterHeaders = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		resp := r.open(ctx, "POST", "/v1/chat/completions", chat(400, `,"stream":true`))
		start := time.Now()
		if got := readEvents(t, resp.Body); len(got) != 0 || time.Since(start) != time.Hour {
			t.Errorf("%d events in %v, want none for ever", len(got), time.Since(start))
		}
	})
}

func TestNothingIsHeldAfterRandomAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.CapacityTokens, c.MaxRunning = 16_000, 16 })
		rng := rand.New(rand.NewPCG(1, 1))
		var wg sync.WaitGroup
		for range 300 {
			patience, size := time.Duration(rng.IntN(5000))*time.Millisecond, 40+rng.IntN(8000)
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				body := strings.NewReader(chat(size, `,"stream":true`))
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://engine/v1/chat/completions", body)
				req.Header.Set("Content-Type", "application/json")
				if resp, err := r.client.Do(req); err == nil {
					readEvents(t, resp.Body)
					resp.Body.Close()
				}
			})
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
		}
		wg.Wait()
		synctest.Wait()
		s := r.Stats()
		if s.UsedBlocks != 0 || s.Running != 0 || s.Waiting != 0 || s.Finished != s.Sequences {
			t.Errorf("%+v, want nothing held", s)
		}
		if s.Aborted == 0 || s.Aborted == s.Sequences {
			t.Errorf("%d of %d aborted, want some", s.Aborted, s.Sequences)
		}
	})
}
