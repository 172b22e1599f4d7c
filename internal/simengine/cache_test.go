package simengine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// oldest-copy order matters to which copy is pinned, so the twin needs cache to find the oldest copy too.
func TestCacheMatchesItsTwin(t *testing.T) {
	layouts := map[string][]Group{
		"full":   {{Kind: GroupFull}},
		"hybrid": {{Kind: GroupFull}, {Kind: GroupSliding, Window: 10}, {Kind: GroupMamba}},
		"window": {{Kind: GroupSliding, Window: 7}},
	}
	for name, groups := range layouts {
		for _, kind := range []string{KindVLLM, KindSGLang} {
			for _, host := range []int64{0, 60, 300} {
				t.Run(fmt.Sprint(name, " ", kind, " ", host), func(t *testing.T) {
					for seed := range uint64(5) {
						compareCaches(t, rand.New(rand.NewPCG(seed, 7)), seed, func(c *Config) {
							c.Groups, c.Kind, c.OffloadTokens = groups, kind, host
						})
					}
				})
			}
		}
	}
}

type pair2 struct {
	a *sequence
	b *dumbSequence
	n int // tokens computed
}

func compareCaches(t *testing.T, rng *rand.Rand, seed uint64, change func(*Config)) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.BlockTokens, cfg.CapacityTokens = 4, 160
	cfg.KVEvents.Endpoint = "tcp://127.0.0.1:0"
	change(&cfg)
	c := newCache(&cfg)
	d := newDumbCache(c.total, 4, cfg.Groups, cfg.Kind != KindVLLM)
	d.hostSize = c.host.capacity
	h := chainer{kind: cfg.Kind, blockTokens: 4}
	var running []*pair2
	for step := range 400 {
		switch {
		case rng.IntN(3) > 0 || len(running) == 0:
			tokens := randomTokens(rng)
			chain := h.chain(tokens, "", "")
			p := &pair2{a: &sequence{tokens: tokens, chain: chain}, b: &dumbSequence{chain: chain}, n: len(tokens) - rng.IntN(8)}
			hit, ok := c.admit(p.a, p.n, true)
			wantHit, wantOK := d.admit(p.b, p.n)
			if hit != wantHit || ok != wantOK || ok && p.a.stored != p.b.done {
				t.Fatalf("seed %d step %d: admit = %d %v, %d on the GPU, twin %d %v, %d",
					seed, step, hit, ok, p.a.stored, wantHit, wantOK, p.b.done)
			}
			if ok {
				running = append(running, p)
			}
		case rng.IntN(2) == 0:
			p := running[rng.IntN(len(running))]
			c.commit(p.a, p.n)
			d.commit(p.b, p.n)
			if p.n < len(p.a.tokens) {
				p.n++
				if got, want := c.extend(p.a, p.n), d.extend(p.b, p.n); got != want {
					t.Fatalf("seed %d step %d: extend = %v, twin %v", seed, step, got, want)
				} else if !got {
					p.n--
				}
			}
		default:
			i := rng.IntN(len(running))
			c.release(running[i].a)
			d.release(running[i].b, 100)
			running = slices.Delete(running, i, i+1)
		}
		if c.resident != d.resident() || c.host.order.len != len(d.host) || len(c.host.index) != len(d.host) {
			t.Fatalf("seed %d step %d: %d resident and %d on the host, twin %d and %d",
				seed, step, c.resident, c.host.order.len, d.resident(), len(d.host))
		}
	}
	if cfg.Kind != KindVLLM {
		return // its wire hashes are not the keys
	}
	var removed, hostRemoved []uint64
	for _, e := range c.takeEvents() {
		switch {
		case e.kind == eventRemoved && e.host:
			hostRemoved = append(hostRemoved, e.hashes...)
		case e.kind == eventRemoved:
			removed = append(removed, e.hashes...)
		}
	}
	if diff := cmp.Diff(keysOf(d.removed), removed); diff != "" {
		t.Errorf("seed %d: order of eviction (-twin +cache):\n%s", seed, diff)
	}
	if diff := cmp.Diff(keysOf(d.hostRemoved), hostRemoved); diff != "" {
		t.Errorf("seed %d: order of eviction from the host (-twin +cache):\n%s", seed, diff)
	}
}

func keysOf(blocks []blockKey) (keys []uint64) {
	for _, k := range blocks {
		keys = append(keys, k.key)
	}
	return keys
}

// randomTokens has few distinct prefixes, so that hits, copies and branches are frequent.
func randomTokens(rng *rand.Rand) []Token {
	tokens := make([]Token, 8+rng.IntN(50))
	branch := rng.IntN(len(tokens))
	for i := range tokens {
		tokens[i] = Token(i)
		if i >= branch {
			tokens[i] += Token(1000 * (1 + rng.IntN(2)))
			if i > branch {
				tokens[i] = Token(2000 + i)
			}
		}
	}
	return tokens
}

func TestEqualPromptsAtTheSameTimeStoreCopies(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BlockTokens, cfg.KVEvents.Endpoint = 4, "tcp://127.0.0.1:0"
	cfg = cfg.withDefaults()
	c := newCache(&cfg)
	tokens := make([]Token, 9)
	chain := (&chainer{kind: KindVLLM, blockTokens: 4}).chain(tokens, "", "")
	a, b := &sequence{tokens: tokens, chain: chain}, &sequence{tokens: tokens, chain: chain}
	for _, s := range []*sequence{a, b} {
		if hit, ok := c.admit(s, 9, true); hit != 0 || !ok {
			t.Fatalf("admit = %d %v, want no hit before a prefill ended", hit, ok)
		}
	}
	c.commit(a, 9)
	c.commit(b, 9)
	if c.resident != 4 || len(c.events) != 2 {
		t.Errorf("%d blocks and %d events, want two copies of two blocks, each told", c.resident, len(c.events))
	}
	third := &sequence{tokens: tokens, chain: chain}
	if hit, _ := c.admit(third, 9, true); hit != 2 {
		t.Errorf("hit = %d blocks after the prefill, want 2", hit)
	}
	if hit, _ := c.admit(&sequence{tokens: tokens[:8], chain: chain}, 8, true); hit != 1 {
		t.Errorf("hit = %d blocks of a prompt of exactly two, want 1: the last token is computed", hit)
	}
}

func TestHybridModelNeedsEveryGroup(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BlockTokens, cfg.Groups = 4, []Group{{Kind: GroupFull}, {Kind: GroupMamba}}
	c := newCache(&cfg)
	h := chainer{kind: KindVLLM, blockTokens: 4}
	tokens := make([]Token, 41)
	s := &sequence{tokens: tokens, chain: h.chain(tokens, "", "")}
	c.admit(s, 41, true)
	c.commit(s, 41)
	c.release(s)
	branch := append(slices.Clone(tokens[:20]), 7, 7, 7, 7, 7)
	if hit := c.hit(h.chain(branch, "", ""), len(branch)); hit != 0 {
		t.Errorf("hit = %d blocks at a branch, want 0: there is no state there", hit)
	}
	longer := append(slices.Clone(tokens), 7, 7, 7, 7, 7)
	if hit := c.hit(h.chain(longer, "", ""), len(longer)); hit != 10 {
		t.Errorf("hit = %d blocks of a continued prompt, want 10", hit)
	}
}

func BenchmarkAdmit100kTokens(b *testing.B) {
	cfg := DefaultConfig()
	cfg = cfg.withDefaults()
	c := newCache(&cfg)
	tokens := make([]Token, 100_000)
	for i := range tokens {
		tokens[i] = Token(i)
	}
	h := chainer{kind: KindVLLM, blockTokens: 16}
	b.ReportAllocs()
	for b.Loop() {
		s := &sequence{tokens: tokens, chain: h.chain(tokens, "", "")}
		c.admit(s, len(tokens), true)
		c.commit(s, len(tokens))
		c.release(s)
	}
}
