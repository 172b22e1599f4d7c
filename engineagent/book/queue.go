package book

import (
	"container/heap"
	"time"
)

// DefaultWindow is one prefill step of most engines, in tokens: with less work than that the engine idles between two
// requests, with more the order in which requests reach it is decided sooner than it need be.
const DefaultWindow = 8192

// aging is how many seconds of waiting weigh as much as a second of prefill. Without it long prompts starve while short ones
// come; with much less than 10 the order is that of arrival.
const aging = 10

// priorityOf returns the place in line of a request that takes so long to prefill and came so long after the book was
// begun. Everybody's priority grows alike while they wait, so that the order of two never changes.
func priorityOf(prefill, came time.Duration) time.Duration {
	return prefill + came/aging
}

// queue is the requests that the owner has not handed to its engine: a heap, lowest priority first, then first come.
type queue []*Entry

var _ heap.Interface = (*queue)(nil)

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q queue) Less(i, j int) bool {
	if q[i].priority != q[j].priority {
		return q[i].priority < q[j].priority
	}
	return q[i].order < q[j].order
}

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*Entry)
	e.place = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}
