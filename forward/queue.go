package forward

import (
	"cmp"
	"container/list"
	"slices"
)

// quantum is what each API key may spend in a round, in prompt tokens. More lets small requests of one key go in long runs,
// less costs more rounds until a long prompt's turn.
const quantum = 256

// leastCost is what the smallest request costs, since its answer takes an engine's time too.
const leastCost = 64

// agedTurns is how many turns there are to one for a priority that is not the highest that waits: a sixteenth of the turns
// keeps the others from waiting for ever, and costs the highest 6 %.
const agedTurns = 16

// queue holds the places of one model's requests that wait for a turn, in the order of their turns: those of a higher
// priority first, save one turn in agedTurns, which goes to the lower priority that has had none for longest. Within a
// priority, keys share the turns by deficit round robin in prompt tokens; of a key it is first in first out. The zero value
// is ready for use. It is not safe for concurrent use, and reads no clock.
type queue struct {
	bands []*band // of the priorities that wait, highest first
	n     int
	turns int
}

// band holds what waits with one priority.
type band struct {
	priority int
	n        int
	served   int // number of the last turn that it had
	flows    map[string]*flow
	round    list.List // of *flow: those that wait, in the order of their turns
}

// flow holds what waits of one key. Invariant: it is in its band, and waits, as long as it has places.
type flow struct {
	key     string
	deficit int64 // what it may spend, in tokens
	began   bool  // it has had its quantum in this round
	tokens  int64
	turns   int       // that it had since it began to wait
	places  list.List // of *place, by number
	item    *list.Element
}

// push adds a place behind the others of its key.
func (q *queue) push(p *place) {
	q.add(p)
}

// putBack gives a place that was taken its turn back: it is the next of its priority.
func (q *queue) putBack(p *place) {
	b, f := q.add(p)
	f.deficit += p.cost
	f.turns--
	f.began = true
	b.round.MoveToFront(f.item)
}

func (q *queue) add(p *place) (*band, *flow) {
	b := q.band(p.priority)
	f := b.flows[p.key]
	if f == nil {
		f = &flow{key: p.key}
		f.item = b.round.PushBack(f)
		b.flows[p.key] = f
	}
	f.insert(p)
	f.tokens += p.cost
	b.n++
	q.n++
	return b, f
}

// insert puts a place where its number says.
func (f *flow) insert(p *place) {
	last := f.places.Back()
	if last == nil || last.Value.(*place).number < p.number {
		p.item = f.places.PushBack(p)
		return
	}
	e := f.places.Front() // one that was taken is among the first
	for e.Value.(*place).number < p.number {
		e = e.Next()
	}
	p.item = f.places.InsertBefore(p, e)
}

// band returns the band of a priority, which it makes if there is none.
func (q *queue) band(priority int) *band {
	i, ok := q.find(priority)
	if !ok {
		q.bands = slices.Insert(q.bands, i, &band{priority: priority, served: q.turns, flows: map[string]*flow{}})
	}
	return q.bands[i]
}

func (q *queue) find(priority int) (i int, ok bool) {
	return slices.BinarySearchFunc(q.bands, priority, func(b *band, p int) int { return cmp.Compare(p, b.priority) })
}

// remove takes out a place that waits.
func (q *queue) remove(p *place) {
	i, _ := q.find(p.priority)
	b := q.bands[i]
	f := b.flows[p.key]
	f.places.Remove(p.item)
	p.item = nil
	f.tokens -= p.cost
	b.n--
	q.n--
	if f.places.Len() == 0 {
		b.round.Remove(f.item)
		delete(b.flows, f.key)
	}
	if b.n == 0 {
		q.bands = slices.Delete(q.bands, i, i+1)
	}
}

// refund gives a place's key back what its turn cost, because nothing came of it.
func (q *queue) refund(p *place) {
	if i, ok := q.find(p.priority); ok {
		if f := q.bands[i].flows[p.key]; f != nil {
			f.deficit += p.cost
		}
	}
}

// take takes out the place whose turn it is among those that may have one; nil when there is none.
func (q *queue) take(may func(*place) bool) *place {
	for _, b := range q.order() {
		if p := b.next(may); p != nil {
			q.turns++
			b.served = q.turns
			q.remove(p)
			return p
		}
	}
	return nil
}

// order returns the bands in the order in which the next turn is offered.
func (q *queue) order() []*band {
	if len(q.bands) < 2 || (q.turns+1)%agedTurns != 0 {
		return q.bands
	}
	aged := 1
	for i := range q.bands {
		if i > 0 && q.bands[i].served < q.bands[aged].served {
			aged = i
		}
	}
	return append([]*band{q.bands[aged]}, q.bands...)
}

// next finds the next place and has its key pay for it.
func (b *band) next(may func(*place) bool) *place {
	for vain := 0; ; {
		f := b.round.Front().Value.(*flow)
		p := f.first(may)
		if p != nil && !f.began {
			f.deficit += quantum
			f.began = true
		}
		if p != nil && f.deficit >= p.cost {
			f.deficit -= p.cost
			f.turns++
			return p
		}
		f.began = false
		b.round.MoveToBack(f.item)
		if vain++; vain == b.round.Len() {
			if !b.skipRounds(may) {
				return nil
			}
			vain = 0
		}
	}
}

// skipRounds gives every key at once what it would get in the rounds that bring none of them a turn. It returns false when
// no place may have a turn.
func (b *band) skipRounds(may func(*place) bool) bool {
	rounds := int64(-1)
	for e := b.round.Front(); e != nil; e = e.Next() {
		f := e.Value.(*flow)
		if p := f.first(may); p != nil {
			if need := (p.cost - f.deficit + quantum - 1) / quantum; rounds < 0 || need < rounds {
				rounds = need
			}
		}
	}
	for e := b.round.Front(); e != nil && rounds > 1; e = e.Next() {
		f := e.Value.(*flow)
		if f.first(may) != nil {
			f.deficit += (rounds - 1) * quantum
		}
	}
	return rounds >= 0
}

// first returns the first place of the key that may have a turn.
func (f *flow) first(may func(*place) bool) *place {
	for e := f.places.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*place); may(p) {
			return p
		}
	}
	return nil
}

// one returns any place of those that wait, of which there must be some.
func (q *queue) one() *place {
	f := q.bands[0].round.Front().Value.(*flow)
	return f.places.Front().Value.(*place)
}

// ahead estimates how many places get their turn before a new one of a priority, key and cost.
func (q *queue) ahead(priority int, key string, cost int64) float64 {
	n := 0.0
	for _, b := range q.bands {
		if b.priority < priority {
			break
		}
		if b.priority > priority {
			n += float64(b.n)
			continue
		}
		spent := cost // by its key, when its turn comes: the others spend as much until then, if they have it
		if own := b.flows[key]; own != nil {
			spent += own.tokens
		}
		for _, f := range b.flows {
			if f.key == key {
				n += float64(f.places.Len())
			} else {
				n += f.within(spent)
			}
		}
	}
	return n
}

// within estimates how many places of the key have their turn while it spends so many tokens. A key that has had as many turns
// as it still waits for sends more: it will spend them all.
func (f *flow) within(tokens int64) float64 {
	share := float64(tokens) / float64(f.tokens)
	if f.turns < f.places.Len() {
		share = min(share, 1)
	}
	return share * float64(f.places.Len())
}
