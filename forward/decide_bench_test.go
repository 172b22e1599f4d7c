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
			q := ask(float64(p.Bytes))
			rng := rand.New(rand.NewPCG(3, 3))
			var all []Candidate
			b.ReportAllocs()
			for b.Loop() {
				all = g.View.Candidates(all[:0], "m", time.Now())
				g.View.Overlaps(&p, all)
				q.Learned = LearnedBy(all)
				short := Shortlist(q, all, rng)
				ProbeSet(q, short)
				if len(Rank(q, short, rng)) == 0 {
					b.Fatal("no candidate")
				}
			}
		})
	}
}
