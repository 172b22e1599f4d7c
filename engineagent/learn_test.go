package engineagent

import (
	"math"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// serve books a request, lets it prefill for took and ends it with usage u.
func serve(t *testing.T, a *Agent, c *clock, ad Admission, took time.Duration, u openai.Usage) {
	t.Helper()
	ad.QueuedAtProbe = -1
	b := mustAdmit(t, a, ad)
	c.advance(took)
	b.FirstContent()
	c.advance(time.Millisecond)
	b.Finish(Outcome{Usage: u, HasUsage: true})
}

func TestSpeedAndSizeAreLearned(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	for i := range uint64(100) { // 2 bytes a token, 5,000 tokens/s
		serve(t, a, c, Admission{Prompt: prompt(i, 10, i, 10)}, 4*time.Second, openai.Usage{PromptTokens: 20000})
	}
	l := a.Load()
	if math.Abs(l.PrefillRate-5000) > 50 || math.Abs(l.BytesPerToken-2) > 0.02 {
		t.Errorf("%.0f tokens/s and %.2f bytes a token, want 5000 and 2", l.PrefillRate, l.BytesPerToken)
	}
}

func TestSpeedIsNotLearnedFromPromptsThatSayNothing(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	long := Admission{Bytes: 400_000, QueuedAtProbe: -1}
	short := openai.Usage{PromptTokens: 511}
	serve(t, a, c, Admission{Bytes: 1000}, time.Minute, short)

	head, behind := mustAdmit(t, a, long), mustAdmit(t, a, long)
	c.advance(time.Minute)
	behind.FirstContent()
	head.Finish(Outcome{})
	behind.Finish(Outcome{Usage: openai.Usage{PromptTokens: 100_000}, HasUsage: true})
	if got := a.Load().PrefillRate; got != 0 {
		t.Errorf("%.0f tokens/s learned", got)
	}
}

func TestCurveOfPrefillIsLearnedOfTheWholePrompt(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	for i := range uint64(100) { // 0.1 s, 10,000 tokens/s and 2 ns for each pair of tokens
		prompt, cached := 2000+int(i*997%30_000), int(i*613%20_000)
		n, ctx := float64(prompt), float64(prompt+cached)
		took := 0.1 + n/10_000 + 2e-9*n*(ctx-n/2)
		serve(t, a, c, Admission{Bytes: int64(4 * (prompt + cached))}, time.Duration(took*float64(time.Second)),
			openai.Usage{PromptTokens: prompt + cached, CachedTokens: cached, HasCached: true})
	}
	l := a.Load()
	if math.Abs(l.PrefillFixed-0.1) > 0.005 || math.Abs(l.PrefillRate-10_000) > 500 || math.Abs(l.PrefillBend-2e-9) > 1e-10 {
		t.Errorf("%.4f s, %.0f tokens/s and %.2g s for each pair of tokens, want 0.1, 10000 and 2e-9", l.PrefillFixed, l.PrefillRate, l.PrefillBend)
	}
}

func TestCostOfARequestIsLearnedOfStreams(t *testing.T) {
	tests := []struct {
		name   string
		traits openai.Traits
		o      Outcome
		want   float64 // seconds
	}{
		{"contents of a stream", openai.TraitStream, Outcome{}, 0.04},
		{"its usage", openai.TraitStream, Outcome{HasUsage: true, Usage: openai.Usage{CompletionTokens: 41}}, 0.04},
		{"several answers", openai.TraitStream | openai.TraitMany, Outcome{}, 0},
		{"not a stream", 0, Outcome{Whole: true}, 0},
		{"failed", openai.TraitStream, Outcome{Failed: true}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newClock()
			a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
			for i := range 60 { // 5 ms a token, and 1 ms for each running request
				running := make([]*Booking, 1+i%10)
				for k := range running {
					running[k] = mustAdmit(t, a, Admission{Bytes: 100, QueuedAtProbe: -1, Traits: tt.traits})
					running[k].FirstContent()
				}
				for range 40 {
					c.advance(time.Duration(5+len(running)) * time.Millisecond)
					for _, b := range running {
						b.FirstContent()
					}
				}
				for _, b := range running {
					b.Finish(tt.o)
				}
			}
			if got := a.Load().RequestCost; math.Abs(got-tt.want) > 0.002 {
				t.Errorf("%.1f ms, want %.1f", 1e3*got, 1e3*tt.want)
			}
		})
	}
}

func TestAnswerThatCameAtOnceTeachesSizeButNoSpeed(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	b := mustAdmit(t, a, Admission{Prompt: prompt(1, 10, 0, 10)})
	c.advance(time.Minute) // of decoding, most of it
	b.FirstContent()
	b.Finish(Outcome{Usage: openai.Usage{PromptTokens: 20000, HasCached: true}, HasUsage: true, Whole: true})
	if l := a.Load(); l.PrefillRate != 0 || l.BytesPerToken == 0 {
		t.Errorf("%.0f tokens/s and %.2f bytes a token learned, want no speed and a size", l.PrefillRate, l.BytesPerToken)
	}
}

func TestSpeedIsLearnedWithCareWhereTheCachedShareIsUnknown(t *testing.T) {
	const twice = 2 * engine.DefaultPrefillRate
	tests := []struct {
		name    string
		ask     Admission
		u       openai.Usage
		least   float64
		atMost  float64
		noCache bool
	}{
		{"without keys", Admission{Bytes: 80_000}, openai.Usage{PromptTokens: 20000}, 0, 0, false},
		{"with keys", Admission{Prompt: prompt(1, 20, 0, 20)}, openai.Usage{PromptTokens: 20000}, 1, twice, false},
		{
			"reported",
			Admission{Prompt: prompt(1, 20, 0, 20)},
			openai.Usage{PromptTokens: 20000, HasCached: true},
			twice, 1e6, false,
		},
		{"without keys and without a cache", Admission{Bytes: 80_000}, openai.Usage{PromptTokens: 20000}, twice, 1e6, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newClock()
			a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
			if tt.noCache {
				a.noteReading(&reading{noPrefixCache: true}, engine.KindVLLM, book.Mark{})
			}
			serve(t, a, c, tt.ask, 20*time.Millisecond, tt.u) // 1,000,000 tokens/s, if none was cached
			if got := a.Load().PrefillRate; got < tt.least || got > tt.atMost {
				t.Errorf("%.0f tokens/s, want %.0f to %.0f", got, tt.least, tt.atMost)
			}
		})
	}
}

func TestAbsurdUsageDrivesNothingOut(t *testing.T) {
	usages := map[string]openai.Usage{
		"prompt": {PromptTokens: 1 << 40, CompletionTokens: 10},
		"output": {PromptTokens: 1000, CompletionTokens: 1 << 40},
	}
	for name, u := range usages {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now; cfg.CapacityTokens = 100_000 })
			serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, openai.Usage{PromptTokens: 20000})
			serve(t, a, c, Admission{Prompt: prompt(2, 1, 0, 1)}, time.Second, u)
			if b := mustAdmit(t, a, Admission{Prompt: prompt(1, 20, 0, 20)}); b.share < 0.99 {
				t.Errorf("overlap %d of %d tokens", b.Overlap(), b.prompt)
			}
		})
	}
}

func TestLearnedValuesStayInBounds(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	for i := range uint64(300) {
		serve(t, a, c, Admission{Prompt: prompt(i, 1, i, 1)}, time.Hour, openai.Usage{PromptTokens: math.MaxInt})
	}
	l := a.Load()
	wantTellable(t, l)
	if l.BytesPerToken != 0.5 {
		t.Errorf("%v bytes a token, want the bound", l.BytesPerToken)
	}
}

func TestRefutedPredictionsShrinkTheMirrorFastAndTrueOnesGrowItSlowly(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now; cfg.CapacityTokens = 1_000_000 })
	capacity := func() int64 { _, n, _ := a.belief(); return n }
	ask := func(cached int) {
		serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second,
			openai.Usage{PromptTokens: 20000, CachedTokens: cached, HasCached: true})
	}
	ask(0) // predicts nothing
	if capacity() != 1_000_000 {
		t.Fatalf("capacity %d after a true prediction of nothing", capacity())
	}
	ask(0)
	if capacity() != 900_000 {
		t.Fatalf("capacity %d after a refuted prediction, want 900000", capacity())
	}
	ask(19_968)
	if capacity() != 902_000 {
		t.Fatalf("capacity %d after a true one, want 902000", capacity())
	}
	for range 60 {
		ask(19_968)
	}
	if capacity() != 1_000_000 {
		t.Errorf("capacity %d in the end, want the engine's", capacity())
	}
	if _, _, source := a.belief(); source != engine.EvidenceUsage {
		t.Errorf("evidence from %v", source)
	}
}

func TestBurstOfOneWrongBeliefIsOneMistake(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now; cfg.CapacityTokens = 1_000_000 })
	u := openai.Usage{PromptTokens: 20000, HasCached: true}
	serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, u)
	var burst []*Booking
	for range 30 {
		burst = append(burst, mustAdmit(t, a, Admission{Prompt: prompt(1, 20, 0, 20), QueuedAtProbe: -1}))
	}
	for _, b := range burst {
		c.advance(time.Second)
		b.FirstContent()
		b.Finish(Outcome{Usage: u, HasUsage: true})
	}
	if _, n, _ := a.belief(); n != 900_000 {
		t.Errorf("capacity %d, want 900000", n)
	}
}

func TestSGLangWithCacheReportMeansZeroWhenItSaysNothing(t *testing.T) {
	for _, reports := range []bool{false, true} {
		c := newClock()
		a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now; cfg.CapacityTokens = 1_000_000 })
		a.noteDescription(engine.KindSGLang, nil, serverInfo{CacheReport: reports})
		for range 2 {
			serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, openai.Usage{PromptTokens: 20000})
		}
		if _, n, _ := a.belief(); (n < 1_000_000) != reports {
			t.Errorf("cache report %v: capacity %d", reports, n)
		}
	}
}

func TestCountersAreEvidenceWhereAnswersCarryNone(t *testing.T) {
	tests := []struct {
		name    string
		hits    float64 // of the second window
		foreign int
		want    int64
	}{
		{"as predicted", 40_000, 0, 1_000_000},
		{"refuted", 0, 0, 900_000},
		{"others' prompts count too", 0, 1, 1_000_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newClock()
			a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now; cfg.CapacityTokens = 1_000_000 })
			u := openai.Usage{PromptTokens: 20000}
			read := func(hits float64) {
				r := reading{hitTokens: hits, hasHits: true, running: tt.foreign}
				a.noteReading(&r, engine.KindVLLM, a.book.mark())
			}
			serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, u)
			read(1000)
			for range 2 {
				serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, u)
			}
			read(1000 + tt.hits) // too early to tell
			if _, n, _ := a.belief(); n != 1_000_000 {
				t.Fatalf("judged after 2 s: capacity %d", n)
			}
			c.advance(counterPeriod)
			read(1000 + tt.hits)
			if _, n, _ := a.belief(); n != tt.want {
				t.Errorf("capacity %d, want %d", n, tt.want)
			}
		})
	}
}

func TestOwnPromptWithoutKeysSpoilsTheCounters(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now; cfg.CapacityTokens = 1_000_000 })
	read := func(hits float64) {
		a.noteReading(&reading{hitTokens: hits, hasHits: true}, engine.KindVLLM, a.book.mark())
		c.advance(counterPeriod)
	}
	u := openai.Usage{PromptTokens: 20000}
	serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, u)
	read(0)
	serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, u)
	serve(t, a, c, Admission{Bytes: 80_000}, time.Second, u) // its hits may be any
	read(0)
	if _, n, _ := a.belief(); n != 1_000_000 {
		t.Errorf("capacity %d", n)
	}
}

func TestEvidenceEndsWithWhatGaveIt(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now; cfg.CapacityTokens = 1_000_000 })
	source := func() engine.Evidence { _, _, s := a.belief(); return s }
	ask := func(n int, u openai.Usage) {
		for range n {
			serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, u)
		}
	}
	read := func(hits float64) {
		a.noteReading(&reading{hitTokens: hits, hasHits: true}, engine.KindVLLM, a.book.mark())
	}
	told, silent := openai.Usage{PromptTokens: 20000, HasCached: true}, openai.Usage{PromptTokens: 20000}
	ask(2, told)
	ask(maxSilent, silent)
	if source() != engine.EvidenceUsage {
		t.Fatalf("evidence from %v after a few usages without cached tokens", source())
	}
	ask(1, silent)
	read(0)
	ask(20, silent)
	read(20 * 20000)
	if source() != engine.EvidenceCounters {
		t.Errorf("evidence from %v after many", source())
	}
	ask(1, told)
	if source() != engine.EvidenceUsage {
		t.Errorf("evidence from %v after a usage that told", source())
	}
	a.hear(answerRefused)
	a.hear(answerGood)
	if off, _, s := a.belief(); off != 0 || s != engine.EvidenceNone {
		t.Errorf("evidence from %v, error %v after a restart", s, off)
	}
}

func TestAnswerOfAPastLifeIsNoEvidence(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now; cfg.CapacityTokens = 1_000_000 })
	u := openai.Usage{PromptTokens: 20000, HasCached: true}
	serve(t, a, c, Admission{Prompt: prompt(1, 20, 0, 20)}, time.Second, u)
	b := mustAdmit(t, a, Admission{Prompt: prompt(1, 20, 0, 20), QueuedAtProbe: -1})
	a.hear(answerRefused)
	a.hear(answerGood)
	b.FirstContent()
	b.Finish(Outcome{Usage: u, HasUsage: true})
	if _, n, _ := a.belief(); n != 1_000_000 {
		t.Errorf("capacity %d", n)
	}
	if got := mustAdmit(t, a, Admission{Prompt: prompt(1, 20, 0, 20)}).Overlap(); got != 0 {
		t.Errorf("overlap %d with a past life", got)
	}
}

func TestRateAndBusinessAreMeansOverHalfAMinute(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	for range 300 { // a request a second, which prefills for half of it
		b := mustAdmit(t, a, Admission{Bytes: 100, QueuedAtProbe: -1, Traits: openai.TraitStream})
		c.advance(500 * time.Millisecond)
		b.FirstContent()
		c.advance(500 * time.Millisecond)
		b.Finish(Outcome{})
	}
	if l := a.Load(); math.Abs(l.AcceptRate-1) > 0.05 || math.Abs(l.BusyShare-0.5) > 0.02 {
		t.Errorf("%.2f requests a second, busy %.2f; want 1 and 0.5", l.AcceptRate, l.BusyShare)
	}
	c.advance(5 * time.Minute)
	if l := a.Load(); l.AcceptRate > 0.001 || l.BusyShare > 0.001 {
		t.Errorf("%.4f requests a second, busy %.4f after five idle minutes", l.AcceptRate, l.BusyShare)
	}
}

func TestPromptsWithMediaTeachNoSize(t *testing.T) {
	c := newClock()
	a := upAgent(t, func(cfg *Config) { cfg.Now = c.Now })
	serve(t, a, c, Admission{Prompt: prompt(1, 1, 1, 1), Media: true}, time.Second, openai.Usage{PromptTokens: 5000})
	if l := a.Load(); l.BytesPerToken != 0 {
		t.Errorf("%v bytes a token learned from a prompt with an image", l.BytesPerToken)
	}
}
