package simulate

import "time"

// kind is what happens at an event.
type kind uint8

const (
	onArrival   kind = iota // the source's next request is due
	onFollowUp              // request b, of a closed loop, is due
	onLand                  // request b reaches the owner of engine a; c is the attempt
	onProbe                 // a probe of request b, candidate c, reaches its owner a
	onAnswer                // the answer to it is back; its load is in news d
	onPatience              // request b waits no longer for answers; c is the attempt
	onSilence               // request b has not been accepted in time; c is the attempt
	onNews                  // news d reach ingress a
	onBounce                // news d, a refusal of request b's attempt c, reach its ingress
	onRetry                 // request b looks for an engine again
	onPrefilled             // engine a has prefilled its prompt; c is the engine's version
	onDecoded               // engine a has made a request's last token; c likewise
	onStep                  // engine a has ended a step; c is its life
	onWake                  // the book of engine a is to be looked at again
	onHeartbeat             // agent a tells its load
	onPublish               // agent a publishes its digest
	onDelta                 // delta d reaches the index
	onFail                  // engine a and its agent die
	onReturn                // they are back
)

// event is one thing that happens at one time. What a to d mean depends on the kind. An event for a request is void when
// the request's life is not the one noted here: requests are used again.
type event struct {
	at   time.Duration
	seq  uint64 // order of events of one time: the one scheduled first comes first
	life uint32 // of the request
	a, b int32
	c, d int32
	kind kind
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// agenda is a heap of events with four children a node: fewer cache lines on the way down than with two.
type agenda struct {
	heap []event
	seq  uint64
}

const fanOut = 4

// add schedules e. It allocates only to grow.
func (q *agenda) add(e event) {
	q.seq++
	e.seq = q.seq
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / fanOut
		if !e.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = e
}

// next takes out the earliest event.
func (q *agenda) next() (event, bool) {
	if len(q.heap) == 0 {
		return event{}, false
	}
	first, last := q.heap[0], q.heap[len(q.heap)-1]
	q.heap = q.heap[:len(q.heap)-1]
	if len(q.heap) > 0 {
		q.sink(last)
	}
	return first, true
}

// sink puts e where the root was, or further down.
func (q *agenda) sink(e event) {
	i := 0
	for {
		least, child := i, i*fanOut+1
		for j := child; j < min(child+fanOut, len(q.heap)); j++ {
			if least == i && q.heap[j].before(&e) || least != i && q.heap[j].before(&q.heap[least]) {
				least = j
			}
		}
		if least == i {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = e
}
