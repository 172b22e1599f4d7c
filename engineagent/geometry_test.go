package engineagent

import (
	"slices"
	"testing"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// wantTwin compares each digest with one that is built of the keys that it must hold.
func wantTwin(t *testing.T, a *Agent, geometries []cachestate.Geometry, keys ...cachestate.Key) {
	t.Helper()
	a.Publish()
	all := a.Digests()
	if len(all) != len(geometries) {
		t.Fatalf("%d digests, want %d", len(all), len(geometries))
	}
	for _, d := range all {
		twin := cachestate.NewDigest(d.Engine, d.Tier, d.Generation, d.Geometry)
		for _, k := range keys {
			twin.Add(k)
		}
		twin.Publish(a.cfg.Now())
		if want := twin.Full(); !slices.Equal(d.Words, want.Words) || d.Keys != want.Keys || !slices.Contains(geometries, d.Geometry) {
			t.Errorf("the digest of %v has %d keys that are not the %d there are", d.Geometry, d.Keys, want.Keys)
		}
	}
}

// Keys of the mirror and of blocks are in the digests of a geometry that came later, and those that come and go after that
// and in the engine's next life.
func TestDigestsOfALaterGeometryHoldWhatTheEngineHolds(t *testing.T) {
	a := toldAgent(t, nil)
	taught, guessed, later := dense(prompt(1, 0, 0, 20)), dense(prompt(2, 0, 0, 10)), dense(prompt(3, 0, 0, 5))
	tokens := tokensOf(1, 400)
	serve := func(p *cachestate.Prompt) {
		b := mustAdmit(t, a, Admission{Prompt: p, QueuedAtProbe: -1, Route: openai.RouteChat, Model: "m"})
		b.FirstContent()
		b.Finish(Outcome{HasUsage: true, Usage: openai.Usage{PromptTokens: 400, CompletionTokens: 8}})
	}
	a.cache.teach(cachestate.Lesson{Prompt: taught, Tokens: tokens})
	(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokens)})
	serve(guessed)
	small, large := cachestate.DefaultGeometry(), cachestate.Geometry{Bits: 1 << 18, Hashes: 4}
	both := []cachestate.Geometry{small, large}
	a.SetGeometries(both)
	wantTwin(t, a, both, slices.Concat(taught.Keys, guessed.Keys)...)
	serve(later)
	(*sink)(a).Apply(0, []cachestate.BlockEvent{removedTokens(tokens, 100)})
	wantTwin(t, a, both, slices.Concat(guessed.Keys, later.Keys)...)
	a.SetGeometries(both[1:])
	wantTwin(t, a, both[1:], slices.Concat(guessed.Keys, later.Keys)...)
	a.mu.Lock()
	a.renewLocked()
	a.mu.Unlock()
	wantTwin(t, a, both[1:])
}

// A digest that takes fewer keys bounds the mirror.
func TestSmallerGeometryBoundsTheMirror(t *testing.T) {
	a := upAgent(t, nil)
	tiny := cachestate.Geometry{Bits: 64, Hashes: 2} // 8 keys
	b := mustAdmit(t, a, Admission{Prompt: prompt(1, 0, 0, 20), QueuedAtProbe: -1})
	b.FirstContent()
	b.Finish(Outcome{})
	a.SetGeometries([]cachestate.Geometry{cachestate.DefaultGeometry(), tiny})
	wantTwin(t, a, []cachestate.Geometry{cachestate.DefaultGeometry(), tiny}, prompt(1, 0, 0, 8).Keys...)
}

// inNextScheme is a prompt with another form, whose keys differ in one bit.
func inNextScheme(p *cachestate.Prompt) *cachestate.Prompt {
	next := p.Clone()
	for i := range next.Keys {
		next.Keys[i] ^= 1 << 40
	}
	next.Alike = true
	return next
}

// Within a window an owner keeps what its engine holds by both forms of the keys, whether the mirror or blocks tell of it, and
// after it by those that requests still come with.
func TestOwnerKeepsBothFormsWithinAWindow(t *testing.T) {
	for _, events := range []bool{false, true} {
		a := upAgent(t, nil)
		if events {
			a = toldAgent(t, nil)
		}
		geometries := []cachestate.Geometry{cachestate.DefaultGeometry()}
		old := func() *cachestate.Prompt { return dense(prompt(1, 0, 0, 20)) }
		next := inNextScheme(old())
		both := old()
		both.Next = next
		tokens := tokensOf(1, 400)
		serve := func(p *cachestate.Prompt) (overlap int) {
			b := mustAdmit(t, a, Admission{Prompt: p, QueuedAtProbe: -1, Route: openai.RouteChat, Model: "m"})
			b.FirstContent()
			b.Learn(tokens, 0)
			if events {
				(*sink)(a).Apply(0, []cachestate.BlockEvent{storedTokens(tokens)})
			}
			b.Finish(Outcome{HasUsage: true, Usage: openai.Usage{PromptTokens: 400, CompletionTokens: 8}})
			return b.Overlap()
		}
		if got := serve(old()); got != 0 {
			t.Errorf("events %v: overlap %d of a new prompt", events, got)
		}
		wantTwin(t, a, geometries, old().Keys...)
		if got := serve(both); got == 0 {
			t.Errorf("events %v: nothing is found in the window", events)
		}
		wantTwin(t, a, geometries, slices.Concat(old().Keys, next.Keys)...)
		if got := serve(next.Clone()); got == 0 {
			t.Errorf("events %v: nothing is found after the window", events)
		}
		wantTwin(t, a, geometries, next.Keys...)
	}
}
