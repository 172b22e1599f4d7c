package kvevents

// verdict says what is to be done with a batch.
type verdict uint8

const (
	apply     verdict = iota
	repeated          // it was applied already
	early             // batches before it are missing
	restarted         // it is of another process: numbers began again
)

// remembered is how many batches back a repetition is known as one.
const remembered = 1024

// tracker judges the numbers of one publisher's batches, which begin at 0 in every process and grow by one. It knows
// batches by a hash of their payload, since a number alone does not tell a repetition from a restart.
type tracker struct {
	next   uint64 // number of the batch that is wanted
	hashes [remembered]uint64
	oldest uint64 // the first number whose hash is known
}

// reset expects a new process from a number on.
func (t *tracker) reset(next uint64) { t.next, t.oldest = next, next }

// judge says what a batch is.
func (t *tracker) judge(seq, hash uint64) verdict {
	switch {
	case seq == t.next:
		return apply
	case seq > t.next:
		return early
	case t.knows(seq, hash):
		return repeated
	}
	return restarted
}

// knows reports whether this very batch was applied.
func (t *tracker) knows(seq, hash uint64) bool {
	return seq < t.next && seq >= t.oldest && t.next-seq <= remembered && t.hashes[seq%remembered] == hash
}

// applied notes that the wanted batch was applied.
func (t *tracker) applied(hash uint64) {
	t.hashes[t.next%remembered] = hash
	t.next++
}

// skip gives up the batches before seq.
func (t *tracker) skip(seq uint64) { t.reset(seq) }
