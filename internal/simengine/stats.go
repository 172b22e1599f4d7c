package simengine

import "time"

// Stats is what an engine has done since its last restart and holds now.
type Stats struct {
	Restarts int64 `json:"restarts"`

	Running int `json:"running"` // in prefill or decoding
	Waiting int `json:"waiting"` // not admitted yet, or preempted

	Requests      int64     `json:"requests"` // HTTP requests for generation that were accepted
	Sequences     int64     `json:"sequences"`
	Finished      int64     `json:"finished"` // sequences that ended, aborted ones included
	Aborted       int64     `json:"aborted"`
	LastAbort     time.Time `json:"last_abort,omitzero"`
	Preemptions   int64     `json:"preemptions"`
	FaultsInduced int64     `json:"faults_induced"` // requests that a fault answered or killed, in all lives

	PromptTokens     int64 `json:"prompt_tokens"` // of admitted sequences
	CachedTokens     int64 `json:"cached_tokens"` // of those, found in the cache
	LoadedTokens     int64 `json:"loaded_tokens"` // of those, loaded from the host tier
	GenerationTokens int64 `json:"generation_tokens"`

	// QueriedTokens and HitTokens are vLLM's prefix cache counters: like the above, without sequences that do not read the
	// cache, and without what was loaded.
	QueriedTokens int64 `json:"queried_tokens"`
	HitTokens     int64 `json:"hit_tokens"`

	FirstTokens       int64   `json:"first_tokens"`
	FirstTokenSeconds float64 `json:"first_token_seconds"` // sum over first tokens, from arrival; wall clock

	// InFlightSeconds is the integral of running + waiting over wall-clock time: its growth over an interval is the mean
	// load there, from which tests compute the variation between engines.
	InFlightSeconds float64 `json:"in_flight_seconds"`

	TotalBlocks    int   `json:"total_blocks"`    // physical blocks, all groups
	UsedBlocks     int   `json:"used_blocks"`     // held by running sequences
	ResidentBlocks int   `json:"resident_blocks"` // findable, physical copies counted
	HostBlocks     int   `json:"host_blocks"`     // in the host tier
	Evictions      int64 `json:"evictions"`
	EventBatches   int64 `json:"event_batches"` // KV event batches published
}

// counters are the running sums of Stats, under the scheduler's lock.
type counters struct {
	Stats
	inFlight int
	since    time.Time // up to when InFlightSeconds is summed
}

func (c *counters) advance(now time.Time) {
	c.InFlightSeconds += float64(c.inFlight) * now.Sub(c.since).Seconds()
	c.since = now
}

func (c *counters) submitted(now time.Time) {
	c.advance(now)
	c.inFlight++
	c.Sequences++
}

func (c *counters) admitted(j *job, cached, loaded int) {
	c.PromptTokens += int64(j.prompt)
	c.CachedTokens += int64(cached)
	c.LoadedTokens += int64(loaded)
	if j.readsKV {
		c.QueriedTokens += int64(j.prompt)
		c.HitTokens += int64(cached - loaded)
	}
}

func (c *counters) firstToken(d time.Duration) {
	c.FirstTokens++
	c.FirstTokenSeconds += d.Seconds()
}

func (c *counters) ended(now time.Time) {
	c.advance(now)
	c.inFlight--
	c.Finished++
}

func (c *counters) aborted(now time.Time) {
	c.Aborted++
	c.LastAbort = now
}

// snapshot returns the sums and the state of this moment.
func (s *scheduler) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.advance(time.Now())
	st := s.stats.Stats
	st.Running, st.Waiting = s.running(), len(s.waiting)
	st.TotalBlocks, st.UsedBlocks = s.cache.total, s.cache.used()
	st.ResidentBlocks, st.Evictions = s.cache.resident, s.cache.evictions
	st.HostBlocks = s.cache.host.order.len
	return st
}
