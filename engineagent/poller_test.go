package engineagent

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/internal/engine"
)

func TestEngineIsDownUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		f.set(refusing)
		a := newAgent(t, testConfig(f))
		before := a.Engine().Generation
		stop := follow(t, a)
		defer stop()
		time.Sleep(5 * time.Second)
		if a.Ready() || a.Load().Flags&engine.Down == 0 {
			t.Fatalf("ready %v, load %+v before the first answer", a.Ready(), a.Load())
		}
		f.set(well)
		time.Sleep(250 * time.Millisecond)
		if !a.Ready() || !a.Load().Usable() {
			t.Fatalf("ready %v, load %+v after the first answer", a.Ready(), a.Load())
		}
		want := engine.Engine{
			ID: "a/e", Kind: engine.KindVLLM, Generation: before, BlockTokens: 16, CapacityTokens: 160000,
			Residency: engine.ResidencyMirror, Scale: 1,
			Models: []engine.Model{
				{Name: "qwen", Aliases: []string{"default"}, MaxContext: 40960}, {Name: "sql"}, {Name: "sql2"},
			},
		}
		if diff := cmp.Diff(want, a.Engine()); diff != "" {
			t.Errorf("engine differs (-want +got):\n%s", diff)
		}
	})
}

func TestEngineGoesDownAndComesBack(t *testing.T) {
	tests := []struct {
		name      string
		mood      mood
		streaming bool // a request is open that has received content
		content   bool // and goes on to
		restart   bool // the process is another afterwards
		downAfter time.Duration
		newLife   bool
	}{
		{"refused", refusing, true, false, true, 1100 * time.Millisecond, true},
		{"refused, then the same start time", refusing, false, false, false, 1100 * time.Millisecond, false},
		{"reset by a process that lives on", resetting, true, false, false, 1100 * time.Millisecond, false},
		{"503 by a process that lives on", unavailable, true, true, false, 1100 * time.Millisecond, false},
		{"503, then another process", unavailable, false, false, true, 1100 * time.Millisecond, true},
		{"silent without streams", hanging, false, false, false, 10 * time.Second, false},
		{"silent without streams, then another process", hanging, false, false, true, 10 * time.Second, true},
		{"silent with a stream that hangs too", hanging, true, false, false, 10 * time.Second, false},
		{"silent while a request streams", hanging, true, true, false, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				a := newAgent(t, testConfig(f))
				stop := follow(t, a)
				defer stop()
				time.Sleep(time.Second / 2)
				generation := a.Engine().Generation
				if tt.streaming {
					b := mustAdmit(t, a, Admission{Bytes: 4000})
					b.FirstContent()
					defer b.Finish(Outcome{})
					if tt.content {
						defer repeat(b.FirstContent, 3*time.Second)()
					}
				}
				f.set(tt.mood)
				if tt.downAfter == 0 {
					time.Sleep(5 * time.Minute)
					if !a.Load().Usable() {
						t.Fatal("a busy engine counts as dead")
					}
				} else {
					time.Sleep(tt.downAfter)
					if a.Load().Flags&engine.Down == 0 {
						t.Fatal("not down")
					}
				}
				if tt.restart {
					f.report(metricsPage(0, 0, 0, 200))
				}
				f.set(well)
				time.Sleep(4 * time.Second)
				if !a.Load().Usable() || !a.Ready() {
					t.Errorf("not up again: %+v", a.Load())
				}
				if got := a.Engine().Generation > generation; got != tt.newLife {
					t.Errorf("new generation %v, want %v", got, tt.newLife)
				}
			})
		})
	}
}

func TestRestartIsSeenInMetrics(t *testing.T) {
	counter := func(n string) string {
		return "vllm:num_requests_running 0\nvllm:prompt_tokens_total " + n + "\n"
	}
	tests := []struct {
		name, before, after string
		want                bool
	}{
		{"other start time", metricsPage(0, 0, 0, 100), metricsPage(0, 0, 0, 101), true},
		{"same start time", metricsPage(0, 0, 0, 100), metricsPage(3, 0, 0.5, 100), false},
		{"counter fell", counter("500"), counter("20"), true},
		{"counter grew", counter("500"), counter("520"), false},
		{"counter vanished", counter("500"), metricsPage(0, 0, 0, 100), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				f.report(tt.before)
				a := newAgent(t, testConfig(f))
				stop := follow(t, a)
				defer stop()
				time.Sleep(1500 * time.Millisecond)
				b := mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 0, 10)})
				b.FirstContent()
				b.Finish(Outcome{})
				was := a.Engine().Generation
				f.report(tt.after)
				time.Sleep(2 * time.Second)
				if got := a.Engine().Generation > was; got != tt.want {
					t.Fatalf("new generation %v, want %v", got, tt.want)
				}
				again := mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 0, 10)})
				defer again.Finish(Outcome{})
				if got := again.Overlap() == 0; got != tt.want {
					t.Errorf("forgotten %v, want %v", got, tt.want)
				}
				if d := a.Digests()[0]; d.Generation != a.Engine().Generation {
					t.Errorf("digest of generation %d, engine in %d", d.Generation, a.Engine().Generation)
				}
			})
		})
	}
}

func TestMissingMetricsAreNoOutage(t *testing.T) {
	tests := []struct {
		name string
		lose func(*fakeEngine)
	}{
		{"no route", func(f *fakeEngine) { f.remove("/metrics") }},
		{"hangs", func(f *fakeEngine) { f.stall("/metrics", true) }},
		{"another format", func(f *fakeEngine) { f.report(`[{"iter":1}]`) }},
		{"endless", func(f *fakeEngine) { f.report(string(make([]byte, maxMetricsBytes+2))) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				f.report(metricsPage(6, 2, 0.97, 100))
				a := newAgent(t, testConfig(f))
				stop := follow(t, a)
				defer stop()
				time.Sleep(time.Second / 2)
				if l := a.Load(); l.Flags != engine.Full || l.InFlight != 8 || l.Waiting != 2 {
					t.Fatalf("load %+v, want full with 8 in flight", l)
				}
				generation := a.Engine().Generation
				tt.lose(f)
				time.Sleep(30 * time.Second)
				l := a.Load()
				if !l.Usable() || l.InFlight != 0 || l.KVUsage != 0 || !a.Ready() {
					t.Errorf("load %+v, want usable with nothing reported", l)
				}
				if a.Engine().Generation != generation {
					t.Error("taken for a restart")
				}
			})
		})
	}
}

func TestRefusedRequestIsFollowedByAPollAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		time.Sleep(100 * time.Millisecond)
		f.set(refusing)
		a.NoteUnreachable()
		synctest.Wait()
		if a.Load().Flags&engine.Down == 0 {
			t.Error("not down")
		}
	})
}

func TestPollsAreNoFasterThanUseful(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		time.Sleep(59500 * time.Millisecond)
		if h, m, models := f.count("/health"), f.count("/metrics"), f.count("/v1/models"); h != 60 || m != 60 || models != 2 {
			t.Errorf("a minute took %d, %d, %d polls of health, metrics, models; want 60, 60, 2", h, m, models)
		}
	})
}

func TestOwnRequestsAreNotCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		time.Sleep(time.Second / 2)
		for range 3 {
			b := mustAdmit(t, a, Admission{Bytes: 4000})
			b.FirstContent()
			defer b.Finish(Outcome{})
		}
		f.report(metricsPage(3, 0, 0.1, 100))
		time.Sleep(time.Second)
		if l := a.Load(); l.InFlight != 3 || l.Waiting != 0 {
			t.Errorf("load %+v, want the 3 booked requests", l)
		}
		f.report(metricsPage(5, 4, 0.1, 100))
		time.Sleep(time.Second)
		if l := a.Load(); l.InFlight != 9 || l.Waiting != 4 {
			t.Errorf("load %+v, want 9 in flight, 4 waiting", l)
		}
		f.report(metricsPage(1, 0, 0.1, 100)) // fewer than booked: some have not reached the engine
		time.Sleep(time.Second)
		if l := a.Load(); l.InFlight != 3 {
			t.Errorf("load %+v, want the 3 booked requests", l)
		}
	})
}

func TestRequestAcceptedDuringAPollIsNotForeign(t *testing.T) {
	a := upAgent(t, nil)
	before := a.book.mark()
	b := mustAdmit(t, a, Admission{Bytes: 4000})
	a.noteReading(&reading{running: 1}, engine.KindVLLM, before)
	b.FirstContent()
	b.Finish(Outcome{})
	wantIdle(t, a)
}

func TestKindIsDetected(t *testing.T) {
	const plain = `{"data":[{"id":"m"}]}`
	sglang := string(page(t, "sglang-0.5.txt"))
	const info = `{"page_size":16,"schedule_policy":"fcfs","max_running_requests":48,"enable_cache_report":true}`
	tests := []struct {
		name  string
		kind  engine.Kind // configured
		pages map[string]string
		want  engine.Engine
	}{
		{
			"vllm by its version", "",
			map[string]string{"/v1/models": plain, "/version": `{"version":"0.9.0"}`},
			engine.Engine{Kind: engine.KindVLLM},
		},
		{
			"vllm by its metrics", "",
			map[string]string{"/v1/models": plain, "/metrics": metricsPage(0, 0, 0, 1)},
			engine.Engine{Kind: engine.KindVLLM, BlockTokens: 16, CapacityTokens: 160000},
		},
		{
			"sglang by server_info", "",
			map[string]string{"/v1/models": plain, "/server_info": info},
			engine.Engine{Kind: engine.KindSGLang, BlockTokens: 16, MaxRunning: 48},
		},
		{
			"sglang by its metrics", "",
			map[string]string{"/v1/models": plain, "/metrics": sglang},
			engine.Engine{Kind: engine.KindSGLang, BlockTokens: 16, CapacityTokens: 400000},
		},
		{"sglang without metrics", "", map[string]string{
			"/v1/models": plain, "/server_info": info,
			"/v1/loads": `{"loads":[{"max_total_num_tokens":9000,"max_running_requests":32}]}`,
		}, engine.Engine{Kind: engine.KindSGLang, BlockTokens: 16, CapacityTokens: 9000, MaxRunning: 32}},
		{"trtllm by its owner", "", map[string]string{
			"/v1/models": `{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}`, "/version": `{"version":"1.2.1"}`,
			"/prometheus/metrics": string(page(t, "trtllm.txt")),
		}, engine.Engine{Kind: engine.KindTRTLLM, BlockTokens: 32, CapacityTokens: 64000}},
		{
			"llama.cpp", "",
			map[string]string{"/v1/models": plain, "/metrics": string(page(t, "llamacpp.txt"))},
			engine.Engine{Kind: engine.KindOther},
		},
		{"nothing but models", "", map[string]string{"/v1/models": plain}, engine.Engine{Kind: engine.KindOther}},
		{
			"configured", engine.KindTRTLLM,
			map[string]string{"/v1/models": plain, "/version": `{"version":"1"}`},
			engine.Engine{Kind: engine.KindTRTLLM},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				f.pages = tt.pages
				c := testConfig(f)
				c.Kind = tt.kind
				a := newAgent(t, c)
				stop := follow(t, a)
				defer stop()
				time.Sleep(1500 * time.Millisecond)
				want := tt.want
				want.Residency, want.Scale = engine.ResidencyMirror, 1
				want.ID, want.Generation, want.Models = "a/e", a.Engine().Generation, []engine.Model{{Name: "m"}}
				if diff := cmp.Diff(want, a.Engine()); diff != "" {
					t.Errorf("engine differs (-want +got):\n%s", diff)
				}
				if tt.pages["/prometheus/metrics"] != "" && want.Kind == engine.KindTRTLLM && f.count("/metrics") > 0 {
					t.Error("took statistics away from other readers")
				}
			})
		})
	}
}

func TestFlappingEngineNeverHasNegativeLoad(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		var open []*Booking
		for range 2000 {
			switch rng.IntN(6) {
			case 0:
				f.set(mood(rng.IntN(5)))
			case 1:
				f.set(well)
				f.report(metricsPage(rng.IntN(9), rng.IntN(4), rng.Float64(), 100+rng.IntN(2)))
			case 2, 3:
				if b, _, err := a.Admit(Admission{Prompt: prompt(uint64(rng.IntN(3)), 5, rng.Uint64N(9), 8)}); err == nil {
					open = append(open, b)
				}
			case 4:
				if len(open) > 0 {
					open[rng.IntN(len(open))].FirstContent()
				}
			case 5:
				if i := len(open) - 1; i >= 0 {
					open[i].Finish(Outcome{Failed: rng.IntN(2) == 0})
					open = open[:i]
				}
			}
			time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
			wantTellable(t, a.Load())
		}
		for _, b := range open {
			b.Finish(Outcome{})
		}
		f.set(well)
		f.report(metricsPage(0, 0, 0, 100))
		time.Sleep(5 * time.Second)
		wantIdle(t, a)
	})
}
