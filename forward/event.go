package forward

import (
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Event is one request as it was decided and served. The log, the metrics, the debug page and the recorders of tests
// all read the same event. It shows no text of the prompt, no key and no header.
type Event struct {
	Time          time.Time       `json:"time"`
	ID            string          `json:"id"`
	Model         string          `json:"model"`
	Route         string          `json:"route"`
	Class         string          `json:"class,omitempty"`
	Outcome       string          `json:"outcome"` // ok, bad_request, canceled, or why it failed
	Status        int             `json:"status"`
	Engine        engine.ID       `json:"engine,omitempty"`
	Reason        string          `json:"reason,omitempty"`
	TieBreak      string          `json:"tie_break,omitempty"` // why it was taken before others as good; absent when by chance
	Refused       string          `json:"refused,omitempty"`   // why it does not wait, or not any longer, where every engine is full
	PromptBytes   int64           `json:"prompt_bytes"`
	Keys          int             `json:"keys"`
	OverlapTokens int             `json:"overlap_tokens"`
	PromptTokens  int             `json:"prompt_tokens,omitempty"` // as the engine reports
	CachedTokens  *int            `json:"cached_tokens,omitempty"` // as the engine reports; absent when it does not
	Decision      time.Duration   `json:"decision_ns"`
	Waited        time.Duration   `json:"waited_ns,omitempty"` // for an engine, because all were full
	TTFT          time.Duration   `json:"ttft_ns,omitempty"`
	Total         time.Duration   `json:"total_ns"`
	Attempts      []Attempt       `json:"attempts,omitempty"`
	Continued     int             `json:"continued,omitempty"`     // times that another engine went on with a broken stream
	NotContinued  string          `json:"not_continued,omitempty"` // why none went on
	Candidates    []CandidateInfo `json:"candidates,omitempty"`    // of the last decision that was not for a hedge, best first

	past *past // what it was decided by; nil for requests that were not decided
}

// Attempt is one engine that was tried. Those of an event are in the order in which they ended.
type Attempt struct {
	Engine engine.ID `json:"engine"`
	Result string    `json:"result"`
	Hedge  bool      `json:"hedge,omitempty"` // it was asked beside the one before
}

// CandidateInfo is one candidate of a decision, with the terms of its score.
type CandidateInfo struct {
	Engine        engine.ID `json:"engine"`
	State         string    `json:"state"`
	Probed        bool      `json:"probed"`
	Unverified    bool      `json:"unverified,omitempty"` // nothing checks what its digests claim
	Ejected       bool      `json:"ejected,omitempty"`    // and may be chosen only because too few others are left
	OverlapTokens int       `json:"overlap_tokens"`
	QueuedSeconds float64   `json:"queued_s"`
	NewSeconds    float64   `json:"new_s"`
	InFlight      int       `json:"in_flight"`
	Score         float64   `json:"score_s"`
	Zone          string    `json:"zone,omitempty"`
}

func candidateInfos(q *Question, ranked []Candidate) []CandidateInfo {
	out := make([]CandidateInfo, len(ranked))
	for i, c := range ranked {
		out[i] = CandidateInfo{
			Engine: c.ID, State: c.State.String(), Probed: c.Probed, Unverified: c.Unverified, Ejected: c.Forced,
			OverlapTokens: int(c.OverlapTokens(q)), QueuedSeconds: c.Load.QueuedSeconds, NewSeconds: c.NewSeconds(q), InFlight: c.Load.InFlight, Score: c.Score,
			Zone: c.Zone,
		}
	}
	return out
}

// Recorder keeps the last events for the debug page. It is safe for concurrent use.
type Recorder struct {
	mu   sync.Mutex
	ring []Event
	next int
}

// NewRecorder returns a recorder of the last n events.
func NewRecorder(n int) *Recorder { return &Recorder{ring: make([]Event, 0, n)} }

// Record keeps e.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ring) < cap(r.ring) {
		r.ring = append(r.ring, e)
		return
	}
	r.ring[r.next] = e
	r.next = (r.next + 1) % len(r.ring)
}

// Events returns the kept events, newest first.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Event, 0, len(r.ring))
	for i := range r.ring {
		out = append(out, r.ring[(r.next+len(r.ring)-1-i)%len(r.ring)])
	}
	return out
}
