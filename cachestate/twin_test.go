package cachestate

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
)

// cases is a million in the check.
var cases = flag.Int("cases", 2500, "pairs of prompt and engine that TestIndexAgreesWithItsTwin compares at least")

// Many engines, prompts that begin alike, and deltas that come while others read: in the end every overlap is what walking
// the owner's digest key by key gives.
func TestIndexAgreesWithItsTwin(t *testing.T) {
	sizes := []int{1024, 48, 130}
	pairs := 0
	for seed := 1; pairs < *cases && !t.Failed(); seed++ {
		pairs += compareTwins(t, uint64(seed), sizes[seed%len(sizes)])
	}
	t.Logf("%d pairs of prompt and engine", pairs)
}

// compareTwins returns how many pairs it compared.
func compareTwins(t *testing.T, seed uint64, engines int) int {
	r := rand.New(rand.NewPCG(seed, 2))
	prompts := relatedPrompts(r, 16, 300)
	owners, told := make([]*Digest, engines), make([][]Delta, engines)
	for i := range owners {
		owners[i] = NewDigest(engineName(i), TierGPU, 1, DefaultGeometry())
		told[i] = lifeOf(t, owners[i], r, prompts)
	}
	x := NewIndex(DefaultGeometry(), TierGPU)
	applyConcurrently(t, x, told, prompts)
	for p, keys := range prompts {
		out := x.Overlap(keys, nil, nil)
		for i, d := range owners {
			n, ok := x.Slot(engineName(i))
			if want := d.filter.leading(d.geometry, keys); !ok || int(out[n]) != want {
				t.Fatalf("seed %d, prompt %d of %d keys, engine %d in slot %d, %v: got %d, want %d", seed, p, len(keys), i, n, ok, out[n], want)
			}
		}
	}
	return engines * len(prompts)
}

// relatedPrompts are keys of prompts, some of which begin with keys of one before.
func relatedPrompts(r *rand.Rand, n, longest int) [][]Key {
	var prompts [][]Key
	for range n {
		p := randomKeys(r.Uint64(), r.IntN(longest))
		if len(prompts) > 0 {
			copy(p, prompts[r.IntN(len(prompts))])
			for i := r.IntN(len(p) + 1); i < len(p); i++ {
				p[i] = Key(r.Uint64())
			}
		}
		prompts = append(prompts, p)
	}
	return prompts
}

// lifeOf lets an engine hold beginnings of some prompts and returns what its owner tells, in order, as peers read it.
func lifeOf(t *testing.T, d *Digest, r *rand.Rand, prompts [][]Key) (told []Delta) {
	const versions = 3
	var passing []Key
	for version := range versions {
		for i := version; i < len(prompts); i += versions {
			if r.IntN(4) == 0 {
				for _, k := range prompts[i][:r.IntN(len(prompts[i])+1)] {
					d.Add(k)
				}
			}
		}
		for _, k := range passing {
			d.Remove(k)
		}
		passing = randomKeys(r.Uint64(), 20)
		for _, k := range passing {
			d.Add(k)
		}
		published := d.Publish(epoch)
		read, _, err := ParseDelta(AppendDelta(nil, &published), d.engine.Agent(), d.geometry)
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, read)
	}
	return told
}

// applyConcurrently applies the deltas of each engine in order, and those of engines in any, beside a reader.
func applyConcurrently(t *testing.T, x *Index, told [][]Delta, prompts [][]Key) {
	const writers = 3
	next := 0
	stop := untilStopped(1, func() {
		keys := prompts[next%len(prompts)]
		next++
		for n, got := range x.Overlap(keys, nil, nil) {
			if got < 0 || int(got) > len(keys) {
				t.Errorf("slot %d: overlap %d of %d keys", n, got, len(keys))
			}
		}
	})
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := w; i < len(told); i += writers {
				for n := range told[i] {
					if got := x.Apply(&told[i][n]); got != Applied {
						t.Errorf("delta %d of engine %d: %v", n, i, got)
					}
				}
			}
		})
	}
	group.Wait()
	stop()
}
