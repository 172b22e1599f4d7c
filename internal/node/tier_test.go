package node

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

const (
	blockTokens = 16
	hostBlocks  = 64 // of the prompt that a hostEngine holds: 1,024 tokens
)

// hostEngine is a TensorRT-LLM with memory on the host: it tells its KV events to whoever asks, once.
type hostEngine struct {
	mu     sync.Mutex
	events []string
	number int
}

// RoundTrip implements http.RoundTripper.
func (e *hostEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := http.StatusOK, ""
	switch r.URL.Path {
	case "/health":
	case "/v1/models":
		body = `{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}`
	case "/kv_cache_events":
		e.mu.Lock()
		body, e.events = "["+strings.Join(e.events, ",")+"]", nil
		e.mu.Unlock()
	default:
		status = http.StatusNotFound
	}
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

func (e *hostEngine) tell(data string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, fmt.Sprintf(`{"event_id":%d,"window_size":4096,"data":%s}`, e.number, data))
	e.number++
}

// store tells that the prompt's blocks lie in the GPU. Block i has the hash i+1.
func (e *hostEngine) store() {
	blocks := make([]string, hostBlocks)
	for i := range blocks {
		tokens := make([]string, blockTokens)
		for j := range tokens {
			tokens[j] = fmt.Sprintf(`{"token_id":%d}`, i*blockTokens+j)
		}
		blocks[i] = fmt.Sprintf(`{"block_hash":%d,"tokens":[%s],"cache_level":0}`, i+1, strings.Join(tokens, ","))
	}
	e.tell(`{"type":"stored","parent_hash":null,"blocks":[` + strings.Join(blocks, ",") + `]}`)
}

// offload tells that the blocks from the n-th on went to the host.
func (e *hostEngine) offload(n int) {
	for i := n; i < hostBlocks; i++ {
		e.tell(fmt.Sprintf(`{"type":"updated","block_hash":%d,"cache_level":{"old_value":0,"new_value":1}}`, i+1))
	}
}

// hostPrompt is the prompt of those blocks: a key at its start, and one every 128 tokens.
func hostPrompt() *cachestate.Prompt {
	const keys = 9
	p := &cachestate.Prompt{Bytes: 4096, Sure: keys, Odd: make([]uint32, keys), High: make([]uint32, keys)}
	for i := range keys {
		p.Keys = append(p.Keys, cachestate.Key(7<<32+uint64(i+1)))
		p.Offsets = append(p.Offsets, uint32(512*i))
	}
	return p
}

// teach has the first engine beside n serve the prompt, and tell how it rendered it.
func teach(t *testing.T, n *Node) {
	t.Helper()
	b, _, err := n.agentsOf[0].Admit(engineagent.Admission{
		Prompt: hostPrompt(), Bytes: 4096, QueuedAtProbe: -1, Model: "m", Route: openai.RouteCompletions, Traits: openai.TraitTokenPrompt,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !b.WantsPrompt() {
		t.Fatal("the prompt's tokens would teach nothing")
	}
	ids := make([]uint32, hostBlocks*blockTokens)
	for i := range ids {
		ids[i] = uint32(i)
	}
	b.Learn(ids, 0)
	b.FirstContent()
	b.Finish(engineagent.Outcome{})
}

// leading is the prompt's number of leading keys that n believes an engine to hold in each tier.
func leading(n *Node, id engine.ID) (held cachestate.Held) {
	for t := range held {
		index := n.index.Tier(cachestate.Tier(t))
		if index == nil {
			continue
		}
		if slot, ok := index.Slot(id); ok {
			held[t] = index.Overlap(hostPrompt().Keys, nil, nil)[slot]
		}
	}
	return held
}

// offloading runs the owner of a hostEngine, which holds the whole prompt, and a peer of it.
func offloading(t *testing.T, r *rig) (owner, peer *Node, e *hostEngine, restart func()) {
	t.Helper()
	e = &hostEngine{}
	config := r.config("a", "e")
	config.PollEngines, config.Engines[0].Kind = e, engine.KindTRTLLM
	owner, _ = r.run(config)
	other := r.config("b")
	other.Mesh.Join = []string{owner.QUICAddr()}
	peer, _ = r.run(other)
	await(t, "both are ready", 10*time.Second, func() bool { return owner.Ready() && peer.Ready() })
	e.store()
	await(t, "KV events come", 5*time.Second, func() bool { return owner.agentsOf[0].Engine().Residency == engine.ResidencyEvents })
	teach(t, owner)
	id := engine.MakeID("a", "e")
	await(t, "both know of the GPU tier", 5*time.Second, func() bool {
		return leading(owner, id) == cachestate.Held{9} && leading(peer, id) == cachestate.Held{9}
	})
	return owner, peer, e, func() {
		e.mu.Lock()
		e.events, e.number = nil, 0
		e.mu.Unlock()
		e.tell(`{"type":"created"}`)
	}
}

func TestSlowerTierTravelsApart(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		owner, peer, e, restart := offloading(t, r)
		id := engine.MakeID("a", "e")
		if peer.index.Tier(cachestate.TierCPU) != nil || owner.index.Tier(cachestate.TierCPU) != nil {
			t.Error("there is an index of a tier that no engine uses")
		}
		e.offload(hostBlocks / 2)
		for _, n := range []*Node{owner, peer} {
			await(t, "half of the prompt is on the host", 5*time.Second, func() bool { return leading(n, id) == cachestate.Held{5, 9} })
			s := n.Status().Engines[0]
			if tiers := tiersOf(s.Digests); !slices.Equal(tiers, []string{"gpu 5", "cpu 9"}) {
				t.Errorf("%s shows digests %v", n.config.Mesh.Name, tiers)
			}
			for _, d := range s.Digests {
				if d.Version == 0 || d.Fill == 0 || d.Checksum != checksum(owner, id, d.Tier) || (d.Age < 0) != (n == owner) || d.Age > 1 {
					t.Errorf("%s shows %+v", n.config.Mesh.Name, d)
				}
			}
		}
		restart()
		for _, n := range []*Node{owner, peer} {
			await(t, "nothing is left of the last life", 5*time.Second, func() bool { return leading(n, id) == cachestate.Held{} })
			await(t, "the new life has one tier", 5*time.Second, func() bool {
				return slices.Equal(tiersOf(n.Status().Engines[0].Digests), []string{"gpu 0"})
			})
		}
	})
}

// checksum is what the owner of an engine would have peers believe.
func checksum(owner *Node, id engine.ID, tier string) string {
	for _, d := range owner.agentsOf[0].Digests() {
		if d.Engine == id && d.Tier.String() == tier {
			return fmt.Sprintf("%016x", d.Checksum)
		}
	}
	return ""
}

func tiersOf(digests []DigestStatus) []string {
	out := []string{}
	for _, d := range digests {
		out = append(out, fmt.Sprint(d.Tier, " ", d.Keys))
	}
	return out
}

func TestLostDeltasAreRepairedInEachTier(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		_, peer, e, _ := offloading(t, r)
		id := engine.MakeID("a", "e")
		e.offload(hostBlocks / 2)
		await(t, "half of the prompt is on the host", 5*time.Second, func() bool { return leading(peer, id) == cachestate.Held{5, 9} })
		for _, tier := range []cachestate.Tier{cachestate.TierCPU, cachestate.TierGPU} {
			before := leading(peer, id)
			peer.index.Tier(tier).Remove(id)
			if now := leading(peer, id); now[tier] != 0 || now[1-tier] != before[1-tier] {
				t.Fatalf("without its %v digest: %v", tier, now)
			}
			await(t, "it was pulled", 3*time.Second, func() bool { return leading(peer, id) == before })
		}
		peer.index.Remove(id)
		if now := leading(peer, id); now != (cachestate.Held{}) {
			t.Errorf("a removed engine holds %v", now)
		}
		await(t, "both were pulled", 3*time.Second, func() bool { return leading(peer, id) == cachestate.Held{5, 9} })
	})
}

func TestVersionVectorNamesEveryTier(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		owner, peer, e, _ := offloading(t, r)
		id := engine.MakeID("a", "e")
		e.offload(hostBlocks / 2)
		await(t, "half of the prompt is on the host", 5*time.Second, func() bool { return leading(peer, id) == cachestate.Held{5, 9} })
		state := owner.LocalState()
		pulls := func() float64 { return metric(t, peer, "kvmesh_spread_digest_pulls_total") }
		was := pulls()
		peer.MergeState(state)
		if now := pulls(); now != was {
			t.Errorf("%v digests pulled that are here", now-was)
		}
		peer.index.Remove(id)
		peer.MergeState(state) // before the owner's next message
		if now := pulls(); now != was+2 {
			t.Errorf("%v digests pulled, want those of both tiers", now-was)
		}
		await(t, "both were pulled", 100*time.Millisecond, func() bool { return leading(peer, id) == cachestate.Held{5, 9} })
	})
}

func TestWrongDigestIsReplacedWhole(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		_, peer, _, _ := offloading(t, r)
		id := engine.MakeID("a", "e")
		want, _ := peer.index.Have(id)
		other := cachestate.NewDigest(id, cachestate.TierGPU, want.Generation, cachestate.DefaultGeometry())
		other.Add(99)
		wrong := other.Publish(time.Now())
		wrong.From, wrong.To = 0, want.Number
		peer.index.Remove(id)
		if got := peer.index.Apply(&wrong); got != cachestate.Applied {
			t.Fatalf("got %v", got)
		}
		await(t, "the right one is back", 3*time.Second, func() bool { v, _ := peer.index.Have(id); return v == want })
	})
}

func TestOwnDigestIsThereAfterItWasDropped(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		a, _ := r.run(r.config("a", "e"))
		id := engine.MakeID("a", "e")
		await(t, "the engine is up", 5*time.Second, a.Ready)
		admit(t, a, 1)
		await(t, "the agent knows what its engine holds", time.Second, func() bool { v, _ := a.index.Have(id); return v.Number > 0 })
		want, _ := a.index.Have(id)
		a.index.Remove(id) // as the announcement of another generation does
		await(t, "it knows again", time.Second, func() bool { v, _ := a.index.Have(id); return v == want })
	})
}
