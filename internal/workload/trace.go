package workload

import (
	"cmp"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// Trace is recorded traffic: when requests came, how long they were, and which prefix blocks they shared. It has no
// text and no answers.
type Trace struct {
	BlockTokens int            // tokens in one block; 0 when the trace has no blocks
	Requests    []TraceRequest // Invariant: in order of At.
}

// TraceRequest is one request of a Trace.
type TraceRequest struct {
	At           time.Duration // since the trace's start
	InputTokens  int
	OutputTokens int
	// Blocks are the ids of the prompt's blocks from its start, the last one perhaps partly filled. An id stands for
	// everything before it too: two prompts with a common id are equal up to that block's end.
	Blocks []BlockRun
}

// BlockRun is Count block ids in a row, from First upwards: traces number blocks as they first appear, so runs are short
// to write down.
type BlockRun struct {
	First uint64
	Count int
}

// BlockIDs yields the ids of r's blocks in order.
func (r *TraceRequest) BlockIDs() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for _, run := range r.Blocks {
			for i := range run.Count {
				if !yield(run.First + uint64(i)) {
					return
				}
			}
		}
	}
}

// Jitter moves every request later by a uniform random time below quantum and restores the order. It undoes the
// rounding of a trace whose clock ticks once a quantum; without it requests come in bursts that never happened.
func (t *Trace) Jitter(quantum time.Duration, rng *rand.Rand) {
	if quantum <= 0 {
		return
	}
	for i := range t.Requests {
		t.Requests[i].At += time.Duration(rng.Int64N(int64(quantum)))
	}
	slices.SortStableFunc(t.Requests, func(a, b TraceRequest) int { return cmp.Compare(a.At, b.At) })
}

// IdealReuse is the share of input tokens that a cache without bounds, shared by all engines, would hold already.
func (t *Trace) IdealReuse() float64 {
	seen := map[uint64]bool{}
	var held, total int
	for i := range t.Requests {
		r := &t.Requests[i]
		held += min(r.leading(seen)*t.BlockTokens, r.InputTokens)
		total += r.InputTokens
	}
	if total == 0 {
		return 0
	}
	return float64(held) / float64(total)
}

// leading counts r's blocks from the start that are in seen, and puts all of them there.
func (r *TraceRequest) leading(seen map[uint64]bool) int {
	n, broken := 0, false
	for id := range r.BlockIDs() {
		broken = broken || !seen[id]
		if !broken {
			n++
		}
		seen[id] = true
	}
	return n
}

// appendID adds one id to runs.
func appendID(runs []BlockRun, id uint64) []BlockRun {
	if n := len(runs); n > 0 && runs[n-1].First+uint64(runs[n-1].Count) == id {
		runs[n-1].Count++
		return runs
	}
	return append(runs, BlockRun{First: id, Count: 1})
}
