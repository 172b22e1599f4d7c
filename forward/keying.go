package forward

import (
	"maps"
	"sync"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// Keying is how prompts of a model are keyed.
type Keying struct {
	Scheme    cachestate.Scheme // zero: Config.Scheme
	Layout    openai.Layout
	HasLayout bool // Layout stands; else what the model's engines announce
}

// KeyWindow is a model's keying and, within the window of a change, the one that prompts are keyed by besides.
type KeyWindow struct {
	Current Keying
	Next    *Keying
}

// AnyModel stands for all models that are not named.
const AnyModel = "*"

// keyings are how models are keyed, and how far a window has come. Requests read the windows without a lock.
type keyings struct {
	windows map[string]KeyWindow // never changed

	mu      sync.Mutex
	covered map[string]*covered // by model in a window
}

// covered compares what is found of a model's prompts by the next keys with what is found by the current ones.
type covered struct {
	requests   int
	old, share float64 // content bytes found by the current keys, and of them by the next ones; the older the less
}

// coverKeep is what a request's share in the comparison is worth after the next: the mean is over some 500 requests.
const coverKeep = 1 - 1.0/512

// SetKeyings says how models are keyed that are keyed in another way than by Config.Scheme and what their engines announce,
// by canonical name or AnyModel, for requests to come. The schemes must be computable. A window that stays goes on.
func (g *Ingress) SetKeyings(windows map[string]KeyWindow) {
	now := g.keyings.Load()
	next := &keyings{windows: maps.Clone(windows), covered: map[string]*covered{}}
	now.mu.Lock()
	for model, c := range now.covered {
		if same(now.of(model), next.of(model)) {
			next.covered[model] = c
		}
	}
	now.mu.Unlock()
	g.keyings.Store(next)
}

// same reports whether two windows compare the same keyings.
func same(a, b KeyWindow) bool {
	return a.Current == b.Current && a.Next != nil && b.Next != nil && *a.Next == *b.Next
}

func (k *keyings) of(model string) KeyWindow {
	if w, named := k.windows[model]; named {
		return w
	}
	return k.windows[AnyModel]
}

// Key fills p with the keys of a request for a model, in both forms within a window.
func (g *Ingress) Key(r *openai.Request, model string, p *cachestate.Prompt) {
	w, announced := g.keyings.Load().of(model), openai.Layout(g.View.Layout(model))
	layout := w.Current.layout(announced)
	w.Current.scheme(g.Scheme).Prompt(r.Walk(model, layout), p)
	p.Next = nil
	if w.Next == nil {
		return
	}
	next := w.Next.layout(announced)
	p.Next = &cachestate.Prompt{Alike: next == layout}
	w.Next.scheme(g.Scheme).Prompt(r.Walk(model, next), p.Next)
}

func (k *Keying) scheme(otherwise cachestate.Scheme) cachestate.Scheme {
	if k.Scheme == (cachestate.Scheme{}) {
		return otherwise
	}
	return k.Scheme
}

func (k *Keying) layout(announced openai.Layout) openai.Layout {
	if k.HasLayout {
		return k.Layout
	}
	return announced
}

// cover notes how much of one prompt was found by both forms of its keys.
func (g *Ingress) cover(model string, old, next float64) {
	k := g.keyings.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.covered[model]
	if c == nil {
		if k.of(model).Next == nil {
			return
		}
		c = &covered{}
		k.covered[model] = c
	}
	c.requests++
	c.old, c.share = c.old*coverKeep+old, c.share*coverKeep+min(old, next)
}

// Covered returns how far a window has come, of a model or of AnyModel: of what digests held of prompts by their current keys,
// the share that they held by the next ones too, and of how many of this agent's requests. The latest count most.
func (g *Ingress) Covered(window string) (share float64, requests int) {
	k := g.keyings.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	var sum covered
	for model, c := range k.covered {
		if _, named := k.windows[model]; model == window || window == AnyModel && !named {
			sum.requests += c.requests
			sum.old += c.old
			sum.share += c.share
		}
	}
	if sum.old == 0 {
		return 0, sum.requests
	}
	return sum.share / sum.old, sum.requests
}
