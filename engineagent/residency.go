package engineagent

import (
	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent/book"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// cache is what is believed of the engine's KV cache during one life of it, and the digests that tell it. A restart makes
// another: leases of the old one end in the old one, where nobody looks any more, so that nothing of a past life can be
// advertised in the next. It is used under the Agent's lock.
//
// What KV events and taught renderings say of a key stands. Of the keys that they say nothing of, the mirror's are
// advertised: prompts whose tokens could not be learned.
type cache struct {
	mirror      *cachestate.Mirror
	blocks      *cachestate.Blocks // of the engine, not of this life; nil where nothing follows KV events
	blockTokens int                // of the mirror
	maxKeys     int                // what each digest takes
	used        bool               // a request was started in the mirror
	muted       bool               // the mirror's keys are not to be advertised
	repeat      float64            // share of an answer that the next prompt repeats; running mean

	digests  *cachestate.Digests
	mirrored map[cachestate.Key]struct{} // keys of the mirror that are advertised
}

func newCache(e *engine.Engine, geometries []cachestate.Geometry, capacityTokens int64, blocks *cachestate.Blocks) *cache {
	c := &cache{
		blocks: blocks, blockTokens: e.BlockTokens, maxKeys: mostKeys(geometries),
		digests: cachestate.NewDigests(e.ID, e.Generation, geometries), mirrored: map[cachestate.Key]struct{}{},
	}
	c.mirror = c.newMirror(capacityTokens)
	if blocks != nil {
		blocks.Each(c.change)
	}
	return c
}

// change puts a key that lies in known blocks into a digest, or takes it out.
func (c *cache) change(t cachestate.Tier, k cachestate.Key, resident bool) {
	if resident {
		c.digests.Add(t, k)
	} else {
		c.digests.Remove(t, k)
	}
}

func (c *cache) newMirror(capacityTokens int64) *cachestate.Mirror {
	var m *cachestate.Mirror
	m = cachestate.NewMirror(capacityTokens, c.blockTokens, c.maxKeys, func(k cachestate.Key, resident bool) {
		switch {
		case m != c.mirror: // a mirror of the past, with leases that have not ended
		case !resident:
			c.withdraw(k)
		case !c.muted && (c.blocks == nil || !c.blocks.Known(k)):
			c.mirrored[k] = struct{}{}
			c.change(cachestate.TierGPU, k, true)
		}
	})
	return m
}

// withdraw takes a key of the mirror out of the digest.
func (c *cache) withdraw(k cachestate.Key) {
	if _, told := c.mirrored[k]; told {
		delete(c.mirrored, k)
		c.change(cachestate.TierGPU, k, false)
	}
}

// mute takes all keys of the mirror out of the digest and keeps them out, or lets new ones in again.
func (c *cache) mute(on bool) {
	c.muted = on
	if on {
		for k := range c.mirrored {
			c.withdraw(k)
		}
	}
}

// teach maps a prompt's keys to blocks. From then on the mirror's word on them does not count.
func (c *cache) teach(l cachestate.Lesson) {
	c.blocks.Teach(l)
	if next := l.Prompt.Next; next != nil && !next.Alike {
		c.blocks.Teach(cachestate.Lesson{Prompt: next, Tokens: l.Tokens, First: l.First, Rest: l.Rest})
	}
	c.rekey(l.Prompt)
	c.yield(l.Prompt)
}

// rekey takes a prompt's keys in the forms that it comes in.
func (c *cache) rekey(p *cachestate.Prompt) {
	if c.blocks == nil {
		return
	}
	c.blocks.Rekey(p)
	if p.Next != nil {
		c.yield(p.Next)
	}
}

// yield takes keys out of the digest that the mirror alone told of and that blocks are known of now.
func (c *cache) yield(p *cachestate.Prompt) {
	for _, form := range p.Forms() {
		for _, k := range form.Keys {
			if len(c.mirrored) == 0 {
				return
			}
			if c.blocks.Known(k) {
				c.withdraw(k)
			}
		}
	}
}

// overlap is what is expected of one prompt.
type overlap struct {
	estimate cachestate.Estimate // by blocks; zero where the mirror says more
	keys     int                 // leading keys that are resident
	tokens   int                 // that the engine need not compute
	saved    float64             // the same, each token with the weight of its tier
	prompt   int                 // the prompt's length in tokens
	sure     int                 // of tokens, those that do not rest on the answer before being repeated
	rest     int                 // tokens of that answer; 0 when there is none
	exact    bool                // that length is the engine's own
}

// overlap returns what the engine is expected to hold of p, by the form of its keys that more is known by.
func (c *cache) overlap(p *cachestate.Prompt, bytesPerToken float64, d *cachestate.Density) overlap {
	o := c.overlapOf(p, bytesPerToken, d)
	if p.Next != nil {
		if next := c.overlapOf(p.Next, bytesPerToken, d); next.saved > o.saved {
			return next
		}
	}
	return o
}

func (c *cache) overlapOf(p *cachestate.Prompt, bytesPerToken float64, d *cachestate.Density) overlap {
	o := overlap{prompt: min(p.TotalTokens(bytesPerToken), maxPromptTokens)}
	if _, whole, ok := d.Tokens(p, -1); ok {
		o.prompt = min(whole, maxPromptTokens)
	}
	if c.blocks != nil {
		o.estimate = c.blocks.Estimate(p)
		o.keys, o.tokens, o.saved = o.estimate.Keys, o.estimate.Tokens, o.estimate.Weighted
		o.prompt = min(o.estimate.Known+int(float64(o.estimate.Rest)/bytesPerToken), maxPromptTokens)
		if o.estimate.Prompt > 0 {
			o.prompt, o.exact = o.estimate.Prompt, true
		}
	}
	if block := blockOf(c.blocks); block > 0 { // the last token is computed again
		most := max(o.prompt-1, 0) / block * block
		o.saved, o.tokens = min(o.saved, float64(most)), min(o.tokens, most)
	}
	if c.muted {
		return o
	}
	n := c.mirror.Overlap(p.Keys)
	if n > o.keys && (c.blocks == nil || !c.blocks.Known(p.Keys[n-1])) {
		sure := p.Tokens(n, bytesPerToken)
		if before, _, ok := d.Tokens(p, n-1); ok {
			sure = before
		}
		o = overlap{keys: n, sure: min(sure, o.prompt), prompt: o.prompt, exact: o.exact}
		if n < len(p.Keys) {
			o.rest = c.mirror.Rest(p.Keys[n-1])
		}
		o.tokens = min(o.sure+int(c.repeat*float64(o.rest)), o.prompt)
		o.saved = float64(o.tokens)
	}
	return o
}

func blockOf(b *cachestate.Blocks) int {
	if b == nil {
		return 0
	}
	return b.BlockTokens()
}

// repeated takes how many tokens were cached of a prompt that the mirror's overlap was made for.
func (c *cache) repeated(o overlap, cached int) {
	if o.rest > 0 {
		share := float64(cached-o.sure) / float64(o.rest)
		c.repeat += (min(max(share, 0), 1) - c.repeat) / 8
	}
}

func (c *cache) start(p *cachestate.Prompt, bytesPerToken float64) *cachestate.Lease {
	c.used = true
	return c.mirror.Start(p, bytesPerToken)
}

// fit takes what became known of the cache's size. A mirror's block size is for life, so it waits for the next life
// once a request was started.
func (c *cache) fit(capacityTokens int64, blockTokens int) {
	if blockTokens != c.blockTokens && !c.used {
		c.blockTokens = blockTokens
		c.mirror = c.newMirror(capacityTokens)
	}
	c.mirror.SetCapacity(capacityTokens)
}

// forgetMirror empties the mirror: the engine cleared its cache.
func (c *cache) forgetMirror(capacityTokens int64) {
	c.mute(true)
	c.muted = false
	c.mirror = c.newMirror(capacityTokens)
}

// Estimate is what an owner believes of one prompt.
type Estimate struct {
	Keys         int    `json:"keys"`          // prompt keys
	ResidentKeys int    `json:"resident_keys"` // leading keys that are resident
	Tokens       int    `json:"prompt_tokens"` // length of the prompt
	Overlap      int    `json:"overlap_tokens"`
	Exact        bool   `json:"exact"`  // the length is the engine's own: this very prompt was rendered before
	Source       string `json:"source"` // what the overlap rests on: events, mirror or none
}

// Estimate returns what the engine is believed to hold of a prompt now, without booking it.
func (a *Agent) Estimate(p *cachestate.Prompt) Estimate {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.expectLocked(&Admission{Prompt: p}, look(a.book, (*book.Book).BytesPerToken))
	e := Estimate{
		Keys: len(p.Keys), ResidentKeys: o.keys, Tokens: o.prompt, Overlap: min(o.tokens, o.prompt), Exact: o.exact,
		Source: "none",
	}
	switch {
	case o.estimate.Keys > 0:
		e.Source = "events"
	case o.keys > 0:
		e.Source = "mirror"
	}
	return e
}
