package workload

import (
	"math"
	"slices"
	"time"
)

// ErrorKind says how a request failed.
type ErrorKind string

// The kinds of error.
const (
	ErrorDial     ErrorKind = "dial"     // no connection to the target
	ErrorTimeout  ErrorKind = "timeout"  // Config.Timeout passed
	ErrorCanceled ErrorKind = "canceled" // the run's context ended
	ErrorStatus4x ErrorKind = "status_4xx"
	ErrorStatus5x ErrorKind = "status_5xx"  // with every status that is neither 200 nor 4xx
	ErrorEvent    ErrorKind = "error_event" // an error inside the stream
	ErrorStream   ErrorKind = "stream"      // the stream broke, ended early, or was no SSE of chat chunks
	ErrorEmpty    ErrorKind = "empty"       // a stream that ended well without any content
)

// Sample is what one request measured.
type Sample struct {
	Session string        `json:"session"`
	Class   string        `json:"class"`
	Turn    int           `json:"turn"`
	Target  int           `json:"target"`
	Sent    time.Duration `json:"sent"` // from the start of the run
	Late    time.Duration `json:"late"` // sent that much after it was due: no free slot, or a busy machine
	TTFT    time.Duration `json:"ttft"` // from sending to the first content; 0 when there was none
	Total   time.Duration `json:"total"`
	// Usage says that the answer held token counts; without it the three below are 0.
	Usage        bool      `json:"usage"`
	PromptTokens int       `json:"prompt_tokens"`
	CachedTokens int       `json:"cached_tokens"`
	OutputTokens int       `json:"output_tokens"`
	Error        ErrorKind `json:"error,omitempty"` // empty when the answer came whole
}

// Result is what a run measured. Times and tokens are those of requests without error.
type Result struct {
	Requests     int               `json:"requests"` // sent, with and without error
	Errors       map[ErrorKind]int `json:"errors"`
	Skipped      int               `json:"skipped"`  // turns not sent: the turn before failed, or the run was over
	NoUsage      int               `json:"no_usage"` // answers without token counts
	PromptTokens int64             `json:"prompt_tokens"`
	CachedTokens int64             `json:"cached_tokens"`
	OutputTokens int64             `json:"output_tokens"`
	// CachedTokenRatio is CachedTokens ÷ PromptTokens, 0 when no tokens were reported.
	CachedTokenRatio float64 `json:"cached_token_ratio"`
	TTFT             Summary `json:"ttft"`
	Total            Summary `json:"total"`
	Seconds          float64 `json:"seconds"` // from the start of the run to the end of its last answer
	// Samples are the requests in the order in which they ended.
	Samples []Sample `json:"-"`
}

// Summary describes a distribution of times, in seconds. Percentiles are nearest-rank: values that occurred.
type Summary struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
}

// Summarize returns the Result of samples; Skipped and Seconds are the caller's to fill in. Give it the samples of one
// class for the Result of that class.
func Summarize(samples []Sample) Result {
	r := Result{Errors: map[ErrorKind]int{}, Samples: samples}
	var ttft, total []time.Duration
	for i := range samples {
		s := &samples[i]
		r.add(s)
		if s.Error == "" {
			ttft = append(ttft, s.TTFT)
			total = append(total, s.Total)
		}
	}
	if r.PromptTokens > 0 {
		r.CachedTokenRatio = float64(r.CachedTokens) / float64(r.PromptTokens)
	}
	r.TTFT, r.Total = summarize(ttft), summarize(total)
	return r
}

func (r *Result) add(s *Sample) {
	r.Requests++
	if s.Error != "" {
		r.Errors[s.Error]++
		return
	}
	if !s.Usage {
		r.NoUsage++
	}
	r.PromptTokens += int64(s.PromptTokens)
	r.CachedTokens += int64(s.CachedTokens)
	r.OutputTokens += int64(s.OutputTokens)
}

func summarize(times []time.Duration) Summary {
	if len(times) == 0 {
		return Summary{}
	}
	slices.Sort(times)
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	return Summary{
		Mean: (sum / time.Duration(len(times))).Seconds(),
		P50:  quantile(times, 0.50).Seconds(),
		P95:  quantile(times, 0.95).Seconds(),
		P99:  quantile(times, 0.99).Seconds(),
	}
}

// quantile is the smallest of the sorted times that at least a share q of them do not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// CoV is the coefficient of variation of values: their standard deviation (of the whole population) ÷ their mean. It
// is 0 when all are equal, and 0 for no values or a mean of 0. The mean of requests in flight at each engine over time
// is what kvmesh compares by it.
func CoV(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	var sum, squares float64
	for _, v := range values {
		sum += v
	}
	mean := sum / float64(len(values))
	if mean == 0 {
		return 0
	}
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return math.Sqrt(squares/float64(len(values))) / mean
}
