package simulate

import "time"

// llmd is llm-d's scheduler with the scorers and weights of its sample for the precise prefix cache: share of the prompt
// that the engine holds × 2, free KV memory × 1, and length of the queue, scaled between the shortest and the longest, × 1.
// The highest wins (llm-d-router, README and deploy/config). The index is exact and fresh, the engines' metrics are polled
// every 50 ms, as is the default there.
type llmd struct {
	blind
	w      *world
	polled time.Duration
	queue  []float64
	usage  []float64
}

const (
	llmdPrefix = 2
	llmdUsage  = 1
	llmdQueue  = 1
	llmdPoll   = 50 * time.Millisecond
)

func newLLMD(w *world) picker {
	return &llmd{w: w, polled: -llmdPoll, queue: make([]float64, w.cfg.Engines), usage: make([]float64, w.cfg.Engines)}
}

func (p *llmd) pick(r *request) int {
	if p.w.now-p.polled >= llmdPoll {
		p.poll()
	}
	shortest, longest := p.queue[0], p.queue[0]
	for _, q := range p.queue {
		shortest, longest = min(shortest, q), max(longest, q)
	}
	held := p.w.holders.overlap(r.chain)
	return p.w.least(func(e int) float64 {
		score := llmdPrefix * float64(min(int(held[e])*p.w.blockTokens, r.input)) / float64(r.input)
		score += llmdUsage * (1 - p.usage[e])
		if longest > shortest {
			score += llmdQueue * (longest - p.queue[e]) / (longest - shortest)
		} else {
			score += llmdQueue
		}
		return -score
	})
}

func (p *llmd) poll() {
	p.polled = p.w.now
	for i, n := range p.w.nodes {
		p.queue[i] = float64(n.machine.waiting())
		p.usage[i] = n.cache.pinned()
	}
}
