package workload

import (
	"fmt"
	"math"
	"time"
)

// demoSpan is how long sessions keep starting. With the turns that follow a run takes 23 to 26 s where prefixes are
// reused and about 30 s by round robin; a shorter span would overload the latter.
const demoSpan = 18 * time.Second

// DemoKVTokens is the KV cache of each engine that DemoWorkload is made for. The prompts in use at any time take some
// 250,000 tokens: four engines hold them when each is kept once, and not when round robin leaves copies on all.
// Below 64,000 tokens overlap routing runs out of room as well; without bound round robin comes to 0.34 to 0.38, since
// a conversation's third turn may meet the first one's engine again, and overlap routing to 0.60 to 0.65.
const DemoKVTokens = 80_000

// DemoWorkload is the traffic of `kvmesh demo`: at scale 1 about 390 requests of 17 kB for 4 engines of 16,000 prefill
// tokens/s, a quarter of them recorded chat, a half conversations about a pasted document, a quarter questions below
// one of 20 long system prompts. Scale multiplies requests, not time: 2 is for 8 engines.
//
// In a model of such engines with DemoKVTokens each (three seeds, TestDemoRewardsPrefixRouting prints them), the share
// of prompt tokens served from cache is 0.63 to 0.67 for one cache without bound, 0.23 to 0.29 for round robin and 0.55
// to 0.62 for routing by exact overlap and load; mean TTFT is 1.1 to 1.6 s and 0.2 to 0.4 s.
func DemoWorkload(seed uint64, scale float64) (Workload, error) {
	if !(scale > 0 && scale <= 1000) {
		return Workload{}, fmt.Errorf("make demo workload: scale (%v) must be above 0 and at most 1000", scale)
	}
	text := NewText(seed)
	trace, err := demoTrace(text, seed, scale)
	if err != nil {
		return Workload{}, err
	}
	chat, err := Chat("chat", text, demoChat(seed, scale))
	if err != nil {
		return Workload{}, err
	}
	shared, err := Shared("shared", text, demoShared(seed, scale))
	if err != nil {
		return Workload{}, err
	}
	return Merge("demo", trace, chat, shared), nil
}

// demoTrace replays a sample of ten minutes of recorded chat. Prompts above 10,000 tokens (40 kB) are left out: one of
// them would occupy an engine for longer than the demo can wait.
func demoTrace(text *Text, seed uint64, scale float64) (Workload, error) {
	t, err := ConversationSlice()
	if err != nil {
		return Workload{}, err
	}
	t.Jitter(MooncakeQuantum, newRand(seed, 5))
	last := t.Requests[len(t.Requests)-1].At
	return Replay("trace", &t, text, ReplayConfig{
		Requests:        scaled(90, scale),
		MaxInputTokens:  10_000,
		MaxOutputTokens: 48,
		Compress:        float64(last) / float64(demoSpan),
		Seed:            seed,
	})
}

// demoChat is people who paste a document and ask about it a few times.
func demoChat(seed uint64, scale float64) ChatConfig {
	return ChatConfig{
		Sessions: scaled(65, scale), MinTurns: 2, MaxTurns: 4,
		Span: demoSpan * 4 / 5, Think: 1500 * time.Millisecond,
		SystemPrompts: 4,
		System:        Lengths{Median: 500},
		First:         Lengths{Median: 3000, Sigma: 0.5, Max: 8000},
		Next:          Lengths{Median: 60, Sigma: 0.6, Max: 400},
		Answer:        Lengths{Median: 40, Sigma: 0.4, Max: 96},
		Seed:          seed,
	}
}

// demoShared is applications with long instructions and short questions.
func demoShared(seed uint64, scale float64) SharedConfig {
	return SharedConfig{
		Requests: scaled(110, scale), Prompts: scaled(20, scale), Zipf: 0.8, Span: demoSpan,
		System:   Lengths{Median: 4500, Sigma: 0.2, Max: 8000},
		Question: Lengths{Median: 80, Sigma: 0.6, Max: 400},
		Answer:   Lengths{Median: 32, Sigma: 0.4, Max: 64},
		Seed:     seed,
	}
}

func scaled(n int, scale float64) int { return max(int(math.Round(float64(n)*scale)), 1) }
