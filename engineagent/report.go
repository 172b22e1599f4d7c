package engineagent

// report is the load that the engine itself tells, beyond what was booked here: clients that do not come through the
// mesh.
type report struct {
	running, waiting int     // foreign requests. Invariant: >= 0
	queued           int     // all requests that the engine lets wait, ours too
	tokens           int     // uncached prompt tokens of foreign requests that wait; 0 when the engine does not say
	kvUsage          float64 // 0 to 1; 0 when unknown
	missed           int     // readings missed in a row
}

// maxMissed is how many readings in a row may be missed before the last KV usage counts as unknown. A usage that is
// kept for ever can hold an engine full for ever.
const maxMissed = 3

// read takes a reading. own and ownWaiting are the bookings that the engine may have counted in it: those that were
// open when it was asked, and those accepted until it answered.
func (p *report) read(r *reading, own, ownWaiting int) {
	p.missed = 0
	p.queued, p.kvUsage = r.waiting, r.kvUsage
	foreign := max(r.running+r.waiting-own, 0)
	p.waiting = min(max(r.waiting-ownWaiting, 0), foreign)
	p.running = foreign - p.waiting
}

// readTokens takes the size of what waits, after read. own are the new tokens of the bookings that may be in it.
func (p *report) readTokens(r *reading, own int64) {
	p.tokens = 0
	if p.waiting > 0 {
		p.tokens = int(max(int64(r.waitingTokens)-own, 0))
	}
}

// miss halves what is believed of foreign requests: they end some time, and nobody would say so.
func (p *report) miss() {
	p.missed++
	p.running /= 2
	p.waiting /= 2
	p.tokens /= 2
	if p.missed > maxMissed {
		p.queued, p.kvUsage = 0, 0
	}
}

func (p *report) inFlight() int { return p.running + p.waiting }
