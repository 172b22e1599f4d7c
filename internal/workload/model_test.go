package workload

import (
	"container/heap"
	"container/list"
	"hash/maphash"
	"slices"
	"time"
)

// This file is a small discrete-event model of engines, enough to say what a workload can gain: FIFO prefill, one prompt
// at a time, an LRU cache of 16-token blocks usable after their prefill, decoding at 21 ms a token that disturbs nobody.

const (
	modelBytesPerToken = 3.35 // what the tokenizer of internal/simengine makes of this package's text
	modelBlockTokens   = 16
	modelBlockBytes    = 54 // modelBlockTokens × modelBytesPerToken, rounded
)

type blockHash uint64

// modelCache is an LRU set of blocks.
type modelCache struct {
	capacity int // blocks; 0 for no bound
	order    *list.List
	at       map[blockHash]*list.Element
}

func newModelCache(tokens int) *modelCache {
	return &modelCache{capacity: tokens / modelBlockTokens, order: list.New(), at: map[blockHash]*list.Element{}}
}

func (c *modelCache) overlap(chain []blockHash) int {
	for i, h := range chain {
		if c.at[h] == nil {
			return i
		}
	}
	return len(chain)
}

// store puts the chain's blocks to the front, its beginning foremost, and evicts from the back.
func (c *modelCache) store(chain []blockHash) {
	for _, h := range slices.Backward(chain) {
		if e := c.at[h]; e != nil {
			c.order.MoveToFront(e)
			continue
		}
		c.at[h] = c.order.PushFront(h)
	}
	for c.capacity > 0 && c.order.Len() > c.capacity {
		delete(c.at, c.order.Remove(c.order.Back()).(blockHash))
	}
}

type modelEngine struct {
	cache    *modelCache
	queue    []*modelJob
	busy     bool
	inFlight int
}

type modelJob struct {
	session *Session
	turn    int
	answers []string
	arrived time.Duration
	chain   []blockHash
	tokens  int
	engine  *modelEngine
}

type modelEvent struct {
	at time.Duration
	do func()
}

type modelEvents []modelEvent

func (e modelEvents) Len() int           { return len(e) }
func (e modelEvents) Less(i, j int) bool { return e[i].at < e[j].at }
func (e modelEvents) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *modelEvents) Push(x any)        { *e = append(*e, x.(modelEvent)) }
func (e *modelEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

type model struct {
	w       *Workload
	seed    maphash.Seed
	engines []*modelEngine
	pick    func(*model, *modelJob) *modelEngine
	events  modelEvents
	now     time.Duration
	picked  int
	bytes   int
	longest int

	tokens, cached int
	ttft           []time.Duration
}

func simulate(w *Workload, engines, kvTokens int, pick func(*model, *modelJob) *modelEngine) *model {
	m := &model{w: w, seed: maphash.MakeSeed(), pick: pick}
	for range engines {
		m.engines = append(m.engines, &modelEngine{cache: newModelCache(kvTokens)})
	}
	for i := range w.Sessions {
		s := &w.Sessions[i]
		m.schedule(s.Start, func() { m.arrive(&modelJob{session: s}) })
	}
	for len(m.events) > 0 {
		e := heap.Pop(&m.events).(modelEvent)
		m.now = e.at
		e.do()
	}
	return m
}

func (m *model) schedule(at time.Duration, do func()) { heap.Push(&m.events, modelEvent{at, do}) }

func (m *model) arrive(j *modelJob) {
	j.arrived = m.now
	j.chain, j.tokens = m.chainOf(j)
	j.engine = m.pick(m, j)
	j.engine.inFlight++
	j.engine.queue = append(j.engine.queue, j)
	if !j.engine.busy {
		m.prefill(j.engine)
	}
}

func (m *model) chainOf(j *modelJob) ([]blockHash, int) {
	var text []byte
	for _, msg := range m.w.messages(j.session, j.turn, j.answers) {
		text = append(append(text, msg.Role...), msg.Content...)
	}
	m.bytes += len(text)
	m.longest = max(m.longest, len(text))
	var h maphash.Hash
	h.SetSeed(m.seed)
	var chain []blockHash
	for i := 0; i+modelBlockBytes <= len(text); i += modelBlockBytes {
		h.Write(text[i : i+modelBlockBytes])
		chain = append(chain, blockHash(h.Sum64()))
	}
	return chain, int(float64(len(text)) / modelBytesPerToken)
}

func (m *model) prefill(e *modelEngine) {
	j := e.queue[0]
	e.queue = e.queue[1:]
	e.busy = true
	cached := min(e.cache.overlap(j.chain)*modelBlockTokens, j.tokens-1)
	m.tokens += j.tokens
	m.cached += cached
	fresh := float64(j.tokens - cached)
	seconds := 0.015 + fresh/16000*(1+(float64(j.tokens)-fresh/2)/65536)
	m.schedule(m.now+time.Duration(seconds*1e9), func() { m.firstToken(j) })
}

func (m *model) firstToken(j *modelJob) {
	m.ttft = append(m.ttft, m.now-j.arrived)
	j.engine.cache.store(j.chain)
	j.engine.busy = false
	if len(j.engine.queue) > 0 {
		m.prefill(j.engine)
	}
	tokens := j.session.Turns[j.turn].MaxTokens
	m.schedule(m.now+time.Duration(tokens)*21*time.Millisecond, func() { m.answered(j, tokens) })
}

func (m *model) answered(j *modelJob, tokens int) {
	j.engine.inFlight--
	next := j.turn + 1
	if next == len(j.session.Turns) {
		return
	}
	answer := string(m.w.Text.Append(nil, uint64(j.turn), tokens*BytesPerToken))
	job := &modelJob{session: j.session, turn: next, answers: append(slices.Clip(j.answers), answer)}
	m.schedule(m.now+j.session.Turns[next].Think, func() { m.arrive(job) })
}

// reuse is the share of prompt tokens that came from cache.
func (m *model) reuse() float64 { return float64(m.cached) / float64(m.tokens) }

func inTurn(m *model, _ *modelJob) *modelEngine {
	m.picked++
	return m.engines[m.picked%len(m.engines)]
}

// byOverlap is queued + 3 × new, and 800 tokens (50 ms) for each request in flight.
func byOverlap(m *model, j *modelJob) *modelEngine {
	fresh := func(e *modelEngine, j *modelJob) int {
		return j.tokens - e.cache.overlap(j.chain)*modelBlockTokens
	}
	score := func(e *modelEngine) int {
		queued := 0
		for _, q := range e.queue {
			queued += fresh(e, q)
		}
		return queued + 3*fresh(e, j) + 800*e.inFlight
	}
	best := m.engines[0]
	for _, e := range m.engines[1:] {
		if score(e) < score(best) {
			best = e
		}
	}
	return best
}
