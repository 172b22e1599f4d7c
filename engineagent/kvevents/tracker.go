package kvevents

// verdict says what is to be done with a batch.
type verdict uint8

const (
	apply     verdict = iota
	repeated          // it was applied already
	late              // it was given up, and others after it were applied
	early             // batches before it are missing
	restarted         // it is of another process: numbers began again
)

const (
	// remembered is how many batches back a repetition is known as one. More than a replay brings that the connection
	// then brings again: engines keep 10,000 batches.
	remembered = 1 << 14
	// lateBatches is how far back a batch that was given up may still come. More would take the batches of another
	// process for such.
	lateBatches = 256
)

// tracker judges the numbers of one publisher's batches, which begin at 0 in every process and grow by one. It knows
// batches by a hash of their payload, since a number alone does not tell a repetition from a restart. It is pure: no
// clock, no I/O.
type tracker struct {
	next  uint64 // number of the batch that is wanted
	begun bool   // a batch of this process was taken; the last one is next − 1
	doubt bool   // the connection is another one since, and so may the process be

	// hashes are those of the payloads of the last numbers before next; givenUp for batches that were not seen.
	hashes [remembered]uint64
}

// givenUp stands for the hash of a batch that never came.
const givenUp = 0

func markOf(hash uint64) uint64 { return max(hash, 1) }

// judge says what a batch is.
func (t *tracker) judge(seq, hash uint64) verdict {
	switch {
	case seq == t.next:
		return apply
	case seq < t.next && t.same(seq, hash):
		return repeated
	case t.doubt:
		return restarted
	case seq > t.next:
		return early
	case seq > 0 && t.knows(seq) && t.hashes[seq%remembered] == givenUp && t.next-seq <= lateBatches:
		return late
	}
	return restarted
}

// knows reports whether hashes has an entry for seq.
func (t *tracker) knows(seq uint64) bool {
	return seq < t.next && t.next-seq <= remembered
}

// same reports whether this very batch was taken.
func (t *tracker) same(seq, hash uint64) bool {
	return t.knows(seq) && t.hashes[seq%remembered] == markOf(hash)
}

// last returns the number of the last batch, once one was taken.
func (t *tracker) last() (seq uint64, ok bool) { return t.next - 1, t.begun }

// took notes that the wanted batch was taken. Where the process was in doubt, its number is all that speaks for it.
func (t *tracker) took(hash uint64) {
	t.hashes[t.next%remembered] = markOf(hash)
	t.next++
	t.begun, t.doubt = true, false
}

// skip gives up the batches before seq.
func (t *tracker) skip(seq uint64) {
	from := t.next
	if seq-from > remembered {
		from = seq - remembered
	}
	for ; from < seq; from++ {
		t.hashes[from%remembered] = givenUp
	}
	t.next = seq
}

// suspect says that the connection is another one.
func (t *tracker) suspect() { t.doubt = t.begun }

// trust says that the process is proved to be the same.
func (t *tracker) trust() { t.doubt = false }

// reset expects a new process.
func (t *tracker) reset() { t.next, t.begun, t.doubt = 0, false, false }
