package engineagent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

func TestTwoLatePollsAreNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		time.Sleep(time.Second / 2)
		f.set(hanging)
		time.Sleep(5500 * time.Millisecond) // two polls of 2 s with a second before each
		f.set(well)
		for range 20 {
			time.Sleep(time.Second / 4)
			if !a.Load().Usable() {
				t.Fatal("down")
			}
		}
	})
}

func TestEngineThatShowsNoIdentityBeginsANewLife(t *testing.T) {
	tests := []struct {
		name string
		page string // of metrics; "" is none
	}{
		{"no start time", "vllm:num_requests_running 0\n"},
		{"no metrics", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				f.report(tt.page)
				if tt.page == "" {
					f.remove("/metrics")
				}
				a := newAgent(t, testConfig(f))
				stop := follow(t, a)
				defer stop()
				time.Sleep(time.Second / 2)
				was := a.Engine().Generation
				time.Sleep(time.Minute)
				if a.Engine().Generation != was {
					t.Fatal("a new life without cause")
				}
				f.set(unavailable)
				time.Sleep(2 * time.Second)
				f.set(well)
				time.Sleep(time.Second)
				now := a.Engine().Generation
				if now == was {
					t.Error("the old life goes on")
				}
				time.Sleep(time.Minute)
				if a.Engine().Generation != now {
					t.Error("more than one new life")
				}
			})
		})
	}
}

func TestProcessIsKnownAgainByItsCounters(t *testing.T) {
	page := func(n string) string { return "vllm:num_requests_running 0\nvllm:prompt_tokens_total " + n + "\n" }
	tests := []struct {
		name          string
		mood          mood
		before, after string
		newLife       bool
	}{
		{"503, goes on", unavailable, "500", "500", false},
		{"503, begins again", unavailable, "500", "0", true},
		{"503, was never used", unavailable, "0", "0", true},
		{"refused, goes on", refusing, "500", "520", false},
		{"refused, begins again", refusing, "500", "0", true},
		{"refused, was never used", refusing, "0", "0", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeEngine()
				f.report(page(tt.before))
				a := newAgent(t, testConfig(f))
				stop := follow(t, a)
				defer stop()
				time.Sleep(time.Second / 2)
				was := a.Engine().Generation
				f.set(tt.mood)
				time.Sleep(2 * time.Second)
				f.report(page(tt.after))
				f.set(well)
				time.Sleep(2 * time.Second)
				if got := a.Engine().Generation > was; got != tt.newLife {
					t.Errorf("new life %v, want %v", got, tt.newLife)
				}
			})
		})
	}
}

func TestLateReadingLeavesTheEngineInDoubt(t *testing.T) {
	for started, newLife := range map[int]bool{100: false, 200: true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeEngine()
			a := newAgent(t, testConfig(f))
			stop := follow(t, a)
			defer stop()
			time.Sleep(time.Second / 2)
			was := a.Engine().Generation
			f.set(unavailable)
			time.Sleep(2 * time.Second)
			f.stall("/metrics", true)
			f.set(well)
			time.Sleep(20 * time.Second)
			if a.Engine().Generation != was {
				t.Error("a new life because metrics were late")
			}
			f.report(metricsPage(0, 0, 0, started))
			f.stall("/metrics", false)
			time.Sleep(5 * time.Second)
			if got := a.Engine().Generation > was; got != newLife {
				t.Errorf("start time %d: new life %v, want %v", started, got, newLife)
			}
		})
	}
}

func TestRestartedEngineIsDescribedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		time.Sleep(time.Second / 2)
		f.set(refusing)
		time.Sleep(2 * time.Second)
		f.mu.Lock()
		f.pages["/v1/models"] = `{"data":[{"id":"new","owned_by":"vllm"}]}`
		f.mu.Unlock()
		f.set(well)
		time.Sleep(250 * time.Millisecond)
		if e := a.Engine(); len(e.Models) != 1 || e.Models[0].Name != "new" {
			t.Errorf("models %+v", e.Models)
		}
	})
}

func TestDownEngineIsPolledFiveTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		f.set(refusing)
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		time.Sleep(9900 * time.Millisecond)
		if n, other := f.count("/health"), f.count("/metrics")+f.count("/v1/models"); n != 50 || other != 0 {
			t.Errorf("%d polls of health and %d others in 10 s, want 50 and 0", n, other)
		}
	})
}

func TestMissingRouteIsAskedForSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		f.remove("/metrics")
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		time.Sleep(59500 * time.Millisecond)
		if n := f.count("/metrics"); n != 2 {
			t.Errorf("asked %d times in a minute, want 2", n)
		}
	})
}

func TestRoutesThatDisagreeChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeEngine()
		f.pages["/v1/models"] = `{"data":[{"id":"m","owned_by":"sglang"}]}`
		f.pages["/server_info"] = `{"page_size":16,"max_total_num_tokens":200000,"max_running_requests":64}`
		f.report(string(page(t, "sglang-0.5.txt"))) // says 400,000 tokens
		a := newAgent(t, testConfig(f))
		stop := follow(t, a)
		defer stop()
		time.Sleep(2500 * time.Millisecond)
		<-a.Changed()
		was := a.Engine()
		if was.CapacityTokens != 400000 || was.MaxRunning != 64 {
			t.Errorf("engine %+v", was)
		}
		time.Sleep(5 * time.Minute)
		select {
		case <-a.Changed():
			t.Error("described anew")
		default:
		}
	})
}

func TestPrefixCacheThatIsOffGivesNoOverlapWhileRequestsRun(t *testing.T) {
	a := upAgent(t, nil)
	a.noteReading(&reading{noPrefixCache: true}, engine.KindVLLM, book.Mark{})
	running := mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 1, 20)})
	running.FirstContent()
	if b := mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 1, 20), QueuedAtProbe: -1}); b.Overlap() != 0 {
		t.Errorf("overlap %d", b.Overlap())
	}
	if d := a.Publish()[0]; len(d.Set) != 0 {
		t.Errorf("%d bits advertised", len(d.Set))
	}
}

func TestMirrorTakesTheEnginesSize(t *testing.T) {
	a := upAgent(t, nil)
	a.noteReading(&reading{capacityTokens: 25_000, blockTokens: 64}, engine.KindVLLM, book.Mark{})
	if a.cache.blockTokens != 64 {
		t.Errorf("blocks of %d tokens", a.cache.blockTokens)
	}
	for family := range uint64(2) { // of 20,000 tokens each
		b := mustAdmit(t, a, Admission{Prompt: prompt(family, 20, 0, 20), QueuedAtProbe: -1})
		b.FirstContent()
		b.Finish(Outcome{})
	}
	if b := mustAdmit(t, a, Admission{Prompt: prompt(0, 20, 0, 20), QueuedAtProbe: -1}); b.Overlap() > 5000 {
		t.Errorf("overlap %d with a prompt that the second has driven out", b.Overlap())
	}
	a.noteReading(&reading{capacityTokens: 25_000, blockTokens: 16}, engine.KindVLLM, book.Mark{})
	if a.cache.blockTokens != 64 {
		t.Error("the mirror was replaced in mid-life")
	}
	a.noteReading(&reading{capacityTokens: 1000}, engine.KindVLLM, book.Mark{})
	if b := mustAdmit(t, a, Admission{Prompt: prompt(1, 20, 0, 20), QueuedAtProbe: -1}); b.Overlap() > 1000 {
		t.Errorf("overlap %d in a cache of 1000 tokens", b.Overlap())
	}
}

func TestSpeedIsNotLearnedFromAPromptThatHadToQueue(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	long := Admission{Bytes: 400_000, QueuedAtProbe: -1}
	head, next := mustAdmit(t, a, long), mustAdmit(t, a, long)
	head.FirstContent()
	c.advance(time.Minute)
	next.FirstContent()
	next.Finish(Outcome{Usage: openai.Usage{PromptTokens: 100_000}, HasUsage: true})
	if got := a.Load().PrefillRate; got != 0 {
		t.Errorf("%.0f tokens/s learned", got)
	}
}
