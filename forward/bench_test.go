package forward

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// longChat returns a chat request of about size bytes: a system text, then turns of 8 KiB with line ends and quotes.
func longChat(tb testing.TB, size int) []byte {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	text := func(n int) string {
		var b strings.Builder
		for b.Len() < n {
			fmt.Fprintf(&b, "line %d says \"%x\" and more of the same kind of text\n", rng.IntN(1000), rng.Uint64())
		}
		return b.String()
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"system", text(4096)}}
	for total := 4096; total < size; total += 8192 {
		messages = append(messages, message{"user", text(4096)}, message{"assistant", text(4096)})
	}
	b, err := json.Marshal(map[string]any{"model": "m", "stream": true, "messages": append(messages, message{"user", "go on"})})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// benchMesh returns an ingress that knows n engines; engine i holds the first i of n parts of the prompt, between other
// keys that fill its digest to the usual third.
func benchMesh(b *testing.B, n int, p *cachestate.Prompt) *Ingress {
	index := cachestate.NewTiers(cachestate.DefaultGeometry())
	view := NewView("self", index)
	rng := rand.New(rand.NewPCG(2, 2))
	for i := range n {
		agent := fmt.Sprintf("agent%d", i)
		id := engine.MakeID(agent, "0")
		view.Announce(agent, []engine.Engine{{ID: id, Generation: 1, Models: []engine.Model{{Name: "m"}}}}, time.Now())
		view.Hear(agent, Report{Period: 30 * time.Second, Loads: []EngineLoad{{"0", engine.Load{Seq: 1, InFlight: i % 7, BytesPerToken: 4}}}}, time.Now())
		d := cachestate.NewDigest(id, cachestate.TierGPU, 1, cachestate.DefaultGeometry())
		for range 8000 {
			d.Add(cachestate.Key(rng.Uint64()))
		}
		for _, k := range p.Keys[:len(p.Keys)*i/n] {
			d.Add(k)
		}
		delta := d.Publish(time.Now())
		if outcome := index.Apply(&delta); outcome != cachestate.Applied {
			b.Fatalf("digest not applied: %v", outcome)
		}
	}
	c := DefaultConfig()
	c.Agent, c.Index, c.View, c.Peers = "self", index, view, &memAgent{}
	g, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	return g
}

// BenchmarkDecisionPath is what a request costs before it is sent: parse, keys, overlap over all engines, decide. Probes
// are not part of it.
func BenchmarkDecisionPath(b *testing.B) {
	body := longChat(b, 400_000)
	request, err := openai.Parse(openai.RouteChat, body)
	if err != nil {
		b.Fatal(err)
	}
	var p cachestate.Prompt
	cachestate.DefaultScheme().Prompt(request.Walk("m", 0), &p)
	for _, n := range []int{64, 1024} {
		b.Run(fmt.Sprintf("engines=%d", n), func(b *testing.B) {
			g := benchMesh(b, n, &p)
			rng := rand.New(rand.NewPCG(3, 3))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				x := &exchange{g: g, policy: g.policy.Load(), rng: rng, r: &http.Request{URL: &url.URL{Path: "/v1/chat/completions"}}}
				if x.request, err = openai.Parse(openai.RouteChat, body); err != nil {
					b.Fatal(err)
				}
				if !x.resolve() {
					b.Fatal("model not found")
				}
				x.keys()
				short, _ := x.shortlist(time.Now())
				ranked := Rank(&x.q, short, rng)
				if len(ranked) == 0 || len(x.prompt.Keys) < 200 {
					b.Fatalf("%d candidates, %d keys", len(ranked), len(x.prompt.Keys))
				}
			}
		})
	}
}

// BenchmarkHopFrames is the coding of one request with 300 keys and its first answer.
func BenchmarkHopFrames(b *testing.B) {
	c := exampleCall()
	for i := range 300 {
		c.Prompt.Keys = append(c.Prompt.Keys, cachestate.Key(i))
		c.Prompt.Offsets = append(c.Prompt.Offsets, uint32(70000+i*2048))
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseCall(appendCall(c), 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}
