package engineagent

// answer is what became of one question to the engine, or of one connection for a request.
type answer uint8

const (
	answerGood    answer = iota
	answerFailed         // too late, or an error that says nothing about the process
	answerGone           // connection reset, or 503: it is not serving, but may be the same process
	answerRefused        // nobody listens: the process is gone, or too busy to accept
)

// maxFailed is how many polls in a row may fail before a silent engine is down. One or two are lost to a collection
// of garbage or to a burst that fills the engine's event loop; each further one sends requests to an engine that hangs.
const maxFailed = 3

// hungFailed is how many polls in a row may fail, with no content in between, before the requests on the engine are given
// up, some twenty seconds in all: others can still serve those without content. Sooner would throw away the prefill of a
// long prompt on an engine that is only slow to answer.
const hungFailed = 3 * maxFailed

// hung reports whether the requests on the engine are to be given up.
func (l *life) hung() bool { return l.failed >= hungFailed }

// life follows an engine through its lives: whether it is up, and whether it is still the process it was.
type life struct {
	up    bool
	begun bool // it has been up once
	died  bool // it refused a connection since it was last up
	doubt bool // it was away and came back, and may have restarted

	failed   int                // polls in a row, with no content in between
	started  float64            // start time of its process; 0 when it does not say
	counters map[string]float64 // at the last reading
}

// hear takes one answer and returns whether a new life of the cache has begun.
func (l *life) hear(a answer) (restarted bool) {
	switch a {
	case answerGood:
		return l.answered()
	case answerFailed:
		l.failed++
		if l.failed >= maxFailed {
			l.up = false
		}
	case answerGone:
		l.up = false
	case answerRefused:
		l.up, l.died = false, true
	}
	return false
}

// content says that a request received content. An engine that sends content and misses polls is busy, not dead; one
// that has streams open and sends nothing may be.
func (l *life) content() { l.failed = 0 }

// answered brings the engine up. Whether it is another process is left to the next reading, since a cache that is
// forgotten without need costs every prompt in it. A refused connection decides alone where no reading can: a full
// accept queue refuses too, but an ended process is more likely.
func (l *life) answered() (restarted bool) {
	l.failed = 0
	if l.up {
		return false
	}
	l.up = true
	if !l.begun {
		l.begun, l.died = true, false
		return false
	}
	if l.died && !l.identified() {
		l.begin()
		return true
	}
	l.died, l.doubt = false, true
	return false
}

// identified reports whether the last reading had anything by which the process can be known again.
func (l *life) identified() bool {
	if l.started > 0 {
		return true
	}
	for _, was := range l.counters {
		if was > 0 {
			return true
		}
	}
	return false
}

// read takes a reading and returns whether it shows another process than the last one did. In doubt, the process is
// the same one only when the start time or a counter proves it.
func (l *life) read(r *reading) (restarted bool) {
	known := l.started > 0 && r.started > 0
	changed := known && l.started != r.started
	restarted = changed || l.regressed(r) || (l.doubt && !known && !l.continued(r))
	l.doubt = false
	l.started, l.counters = r.started, r.counters
	return restarted
}

// unread says that no reading can ever be had of this process. An engine in doubt that shows no identity counts as restarted.
func (l *life) unread() (restarted bool) {
	if !l.doubt {
		return false
	}
	l.begin()
	return true
}

// begin forgets what identified the last process.
func (l *life) begin() { l.died, l.doubt, l.started, l.counters = false, false, 0, nil }

func (l *life) regressed(r *reading) bool {
	for name, was := range l.counters {
		if is, ok := r.counters[name]; ok && is < was {
			return true
		}
	}
	return false
}

// grown reports whether a counter has grown since the last reading.
func (l *life) grown(r *reading) bool {
	for name, is := range r.counters {
		if was, ok := l.counters[name]; ok && is > was {
			return true
		}
	}
	return false
}

// continued reports whether a counter went on from where it was: one of a new process begins at 0.
func (l *life) continued(r *reading) bool {
	for name, was := range l.counters {
		if was > 0 && r.counters[name] >= was {
			return true
		}
	}
	return false
}
