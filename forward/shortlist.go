package forward

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Shortlist picks the candidates of a decision among all engines of the model: up to Rule.ByOverlap with the most
// overlap (at least half of the best, and above the median), Rule.ByChance at random, and the agent's own. It never takes the minimum over all: with
// many agents that herds even with a perfect index. Of a question with a pin they are the first in its order. The result
// is a fresh slice; all is put in order of ID, unless it is, so that only rng decides what chance does.
func Shortlist(q *Question, all []Candidate, rng *rand.Rand) []Candidate {
	byID := func(a, b Candidate) int { return cmp.Compare(a.ID, b.ID) }
	if !slices.IsSortedFunc(all, byID) {
		slices.SortFunc(all, byID)
	}
	var room [1024]int32 // a larger mesh has its list on the heap
	eligible := room[:0]
	for i := range all {
		if all[i].Eligible() {
			eligible = append(eligible, int32(i))
		}
	}
	if q.Pin != 0 {
		return q.shortlistPinned(all, eligible)
	}
	d := draw{all: all, rest: eligible, rng: rng, short: make([]Candidate, 0, q.Rule.ByOverlap+q.Rule.ByChance+2)}
	if q.Locality {
		d.byOverlap(q.Rule.ByOverlap)
	}
	d.byChance(q.Rule.ByChance)
	for _, i := range d.rest {
		if all[i].State == Own {
			d.take(i)
		}
	}
	return d.short
}

// draw moves candidates onto a short list.
type draw struct {
	all   []Candidate
	rest  []int32 // eligible, not taken yet
	rng   *rand.Rand
	short []Candidate
}

func (d *draw) take(i int32) { d.short = append(d.short, d.all[i]) }

// byOverlap takes up to n for their overlap. Of those that hold as much as the last one taken, chance decides: many engines
// hold the same system text.
func (d *draw) byOverlap(n int) {
	least := d.leastOverlap(n)
	if least == 0 {
		return
	}
	// Those with more go to the front, those with as much behind them.
	more, equal := 0, 0
	for j, i := range d.rest {
		switch o := d.all[i].Overlap; {
		case o > least:
			d.rest[j], d.rest[more+equal] = d.rest[more+equal], d.rest[j]
			d.rest[more], d.rest[more+equal] = d.rest[more+equal], d.rest[more]
			more++
		case o == least:
			d.rest[j], d.rest[more+equal] = d.rest[more+equal], d.rest[j]
			equal++
		}
	}
	n = min(n, more+equal)
	d.shuffle(more, n, more+equal)
	for _, i := range d.rest[:n] {
		d.take(i)
		d.short[len(d.short)-1].ForOverlap = true
	}
	d.rest = d.rest[n:]
}

// leastOverlap returns the n-th largest overlap, or the least above it that is worth being taken for: half of the best, and
// above the median where there are more than two. It is 0 when none is.
func (d *draw) leastOverlap(n int) float64 {
	top := make([]float64, n) // in falling order
	for _, i := range d.rest {
		if o := d.all[i].Overlap; n > 0 && o > top[n-1] {
			j := n - 1
			for ; j > 0 && top[j-1] < o; j-- {
				top[j] = top[j-1]
			}
			top[j] = o
		}
	}
	for _, o := range slices.Backward(top) {
		if o > 0 && o >= top[0]/2 && (len(d.rest) <= 2 || d.aboveMedian(o)) {
			return o
		}
	}
	return 0
}

// aboveMedian reports whether more than half of the overlaps are below o.
func (d *draw) aboveMedian(o float64) bool {
	below := 0
	for _, i := range d.rest {
		if d.all[i].Overlap < o {
			below++
		}
	}
	return below > (len(d.rest)-1)/2
}

// byChance takes up to n of the rest at random.
func (d *draw) byChance(n int) {
	n = min(n, len(d.rest))
	d.shuffle(0, n, len(d.rest))
	for _, i := range d.rest[:n] {
		d.take(i)
	}
	d.rest = d.rest[n:]
}

// shuffle fills the places from until to of the rest with a random choice of those from until end.
func (d *draw) shuffle(from, to, end int) {
	for j := from; j < to; j++ {
		k := j + d.rng.IntN(end-j)
		d.rest[j], d.rest[k] = d.rest[k], d.rest[j]
	}
}
