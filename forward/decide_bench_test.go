package forward

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
)

// keysPrompt returns a prompt of 100k tokens with n keys.
func keysPrompt(n int) cachestate.Prompt {
	rng := rand.New(rand.NewPCG(4, 4))
	p := cachestate.Prompt{Bytes: 400_000}
	for i := range n {
		p.Keys = append(p.Keys, cachestate.Key(rng.Uint64()))
		p.Offsets = append(p.Offsets, uint32(int(p.Bytes)*i/n))
	}
	return p
}

// BenchmarkDecide is one decision without its probes: candidates, overlaps, choice. Each engine holds another share of the
// prompt, which is what takes the search longest.
func BenchmarkDecide(b *testing.B) {
	p := keysPrompt(250)
	for _, n := range []int{64, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g := benchMesh(b, n, &p)
			x := &exchange{g: g, rng: rand.New(rand.NewPCG(3, 3)), prompt: p, q: Question{Bytes: 400_000, Locality: true}}
			b.ReportAllocs()
			for b.Loop() {
				all := g.View.Candidates("m", time.Now())
				x.overlaps(all)
				x.q.Learned = learnedBy(all)
				short := Shortlist(x.q, all, x.rng)
				ProbeSet(x.q, short)
				if len(Rank(x.q, short, x.rng)) == 0 {
					b.Fatal("no candidate")
				}
			}
		})
	}
}
