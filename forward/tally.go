package forward

import (
	"container/list"
	"slices"
)

// bounds are the most that may wait at once.
type bounds struct {
	requests int
	bytes    int64 // of their bodies
}

// within reports whether so many requests and bytes may wait.
func (b bounds) within(requests int, bytes int64) bool {
	return requests <= b.requests && bytes <= b.bytes
}

// tally counts what waits under one bound: in all, or of one class.
type tally struct {
	requests int
	bytes    int64
	shares   map[tenant]*share // of those that wait
}

// tenant is whose requests they are, among those of one priority.
type tenant struct {
	priority int
	key      string // hash of the API key
}

// share is what a tenant has in a tally.
type share struct {
	requests int
	bytes    int64
	places   list.List // of *place, the newest last
}

func newTally() *tally { return &tally{shares: map[tenant]*share{}} }

// add counts a place and returns where it is in its share.
func (t *tally) add(p *place) *list.Element {
	s := t.shares[p.tenant]
	if s == nil {
		s = &share{}
		t.shares[p.tenant] = s
	}
	t.requests++
	t.bytes += p.bytes
	s.requests++
	s.bytes += p.bytes
	return s.places.PushBack(p)
}

func (t *tally) remove(p *place, e *list.Element) {
	s := t.shares[p.tenant]
	t.requests--
	t.bytes -= p.bytes
	s.requests--
	s.bytes -= p.bytes
	if s.places.Remove(e); s.requests == 0 {
		delete(t.shares, p.tenant)
	}
}

// displace returns the places that have to go so that p can come: none while there is room, else the newest of the heaviest
// key of the lowest priority. A key of p's own priority keeps at least as much as p's key then has, so that nobody can fill the
// queue against others, and those who hold equally much do not push each other out. Those in gone are going already. It
// returns false when p has to stay out.
func (t *tally) displace(p *place, limit bounds, gone []*place) (out []*place, ok bool) {
	requests, bytes := t.requests+1-len(gone), t.bytes+p.bytes
	for _, g := range gone {
		bytes -= g.bytes
	}
	if limit.within(requests, bytes) {
		return nil, true
	}
	byBytes := requests <= limit.requests
	weigh := func(requests int, bytes int64) int64 {
		if byBytes {
			return bytes
		}
		return int64(requests)
	}
	who, heavy := t.heaviest(p.priority, weigh)
	if heavy == nil {
		return nil, false
	}
	least := int64(0) // that the key has to keep
	if who.priority == p.priority {
		least = weigh(1, p.bytes)
		if own := t.shares[p.tenant]; own != nil {
			least = weigh(own.requests+1, own.bytes+p.bytes)
		}
	}
	keep := share{requests: heavy.requests, bytes: heavy.bytes}
	for e := heavy.places.Back(); e != nil; e = e.Prev() {
		v := e.Value.(*place)
		leaves := slices.Contains(gone, v)
		if !leaves && (limit.within(requests, bytes) || !v.mayGo()) {
			continue
		}
		keep.requests--
		keep.bytes -= v.bytes
		if leaves {
			continue
		}
		requests--
		bytes -= v.bytes
		out = append(out, v)
	}
	return out, limit.within(requests, bytes) && weigh(keep.requests, keep.bytes) >= least
}

// heaviest returns the tenant with the most weight among those of the lowest priority, at most the given one, that have a
// place which may be taken from them.
func (t *tally) heaviest(priority int, weigh func(int, int64) int64) (who tenant, heavy *share) {
	for o, s := range t.shares {
		if o.priority > priority || !s.spares() {
			continue
		}
		switch {
		case heavy == nil, o.priority < who.priority,
			o.priority == who.priority && weigh(s.requests, s.bytes) > weigh(heavy.requests, heavy.bytes):
			who, heavy = o, s
		}
	}
	return who, heavy
}

// mayGo reports whether the place may be taken away: one that has its turn, or was accepted before, stays.
func (p *place) mayGo() bool { return p.state == placeWaits && !p.accepted }

// spares reports whether one of the places may be taken away.
func (s *share) spares() bool {
	for e := s.places.Back(); e != nil; e = e.Prev() {
		if e.Value.(*place).mayGo() {
			return true
		}
	}
	return false
}
