package forward

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// plainQueue is the dumb twin of queue: a slice of places, and of each key of a priority what it may spend.
type plainQueue struct {
	places []*place // in order of number
	turns  int
	bands  map[int]*plainBand
}

type plainBand struct {
	served  int
	order   []string // keys that wait
	deficit map[string]int64
	began   map[string]bool
}

func (q *plainQueue) priorities() []int {
	var out []int
	for p := range q.bands {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b int) int { return b - a })
	return out
}

func (q *plainQueue) of(t tenant) []*place {
	var out []*place
	for _, p := range q.places {
		if p.tenant == t {
			out = append(out, p)
		}
	}
	return out
}

func (q *plainQueue) push(p *place) {
	if len(q.of(p.tenant)) == 0 {
		b := q.bands[p.priority]
		if b == nil {
			b = &plainBand{served: q.turns, deficit: map[string]int64{}, began: map[string]bool{}}
			q.bands[p.priority] = b
		}
		b.order = append(b.order, p.key)
	}
	q.places = append(q.places, p)
	slices.SortFunc(q.places, func(a, b *place) int { return cmp.Compare(a.number, b.number) })
}

func (q *plainQueue) putBack(p *place) {
	q.push(p)
	b := q.bands[p.priority]
	b.deficit[p.key] += p.cost
	b.began[p.key] = true
	i := slices.Index(b.order, p.key)
	b.order = append([]string{p.key}, slices.Delete(b.order, i, i+1)...)
}

func (q *plainQueue) remove(p *place) {
	q.places = slices.DeleteFunc(q.places, func(o *place) bool { return o == p })
	b := q.bands[p.priority]
	if len(q.of(p.tenant)) == 0 {
		b.order = slices.DeleteFunc(b.order, func(k string) bool { return k == p.key })
		delete(b.deficit, p.key)
		delete(b.began, p.key)
	}
	if len(b.order) == 0 {
		delete(q.bands, p.priority)
	}
}

func (q *plainQueue) take(may func(*place) bool) *place {
	order := q.priorities()
	if len(order) > 1 && (q.turns+1)%agedTurns == 0 {
		aged := slices.MinFunc(order[1:], func(a, b int) int { return q.bands[a].served - q.bands[b].served })
		order = append([]int{aged}, order...)
	}
	for _, priority := range order {
		if p := q.next(priority, may); p != nil {
			q.turns++
			q.bands[priority].served = q.turns
			q.remove(p)
			return p
		}
	}
	return nil
}

// next goes round by round, however many there are.
func (q *plainQueue) next(priority int, may func(*place) bool) *place {
	b := q.bands[priority]
	first := func(key string) *place {
		all := q.of(tenant{priority, key})
		if i := slices.IndexFunc(all, may); i >= 0 {
			return all[i]
		}
		return nil
	}
	vain := 0
	for {
		key := b.order[0]
		p := first(key)
		if p != nil && !b.began[key] {
			b.deficit[key] += quantum
			b.began[key] = true
		}
		if p != nil && b.deficit[key] >= p.cost {
			b.deficit[key] -= p.cost
			return p
		}
		b.began[key] = false
		b.order = append(b.order[1:], key)
		if vain++; vain >= len(b.order) && !slices.ContainsFunc(b.order, func(k string) bool { return first(k) != nil }) {
			return nil
		}
	}
}

func TestQueueAgreesWithThePlainOne(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		q, plain := &queue{}, &plainQueue{bands: map[int]*plainBand{}}
		var waiting, taken []*place
		number := uint64(0)
		for step := range 150 {
			may := func(p *place) bool { return p.number%uint64(3+step%5) != 0 }
			switch n := rng.IntN(10); {
			case n < 4:
				number++
				p := &place{
					tenant: tenant{rng.IntN(4) - 2, strconv.Itoa(rng.IntN(3))}, number: number, cost: 1 + rng.Int64N(1<<rng.IntN(14)),
				}
				twin := *p
				q.push(p)
				plain.push(&twin)
				waiting = append(waiting, p)
			case n < 7:
				p, twin := q.take(may), plain.take(may)
				if (p == nil) != (twin == nil) || p != nil && p.number != twin.number {
					t.Fatalf("seed %d: took %+v, the twin %+v", seed, p, twin)
				}
				if p != nil {
					waiting = slices.DeleteFunc(waiting, func(o *place) bool { return o == p })
					taken = append(taken, p)
				}
			case n < 8 && len(taken) > 0:
				i := rng.IntN(len(taken))
				p := taken[i]
				taken = slices.Delete(taken, i, i+1)
				twin := *p
				q.putBack(p)
				plain.putBack(&twin)
				waiting = append(waiting, p)
			case len(waiting) > 0:
				i := rng.IntN(len(waiting))
				p := waiting[i]
				waiting = slices.Delete(waiting, i, i+1)
				q.remove(p)
				plain.remove(plain.places[slices.IndexFunc(plain.places, func(o *place) bool { return o.number == p.number })])
			}
			if q.n != len(waiting) || len(q.bands) != len(plain.bands) {
				t.Fatalf("seed %d: %d wait in %d priorities, the twin has %d in %d", seed, q.n, len(q.bands), len(waiting), len(plain.bands))
			}
		}
		for _, p := range waiting {
			q.remove(p)
		}
		if q.n != 0 || len(q.bands) != 0 {
			t.Fatalf("seed %d: %d in %d priorities are left of an empty queue", seed, q.n, len(q.bands))
		}
	}
}

// fill puts n places of a tenant and cost into q.
func fill(q *queue, n int, who tenant, cost int64) {
	for range n {
		q.push(&place{tenant: who, number: uint64(q.n + 1), cost: cost})
	}
}

func anyPlace(*place) bool { return true }

func TestKeysShareTheTurnsInTokens(t *testing.T) {
	q := &queue{}
	fill(q, 1000, tenant{key: "many small"}, 100)
	fill(q, 100, tenant{key: "few large"}, 8000)
	fill(q, 300, tenant{key: "middle"}, 1000)
	tokens := map[string]int64{}
	for range 400 {
		p := q.take(anyPlace)
		tokens[p.key] += p.cost
	}
	for key, n := range tokens {
		if d := n - tokens["middle"]; d < -8000 || d > 8000 {
			t.Errorf("%s had %d tokens, of %v", key, n, tokens)
		}
	}
}

func TestHigherPriorityGoesFirstAndTheLowerNotNever(t *testing.T) {
	q := &queue{}
	fill(q, 100, tenant{-5, "low"}, 10)
	fill(q, 100, tenant{0, "middle"}, 10)
	fill(q, 1000, tenant{7, "high"}, 10)
	turns := map[string]int{}
	for range 320 {
		turns[q.take(anyPlace).key]++
	}
	if turns["high"] != 300 || turns["middle"] != 10 || turns["low"] != 10 {
		t.Errorf("turns %v, want 300, 10 and 10", turns)
	}
}

func TestPlaceThatComesBackIsTheNext(t *testing.T) {
	q := &queue{}
	fill(q, 5, tenant{key: "a"}, 300)
	fill(q, 5, tenant{key: "b"}, 300)
	first, second := q.take(anyPlace), q.take(anyPlace)
	q.putBack(second)
	q.putBack(first)
	if again, next := q.take(anyPlace), q.take(anyPlace); again != first || next != second {
		t.Errorf("took %d and %d, and then %d and %d", first.number, second.number, again.number, next.number)
	}
}

func TestAheadIsWhatIsServedBefore(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		q := &queue{}
		for range 30 {
			fill(q, 1+rng.IntN(5), tenant{rng.IntN(2), strconv.Itoa(rng.IntN(4))}, 512)
		}
		p := &place{tenant: tenant{rng.IntN(2), strconv.Itoa(rng.IntN(4))}, number: 1000, cost: 512}
		estimate := q.ahead(p.priority, p.key, p.cost)
		q.push(p)
		n := 0
		for q.take(anyPlace) != p {
			n++
		}
		// Each lower priority has one turn in sixteen, and in the last round others may have theirs before or after.
		if got := float64(n); got < estimate-4 || got > estimate*17/16+8 {
			t.Errorf("%d were served before, estimated %v", n, estimate)
		}
	}
}

func TestKeyThatSendsMoreIsExpectedToGoOn(t *testing.T) {
	q := &queue{}
	fill(q, 4, tenant{key: "busy"}, 256)
	fill(q, 10, tenant{key: "own"}, 256)
	if n := q.ahead(0, "own", 256); n != 14 {
		t.Errorf("%v ahead, want all that wait", n)
	}
	for range 8 {
		if p := q.take(anyPlace); p.key == "busy" {
			fill(q, 1, p.tenant, p.cost)
		}
	}
	if n := q.ahead(0, "own", 256); n != 6+7 {
		t.Errorf("%v ahead, want the six of the key and seven of the other, which has four now", n)
	}
}

func BenchmarkQueueOf10000(b *testing.B) {
	for _, keys := range []int{1, 100, 10_000} {
		b.Run(strconv.Itoa(keys)+"keys", func(b *testing.B) {
			q := &queue{}
			rng := rand.New(rand.NewPCG(1, 1))
			for i := range 10_000 {
				q.push(&place{tenant: tenant{key: strconv.Itoa(i % keys)}, number: uint64(i), cost: 1 + rng.Int64N(8192)})
			}
			number := uint64(10_000)
			b.ReportAllocs()
			for b.Loop() {
				p := q.take(anyPlace)
				number++
				p.number = number
				q.push(p)
			}
		})
	}
}
