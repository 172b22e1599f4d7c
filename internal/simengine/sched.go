package simengine

import (
	"slices"
	"sync"
	"time"
)

// The engine model of the reference simulation: how long prefill and decode take on a 32B model.
const (
	prefillBase     = 15 * time.Millisecond
	prefillContext  = 65536.0 // tokens of context that double the cost of a token
	prefillDecoding = 0.004   // one decoding request slows prefill by this share
	decodeBase      = 20 * time.Millisecond
	decodeEach      = 100 * time.Microsecond
	decodeWaiting   = 1.5 // decode while a prefill waits
	loadSpeed       = 10  // loading a token from CPU memory against computing it, on an empty context
)

// scheduler runs jobs: first come, first served, one prefill at a time, all decoding jobs one token a step. It has no
// goroutine of its own; timers drive it, so an idle engine costs nothing and synctest can fake its time.
type scheduler struct {
	cfg     *Config
	publish func([]kvEvent) // called with mu held, at most once a step

	mu       sync.Mutex
	cache    *cache
	slow     float64
	waiting  []*job
	prefill  *job // nil when none runs
	timer    *time.Timer
	decoding []*job // in order of admission
	batch    []*job // the jobs of the step that runs; Invariant: nil when none runs
	stats    counters
}

func newScheduler(cfg *Config, publish func([]kvEvent)) *scheduler {
	return &scheduler{cfg: cfg, publish: publish, cache: newCache(cfg), slow: 1}
}

// begin tells that the cache is empty, as SGLang does when it starts, before any request.
func (s *scheduler) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.emitCleared()
	s.flush()
}

// flush publishes what happened to the cache since the last time.
func (s *scheduler) flush() {
	if e := s.cache.takeEvents(); len(e) > 0 {
		s.publish(e)
	}
}

// submit queues the jobs in order.
func (s *scheduler) submit(jobs []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, j := range jobs {
		j.arrived = now
		s.stats.submitted(now)
		s.waiting = append(s.waiting, j)
	}
	s.startPrefill()
}

// abort ends those jobs that have not ended. A prefill stops at once and the next begins.
func (s *scheduler) abort(jobs []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range jobs {
		if j.state == jobEnded {
			continue
		}
		s.unqueue(j)
		s.end(j)
		s.stats.aborted(time.Now())
	}
	s.startPrefill()
}

// unqueue takes a job out of wherever it stands.
func (s *scheduler) unqueue(j *job) {
	switch j.state {
	case jobWaiting:
		s.waiting = without(s.waiting, j)
	case jobPrefilling:
		s.timer.Stop()
		s.prefill = nil
	case jobDecoding:
		s.decoding = without(s.decoding, j)
	case jobEnded: // it stands nowhere
	}
}

func without(jobs []*job, j *job) []*job {
	i := slices.Index(jobs, j)
	return slices.Delete(jobs, i, i+1)
}

// end frees what a job holds and counts it out.
func (s *scheduler) end(j *job) {
	s.cache.release(&j.seq)
	j.state = jobEnded
	s.stats.ended(time.Now())
}

func (s *scheduler) running() int {
	if s.prefill != nil {
		return len(s.decoding) + 1
	}
	return len(s.decoding)
}

// startPrefill admits the oldest waiting job when no prefill runs, a place is free and its blocks can be had. A job that
// does not fit keeps those behind it waiting, as in the real engines.
func (s *scheduler) startPrefill() {
	if s.prefill != nil || len(s.waiting) == 0 || s.running() >= s.cfg.MaxRunning {
		return
	}
	j := s.waiting[0]
	n := j.context()
	hit, ok := s.cache.admit(&j.seq, n, j.readsKV)
	if !ok {
		return
	}
	s.waiting = slices.Delete(s.waiting, 0, 1)
	cached, loaded := hit*s.cfg.BlockTokens, j.seq.loaded*s.cfg.BlockTokens
	if !j.admitted {
		j.admitted = true
		j.cached.Store(int32(cached))
		s.stats.admitted(j, cached, loaded)
	}
	j.state, s.prefill = jobPrefilling, j
	took := prefillTime(s.cfg.PrefillRate, n, n-cached, len(s.decoding)) + loadTime(s.cfg.PrefillRate, loaded)
	s.timer = time.AfterFunc(s.scale(took), func() { s.prefilled(j) })
}

// loadTime is the time to load tokens from CPU memory.
func loadTime(rate float64, tokens int) time.Duration {
	return time.Duration(float64(tokens) / (rate * loadSpeed) * float64(time.Second))
}

// prefillTime is the time to compute the last fresh tokens of a context.
func prefillTime(rate float64, context, fresh, decoding int) time.Duration {
	seconds := float64(fresh) / rate
	seconds *= 1 + (float64(context)-float64(fresh)/2)/prefillContext
	seconds *= 1 + prefillDecoding*float64(decoding)
	return prefillBase + time.Duration(seconds*float64(time.Second))
}

// stepTime is the time of one token for each of n decoding jobs.
func stepTime(n int, prefillWaits bool) time.Duration {
	d := decodeBase + time.Duration(n)*decodeEach
	if prefillWaits {
		d = time.Duration(float64(d) * decodeWaiting)
	}
	return d
}

func (s *scheduler) scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) * s.slow / s.cfg.Speed)
}

// prefilled ends a prefill: its blocks can be used, and the first token of the answer exists.
func (s *scheduler) prefilled(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prefill != j {
		return // aborted while this timer fired
	}
	s.prefill = nil
	s.cache.commit(&j.seq, j.context())
	j.state = jobDecoding
	s.decoding = append(s.decoding, j)
	s.token(j)
	s.afterStep()
}

// token gives j its next token, and ends it with the last.
func (s *scheduler) token(j *job) {
	j.last = time.Since(j.arrived)
	if j.produced.Load() == 0 {
		j.first = j.last
		s.stats.firstToken(j.first)
	}
	s.stats.GenerationTokens++
	last := j.context()+1 == len(j.seq.tokens)
	if last {
		s.decoding = without(s.decoding, j)
		s.cacheAnswer(j)
		s.end(j)
	}
	j.produce() // last: whoever waits for the token sees the blocks free
}

// cacheAnswer stores the pages of an answer when it ends, where engines do that only then (SGLang, TensorRT-LLM). The
// last token was sampled but never computed, so it is in no block.
func (s *scheduler) cacheAnswer(j *job) {
	if s.cfg.Kind != KindVLLM {
		s.cache.commit(&j.seq, len(j.seq.tokens)-1)
	}
}

// step ends one decode step: every job of the batch that still decodes gets a token. The computed token may have filled
// a block, which vLLM stores at once; the next one may need a new block, and a job that finds none preempts another.
func (s *scheduler) step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := s.batch
	s.batch = nil
	for _, j := range batch {
		if j.state != jobDecoding || !s.makeRoom(j) {
			continue
		}
		if s.cfg.Kind == KindVLLM {
			s.cache.commit(&j.seq, j.context())
		}
		s.token(j)
	}
	s.afterStep()
}

// makeRoom finds a block for the next token of j, if needed by preempting the youngest job; false when that is j.
func (s *scheduler) makeRoom(j *job) bool {
	for !s.cache.extend(&j.seq, j.context()) {
		victim := s.decoding[len(s.decoding)-1]
		s.preempt(victim)
		if victim == j {
			return false
		}
	}
	return true
}

// preempt frees a job's blocks and puts it first in the queue: it computes its prompt and answer so far once more.
func (s *scheduler) preempt(j *job) {
	s.decoding = without(s.decoding, j)
	s.cache.release(&j.seq)
	j.state = jobWaiting
	s.waiting = slices.Insert(s.waiting, 0, j)
	s.stats.Preemptions++
}

// afterStep publishes what the step did to the cache and starts what can start.
func (s *scheduler) afterStep() {
	s.flush()
	s.startPrefill()
	s.startStep()
}

// startStep begins a decode step for the jobs that decode now; those that join later wait for the next step.
func (s *scheduler) startStep() {
	if s.batch != nil || len(s.decoding) == 0 {
		return
	}
	s.batch = slices.Clone(s.decoding)
	waits := s.prefill != nil || len(s.waiting) > 0
	time.AfterFunc(s.scale(stepTime(len(s.batch), waits)), s.step)
}

// setSlow changes the pace from the next prefill and step on; 0 means 1.
func (s *scheduler) setSlow(factor float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if factor == 0 {
		factor = 1
	}
	s.slow = factor
}

// clearCache forgets all blocks, those of the host tier only when host is set; false while requests hold some. vLLM's event leaves with the next step, since its idle
// engine publishes nothing; SGLang's leaves at once.
func (s *scheduler) clearCache(host bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.cache.clear(host)
	if s.cfg.Kind == KindSGLang {
		s.flush()
	}
	return ok
}
