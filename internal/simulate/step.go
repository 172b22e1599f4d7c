package simulate

// The engine that works in steps, each for prefill and decode together, so that prefill stalls decodes and a large batch
// slows every token. ROUTING.md D0 is its source: the mock of another project's benchmark.
const (
	stepTokens   = 2048    // most tokens prefilled in a step
	stepRate     = 8000.0  // tokens/s of prefill
	stepFixed    = 0.006   // seconds of a step that does nothing else
	stepRunning  = 0.00035 // what one decoding request adds
	stepRequests = 256     // most requests that run at once
	stepHigh     = 0.92    // share of the cache in use above which it is emptied ...
	stepLow      = 0.85    // ... to this
)

// stepped is one engine of that kind. The blocks of its answers stay in the cache.
type stepped struct {
	host  *node
	cache *cache
	speed float64 // divides all times

	queue   []*request
	active  []*request // in the order of admission; those with tokens left are in prefill
	pending bool       // a step runs
	life    int32
}

func (s *stepped) submit(r *request) {
	s.queue = append(s.queue, r)
	if !s.pending {
		s.begin()
	}
}

// begin admits what fits and begins a step, when there is anything to do.
func (s *stepped) begin() {
	s.admit()
	if len(s.active) == 0 {
		return
	}
	budget, decoding := stepTokens, 0
	for _, r := range s.active {
		if r.began {
			decoding++
			continue
		}
		n := min(r.left, budget)
		r.left -= n
		budget -= n
	}
	prefill := float64(stepTokens-budget) / stepRate
	seconds := max(prefill, stepFixed+stepRunning*float64(decoding)) / s.speed
	s.pending = true
	s.host.w.after(seconds, event{kind: onStep, a: int32(s.host.index), c: s.life})
}

func (s *stepped) admit() {
	capacity := float64(s.cache.capacity)
	for len(s.queue) > 0 && len(s.active) < stepRequests {
		r := s.queue[0]
		r.hits = s.cache.match(r.chain)
		if !s.cache.start(r.chain, r.hits, len(r.chain)-r.hits+len(r.answer)) {
			if len(s.active) > 0 {
				return // one that ends makes room
			}
			r.uncached()
		}
		if float64(s.cache.used()) > stepHigh*capacity {
			s.cache.shrink(int(stepLow * capacity))
		}
		r.left = r.input - r.cached(s.host.w.blockTokens)
		s.queue = s.queue[1:]
		s.active = append(s.active, r)
		s.host.started(r)
	}
}

// stepped ends the step under way.
func (s *stepped) stepped(life int32) {
	if life != s.life {
		return
	}
	keep, ended := s.active[:0], []*request(nil)
	for _, r := range s.active {
		if s.token(r) {
			ended = append(ended, r)
		} else {
			keep = append(keep, r)
		}
	}
	clear(s.active[len(keep):])
	s.active = keep
	for _, r := range ended {
		s.finish(r)
	}
	s.pending = false // not before: what the host hands over meanwhile waits for the next step
	s.begin()
}

// token gives r what the step made for it and reports whether that was its last.
func (s *stepped) token(r *request) bool {
	switch {
	case r.began:
		r.made++
	case r.left == 0:
		r.copies = s.cache.store(r.chain[r.hits:])
		r.made = 1
		s.host.first(r)
	default:
		return false
	}
	return r.made >= r.output
}

func (s *stepped) finish(r *request) {
	r.copies += s.cache.store(r.answer)
	s.cache.reserved -= r.copies
	s.cache.release(r.answer)
	s.cache.release(r.chain)
	s.host.done(r)
}

func (s *stepped) abort() []*request {
	lost := append(s.queue, s.active...)
	s.queue, s.active, s.pending = nil, nil, false
	s.life++
	return lost
}

func (s *stepped) waiting() int  { return len(s.queue) }
func (s *stepped) working() bool { return len(s.active) > 0 }
