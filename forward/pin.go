package forward

import (
	"cmp"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Pin is what the strategies go by that hash: a session, or the beginning of a prompt. 0 is none.
type Pin uint64

// pinOf returns the pin of a session's name.
func pinOf(session string) Pin { return Pin(max(xxhash.Sum64String(session), 1)) }

// The bound on the load of an engine that is chosen by hash, as in consistent hashing with bounded loads (Mirrokni, Thorup,
// Zadimoghaddam): so many times the mean, at least so many requests above it. Without the second a mesh that is nearly idle
// would spread every session.
const (
	pinBound = 1.25
	pinFloor = 4
)

// pinned is the length of a short list by hash: what may have to be passed over because it is silent or has failed.
const pinned = 8

// within reports whether one more request keeps c within the bound. There is always an engine of which that is true: one
// below the mean.
func (q *Question) within(c *Candidate) bool {
	return float64(c.Load.InFlight)+1 <= max(pinBound*q.Learned.InFlight, q.Learned.InFlight+pinFloor)
}

// pinOrder is the place of an engine among those of a question with a pin; the least is first.
type pinOrder struct {
	excess int    // requests in flight when they are above the bound
	hash   uint64 // rendezvous hashing (Thaler, Ravishankar): an engine that comes or goes moves only its own sessions
}

func (q *Question) orderOf(c *Candidate) pinOrder {
	o := pinOrder{hash: rendezvous(q.Pin, c.ID)}
	if !q.within(c) {
		o.excess = c.Load.InFlight
	}
	return o
}

func compareOrders(a, b pinOrder) int {
	return cmp.Or(cmp.Compare(a.excess, b.excess), cmp.Compare(a.hash, b.hash))
}

// rendezvous mixes a pin and an engine's name; the last steps are those of splitmix64 (Steele, Lea, Flood).
func rendezvous(p Pin, id engine.ID) uint64 {
	const first, second = 0xbf58476d1ce4e5b9, 0x94d049bb133111eb
	h := xxhash.Sum64String(string(id)) ^ uint64(p)
	h = (h ^ h>>30) * first
	h = (h ^ h>>27) * second
	return h ^ h>>31
}

// shortlistPinned returns the first of the eligible in the order of the pin.
func (q *Question) shortlistPinned(all []Candidate, eligible []int32) []Candidate {
	type place struct {
		pinOrder
		i int32
	}
	first := make([]place, 0, pinned+1)
	for _, i := range eligible {
		p := place{q.orderOf(&all[i]), i}
		at, _ := slices.BinarySearchFunc(first, p, func(a, b place) int { return compareOrders(a.pinOrder, b.pinOrder) })
		first = slices.Insert(first, at, p)
		first = first[:min(len(first), pinned)]
	}
	short := make([]Candidate, len(first))
	for j, p := range first {
		short[j] = all[p.i]
	}
	return short
}

// rankPinned puts candidates in the order of the pin, by the loads that they answered. Suspects that did not answer are behind
// the others: who hashes does not know what trying them would save.
func (q *Question) rankPinned(ranked []Candidate) {
	silent := func(c *Candidate) byte { return flag(c.State == Suspect && !c.Probed) }
	slices.SortFunc(ranked, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(silent(&a), silent(&b)), compareOrders(q.orderOf(&a), q.orderOf(&b)))
	})
}
