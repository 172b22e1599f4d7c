package book

// Reading is what an engine says of its load at one moment. Fields that it does not say are zero.
type Reading struct {
	Running, Waiting int     // requests, ours too
	WaitingTokens    int     // uncached prompt tokens of those that wait
	KVUsage          float64 // 0 to 1
}

// Mark is how much was with the engine at the moment at which it is asked for its load.
type Mark struct {
	open, waiting int
	ever          uint64
}

// Mark is to be taken before the engine is asked for the Reading that is given to Read.
func (b *Book) Mark() Mark { return Mark{b.ledger.atEngine(), b.ledger.unanswered(), b.ledger.handed} }

// Read takes a reading. asked is the Mark of when the engine was asked: what was with the engine then, and what was
// handed to it since, may be in the reading. The rest of it came from clients that do not go through the mesh.
func (b *Book) Read(r Reading, asked Mark) {
	since := int(b.ledger.handed - asked.ever)
	b.foreign.read(r, asked.open+since, asked.waiting+since)
	b.foreign.readTokens(r, b.ledger.atWork)
}

// Missed says that a reading was due and did not come.
func (b *Book) Missed() { b.foreign.miss() }

// ForgetReadings forgets what the engine said: it is another process.
func (b *Book) ForgetReadings() { b.foreign = foreign{} }

// Foreign returns how many requests the engine has that were not booked here.
func (b *Book) Foreign() int { return b.foreign.inFlight() }

// foreign is the load that the engine itself tells, beyond what was booked here: clients that do not come through the
// mesh.
type foreign struct {
	running, waiting int     // foreign requests. Invariant: >= 0
	queued           int     // all requests that the engine lets wait, ours too
	tokens           int     // uncached prompt tokens of foreign requests that wait; 0 when the engine does not say
	kvUsage          float64 // 0 to 1; 0 when unknown
	missed           int     // readings missed in a row
}

// maxMissed is how many readings in a row may be missed before the last KV usage counts as unknown. A usage that is
// kept for ever can hold an engine full for ever.
const maxMissed = 3

// read takes a reading. own and ownWaiting are the bookings that the engine may have counted in it.
func (f *foreign) read(r Reading, own, ownWaiting int) {
	f.missed = 0
	f.queued, f.kvUsage = r.Waiting, r.KVUsage
	others := max(r.Running+r.Waiting-own, 0)
	f.waiting = min(max(r.Waiting-ownWaiting, 0), others)
	f.running = others - f.waiting
}

// readTokens takes the size of what waits, after read. own are the new tokens of the bookings that may be in it.
func (f *foreign) readTokens(r Reading, own int64) {
	f.tokens = 0
	if f.waiting > 0 {
		f.tokens = int(max(int64(r.WaitingTokens)-own, 0))
	}
}

// miss halves what is believed of foreign requests: they end some time, and nobody would say so.
func (f *foreign) miss() {
	f.missed++
	f.running /= 2
	f.waiting /= 2
	f.tokens /= 2
	if f.missed > maxMissed {
		f.queued, f.kvUsage = 0, 0
	}
}

func (f *foreign) inFlight() int { return f.running + f.waiting }
