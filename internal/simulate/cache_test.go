package simulate

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// plainCache is the dumb twin: of the blocks that no request pins and that no resident block follows, it evicts the one
// released longest ago.
type plainCache struct {
	capacity, reserved int
	pins               map[block]int
	released           map[block]int
	follows            map[block]block
	clock              int
}

func (p *plainCache) match(chain []block) int {
	for i, b := range chain {
		if _, ok := p.pins[b]; !ok {
			return i
		}
	}
	return len(chain)
}

func (p *plainCache) start(chain []block, hits, more int) bool {
	evictable := 0
	for b, pins := range p.pins {
		if pins == 0 && !slices.Contains(chain[:hits], b) {
			evictable++
		}
	}
	if len(p.pins)+p.reserved+more-evictable > p.capacity {
		return false
	}
	for _, b := range chain[:hits] {
		p.pins[b]++
	}
	p.reserved += more
	for len(p.pins)+p.reserved > p.capacity {
		p.evict()
	}
	return true
}

func (p *plainCache) evict() {
	victim, found := block(0), false
	for b, pins := range p.pins {
		leaf := true
		for other, before := range p.follows {
			_, resident := p.pins[other]
			leaf = leaf && (before != b || !resident)
		}
		if pins == 0 && leaf && (!found || p.released[b] < p.released[victim]) {
			victim, found = b, true
		}
	}
	delete(p.pins, victim)
}

func (p *plainCache) store(chain []block) (copies int) {
	for _, b := range chain {
		if _, ok := p.pins[b]; ok {
			copies++
		} else {
			p.reserved--
		}
		p.pins[b]++
	}
	return copies
}

func (p *plainCache) release(chain []block) {
	for _, b := range slices.Backward(chain) {
		p.clock++
		if p.pins[b]--; p.pins[b] == 0 {
			p.released[b] = p.clock
		}
	}
}

func TestCacheEvictsAsItsTwinDoes(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := newCache(40)
		p := &plainCache{capacity: 40, pins: map[block]int{}, released: map[block]int{}, follows: map[block]block{}}
		resident := map[block]bool{}
		c.stored = func(b block, _ *cacheEntry) { resident[b] = true }
		c.evicted = func(b block, _ *cacheEntry) { delete(resident, b) }
		type running struct {
			chain  []block
			copies int
		}
		var active []running
		for step := range 400 {
			if len(active) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(active))
				r := active[i]
				active = slices.Delete(active, i, i+1)
				c.reserved -= r.copies
				p.reserved -= r.copies
				c.release(r.chain)
				p.release(r.chain)
			} else {
				chain := randomChain(rng, p.follows)
				hits := c.match(chain)
				if want := p.match(chain); hits != want {
					t.Fatalf("seed %d, step %d: %d blocks match, the twin says %d", seed, step, hits, want)
				}
				ok := c.start(chain, hits, len(chain)-hits)
				if want := p.start(chain, hits, len(chain)-hits); ok != want {
					t.Fatalf("seed %d, step %d: room %v, the twin says %v", seed, step, ok, want)
				}
				if ok {
					copies := c.store(chain[hits:])
					p.store(chain[hits:])
					active = append(active, running{chain, copies})
				}
			}
			if len(resident) != len(p.pins) || len(c.at) != len(p.pins) || c.used() > c.capacity {
				t.Fatalf("seed %d, step %d: %d resident, %d told, the twin has %d", seed, step, len(c.at), len(resident), len(p.pins))
			}
			for b := range p.pins {
				if !resident[b] {
					t.Fatalf("seed %d, step %d: block %d is gone, and the twin has it", seed, step, b)
				}
			}
		}
	}
}

// randomChain is a path of a small tree: a block's number says which blocks are before it.
func randomChain(rng *rand.Rand, follows map[block]block) []block {
	var chain []block
	at := block(1)
	for range 1 + rng.IntN(6) {
		if len(chain) > 0 {
			next := at*3 + block(rng.IntN(3))
			follows[next] = at
			at = next
		}
		chain = append(chain, at)
	}
	return chain
}

func TestCacheHoldsNoMoreThanItsCapacityWhenPinned(t *testing.T) {
	c := newCache(4)
	if !c.start([]block{1, 2, 3}, 0, 3) {
		t.Fatal("an empty cache has no room")
	}
	c.store([]block{1, 2, 3})
	if c.start([]block{7, 8}, 0, 2) {
		t.Error("a cache of four blocks took five")
	}
	if !c.start([]block{1, 2, 4}, 2, 1) {
		t.Error("a cache of four blocks did not take the fourth")
	}
}
