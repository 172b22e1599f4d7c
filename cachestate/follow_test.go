package cachestate

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// mailbox is a bad network: messages are lost, held back, repeated and reordered.
type mailbox struct {
	geometry Geometry
	held     [][]byte
}

func (m *mailbox) send(t *rapid.T, d Delta) {
	for range rapid.SampledFrom([]int{1, 1, 1, 0, 2}).Draw(t, "copies") {
		m.held = append(m.held, AppendDelta(nil, &d))
	}
}

func (m *mailbox) receive(t *rapid.T) (Delta, bool) {
	if len(m.held) == 0 {
		return Delta{}, false
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "message")
	d, _, err := ParseDelta(m.held[i], "a", m.geometry)
	if err != nil {
		t.Fatal(err)
	}
	m.held = slices.Delete(m.held, i, i+1)
	return d, true
}

// Whatever happens to its messages, an index that pulls when told to ends at its owner's digest, and at every version
// on the way holds exactly what the owner had then.
func TestIndexFollowsDigestOverABadNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Geometry{Bits: 1 << 10, Hashes: 3}
		pool := randomKeys(7, 60)
		gen := engine.Generation(1)
		d, x, net := NewDigest("a/e", TierGPU, gen, g), NewIndex(g, TierGPU), &mailbox{geometry: g}
		held, now := map[Key]int{}, epoch
		past := map[Version][]uint64{{Generation: 1}: make([]uint64, g.words())}
		publish := func(delta Delta) Delta {
			past[delta.Version()] = wordsNow(d)
			return delta
		}
		apply := func(delta Delta) Outcome {
			got := x.Apply(&delta)
			if got == Corrupt || got == Foreign {
				t.Fatalf("delta %d to %d of an honest owner: %v", delta.From, delta.To, got)
			}
			if have, ok := x.Have("a/e"); ok {
				if want, ok := past[have]; ok && !slices.Equal(columnOf(x, "a/e"), want) {
					t.Fatalf("after %v the index differs from version %+v", got, have)
				}
			}
			return got
		}
		actions := map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				k := rapid.SampledFrom(pool).Draw(t, "key")
				held[k]++
				d.Add(k)
			},
			"remove": func(t *rapid.T) {
				k := rapid.SampledFrom(pool).Draw(t, "key")
				if held[k] > 0 {
					held[k]--
					d.Remove(k)
				}
			},
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rare") == 0 {
					for k, copies := range held {
						for range copies {
							d.Remove(k)
						}
					}
					clear(held)
				}
			},
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rare") == 0 {
					gen++
					clear(held)
					d = NewDigest("a/e", TierGPU, gen, g)
					past[Version{Generation: gen}] = make([]uint64, g.words())
				}
			},
			"publish": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "seconds")) * time.Second)
				net.send(t, publish(d.Publish(now)))
			},
			"since": func(t *rapid.T) {
				from := rapid.Uint64Range(0, d.version).Draw(t, "from")
				if delta, ok := d.Since(from); ok {
					net.send(t, delta)
				}
			},
			"deliver": func(t *rapid.T) {
				if delta, ok := net.receive(t); ok && apply(delta).NeedFull() {
					net.send(t, d.Full())
				}
			},
			"forget": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rare") == 0 {
					x.Remove("a/e")
				}
			},
			"": func(t *rapid.T) { checkDigest(t, d, held) },
		}
		for range 5 { // one round is about 30 steps
			t.Repeat(actions)
		}
		if apply(publish(d.Publish(now))).NeedFull() {
			apply(d.Full())
		}
		if have, _ := x.Have("a/e"); have != d.Version() || !slices.Equal(columnOf(x, "a/e"), d.filter.words()) {
			t.Fatalf("the index ends at %+v, its owner at %+v", have, d.Version())
		}
	})
}

func wordsNow(d *Digest) []uint64 {
	full := d.Full()
	return full.Words
}

// checkDigest compares a digest with one that is built from the keys held.
func checkDigest(t *rapid.T, d *Digest, held map[Key]int) {
	fresh, n := newFilter(d.geometry), 0
	var at [MaxHashes]uint32
	for k, copies := range held {
		if n += copies; copies > 0 {
			d.geometry.Locations(k, &at)
			for _, a := range at[:d.geometry.Hashes] {
				fresh.set(a, true)
			}
		}
	}
	if n != d.keys || !slices.Equal(fresh.words(), d.filter.words()) || fresh.fill(d.geometry) != d.Fill() {
		t.Fatalf("the digest of %d keys is not that of the %d held", d.keys, n)
	}
	var sum uint64
	for _, a := range setBits(fresh.words()) {
		sum += mixLocation(a)
	}
	if sum != d.sum {
		t.Fatalf("got checksum %x, want %x", d.sum, sum)
	}
}
