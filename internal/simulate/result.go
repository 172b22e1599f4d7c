package simulate

import (
	"math"
	"slices"
	"time"
)

// Result is what one policy gave.
type Result struct {
	Policy    string `json:"policy"`
	Workload  string `json:"workload"`
	Seed      uint64 `json:"seed"`
	Engines   int    `json:"engines"`
	Ingresses int    `json:"ingresses"`
	Requests  int    `json:"requests"` // that count: after the warm-up
	Failed    int    `json:"failed"`   // of them, those that got no answer or half of one

	HitRatio      float64 `json:"hit_ratio"`           // prompt tokens that engines had in cache ÷ prompt tokens
	FollowUpRatio float64 `json:"follow_up_hit_ratio"` // the same, of turns after the first; 0 without such
	TTFTMean      float64 `json:"ttft_mean_s"`
	TTFTP50       float64 `json:"ttft_p50_s"`
	TTFTP95       float64 `json:"ttft_p95_s"`
	TTFTP99       float64 `json:"ttft_p99_s"`
	EndToEnd      float64 `json:"end_to_end_mean_s"` // of answers that ended within the run
	LoadCoV       float64 `json:"load_cov"`          // standard deviation ÷ mean, over engines, of the mean requests in flight
	ServedCoV     float64 `json:"served_cov"`        // the same of prompt and output tokens served
	Utilisation   float64 `json:"utilisation"`       // mean share of time in which an engine prefilled, or a step ran
	InFlight      float64 `json:"in_flight"`         // mean requests in flight on an engine
	BounceRatio   float64 `json:"bounce_ratio"`      // refusals ÷ requests
	Probes        float64 `json:"probe_per_request"`
	BytesIn       float64 `json:"bytes_in_per_agent_s"` // of heartbeats, digests, probes and bounces, with IP headers
	Wall          float64 `json:"wall_s"`

	// TTFT are the times to first token in seconds, ascending.
	TTFT []float64 `json:"-"`
}

// collector gathers a Result. All but the meters counts only requests that arrived after the warm-up.
type collector struct {
	w        *world
	ttft     []float64
	prompt   int64
	cached   int64
	later    int64 // prompt tokens of turns after the first
	laterHit int64
	ended    int
	endToEnd float64
	failed   int
	probes   int
	bounces  int
	bytes    float64 // that agents heard after the warm-up
}

func (c *collector) init(w *world) { c.w = w }

func (c *collector) first(r *request, now time.Duration) {
	c.ttft = append(c.ttft, (now - r.due).Seconds())
	cached := int64(r.cached(c.w.blockTokens))
	c.prompt += int64(r.input)
	c.cached += cached
	if r.turn > 0 {
		c.later += int64(r.input)
		c.laterHit += cached
	}
}

func (c *collector) done(r *request, now time.Duration) {
	if r.counted {
		c.ended++
		c.endToEnd += (now - r.due).Seconds()
	}
}

// probe and others are called as things happen.
func (c *collector) probe(r *request) {
	if r.counted {
		c.probes++
	}
}

func (c *collector) bounce(r *request) {
	if r.counted {
		c.bounces++
	}
}

// heard counts bytes that came in at one agent, or at so many.
func (c *collector) heard(bytes float64) {
	if c.w.now >= c.w.cfg.WarmUp && c.w.now < c.w.cfg.Span {
		c.bytes += bytes
	}
}

// result closes the books.
func (c *collector) result() Result {
	w := c.w
	slices.Sort(c.ttft)
	var flight, served []float64
	busy := 0.0
	for _, n := range w.nodes {
		n.flight.set(n.flight.value, w.now)
		n.busy.set(n.busy.value, w.now)
		flight, served = append(flight, n.flight.mean()), append(served, n.served)
		busy += n.busy.mean()
	}
	requests := float64(max(len(c.ttft), 1))
	inFlight, flightCoV := variation(flight)
	_, servedCoV := variation(served)
	counted := (w.cfg.Span - w.cfg.WarmUp).Seconds()
	return Result{
		Seed: w.cfg.Seed, Engines: w.cfg.Engines, Ingresses: w.cfg.Ingresses, Workload: w.cfg.Workload,
		Requests: len(c.ttft), Failed: c.failed,
		HitRatio: ratio(c.cached, c.prompt), FollowUpRatio: ratio(c.laterHit, c.later),
		TTFTMean: mean(c.ttft), TTFTP50: quantile(c.ttft, 0.50), TTFTP95: quantile(c.ttft, 0.95), TTFTP99: quantile(c.ttft, 0.99),
		EndToEnd: c.endToEnd / float64(max(c.ended, 1)),
		LoadCoV:  flightCoV, ServedCoV: servedCoV, Utilisation: busy / float64(len(w.nodes)), InFlight: inFlight,
		BounceRatio: float64(c.bounces) / requests, Probes: float64(c.probes) / requests,
		BytesIn: c.bytes / counted / float64(max(w.agents(), 1)),
		TTFT:    c.ttft,
	}
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(len(values), 1))
}

// quantile returns the value that a share q of the sorted values do not exceed.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// variation returns the mean and the coefficient of variation: standard deviation ÷ mean.
func variation(values []float64) (middle, cov float64) {
	middle = mean(values)
	if middle == 0 {
		return 0, 0
	}
	sum := 0.0
	for _, v := range values {
		sum += (v - middle) * (v - middle)
	}
	return middle, math.Sqrt(sum/float64(len(values))) / middle
}
