package workload

import (
	"fmt"
	"math"
	"time"
)

// demoSpan is how long sessions keep starting. With the turns that follow a run takes 23 to 26 s where prefixes are
// reused and about 30 s by round robin; a shorter span would overload the latter.
const demoSpan = 18 * time.Second

// DemoKVTokens is the KV cache of each engine that DemoWorkload is made for: in the model below, four such caches hold
// most of what comes again when each prompt is kept once, and not when round robin leaves copies everywhere. With
// 64,000 tokens overlap routing loses three points as well. With caches that never evict it comes to 0.61 to 0.66 and
// round robin to 0.35 to 0.37, because the third turn of a conversation may meet the engine of the first: the factor of
// two needs caches that are scarce, as they are in real engines.
const DemoKVTokens = 72_000

// DemoWorkload is the traffic of `kvmesh demo`: at scale 1 about 390 requests of 14 kB for 4 engines of 16,000 prefill
// tokens/s, a quarter of them recorded chat, a half conversations about a pasted document, a quarter questions below
// one of 20 long system prompts. Scale multiplies requests, not time: 2 is for 8 engines.
//
// The model is four FIFO engines with DemoKVTokens each and 3.35 bytes a token, as the simulated engine counts
// on made text (three seeds, printed by TestDemoRewardsPrefixRouting). Of the prompt tokens, one cache without bound
// would hold 0.62 to 0.67; round robin finds 0.21 to 0.26 and routing by exact overlap and load 0.54 to 0.60, 2.2 to
// 2.6 times as much. Mean TTFT is 1.4 to 1.8 s and 0.3 s.
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

// demoTrace replays a sample of ten minutes of recorded chat. Prompts above 8,000 tokens (32 kB) are left out: one of
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
		MaxInputTokens:  8_000,
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
		First:         Lengths{Median: 2500, Sigma: 0.5, Max: 8000},
		Next:          Lengths{Median: 60, Sigma: 0.6, Max: 400},
		Answer:        Lengths{Median: 40, Sigma: 0.4, Max: 96},
		Seed:          seed,
	}
}

// demoShared is applications with long instructions and short questions.
func demoShared(seed uint64, scale float64) SharedConfig {
	return SharedConfig{
		Requests: scaled(110, scale), Prompts: scaled(20, scale), Zipf: 0.8, Span: demoSpan,
		System:   Lengths{Median: 3800, Sigma: 0.2, Max: 8000},
		Question: Lengths{Median: 80, Sigma: 0.6, Max: 400},
		Answer:   Lengths{Median: 32, Sigma: 0.4, Max: 64},
		Seed:     seed,
	}
}

func scaled(n int, scale float64) int { return max(int(math.Round(float64(n)*scale)), 1) }
