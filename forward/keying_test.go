package forward

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// otherSeed is what a key scheme is changed to.
var otherSeed = Keying{Scheme: cachestate.Scheme{Version: cachestate.SchemeVersion, Seed: 77}}

var longBody = `{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"system","content":"be brief"},` +
	`{"role":"user","content":"` + strings.Repeat("what is held. ", 2000) + `"}]}`

// twoForms is the keys of longBody as an ingress computes them.
func twoForms(t *testing.T, g *Ingress) *cachestate.Prompt {
	t.Helper()
	r, err := openai.Parse(openai.RouteChat, []byte(longBody))
	if err != nil {
		t.Fatal(err)
	}
	p := &cachestate.Prompt{Next: &cachestate.Prompt{}} // what a filled prompt leaves must not stay
	g.Key(r, "m", p)
	return p
}

func TestKeysOfBothSchemesAreComputedInTheWindow(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
		old := twoForms(t, a.Ingress)
		if want := keysOf(t, openai.RouteChat, longBody); cmp.Diff(want.Keys, old.Keys) != "" || old.Next != nil {
			t.Fatal("without a window the keys are not those of the configured scheme alone")
		}
		toolsFirst := Keying{Layout: openai.LayoutToolsFirst, HasLayout: true}
		for _, tt := range []struct {
			name    string
			windows map[string]KeyWindow
			window  bool
			alike   bool
		}{
			{"another seed", map[string]KeyWindow{"m": {Next: &otherSeed}}, true, true},
			{"for all models", map[string]KeyWindow{AnyModel: {Next: &otherSeed}}, true, true},
			{"another layout", map[string]KeyWindow{"m": {Next: &toolsFirst}}, true, false},
			{"of another model", map[string]KeyWindow{"n": {Next: &otherSeed}}, false, false},
			{"of all but this", map[string]KeyWindow{AnyModel: {Next: &otherSeed}, "m": {}}, false, false},
		} {
			a.SetKeyings(tt.windows)
			p := twoForms(t, a.Ingress)
			if cmp.Diff(old.Keys, p.Keys) != "" {
				t.Errorf("%s: the current keys changed", tt.name)
			}
			if tt.window != (p.Next != nil) || tt.window && (p.Next.Alike != tt.alike || len(p.Next.Keys) < 20 || p.Next.Keys[3] == p.Keys[3]) {
				t.Errorf("%s: next form %+v", tt.name, p.Next)
			}
		}
		a.SetKeyings(map[string]KeyWindow{"m": {Next: &otherSeed}})
		next := twoForms(t, a.Ingress).Next
		a.SetKeyings(map[string]KeyWindow{"m": {Current: otherSeed}})
		if p := twoForms(t, a.Ingress); cmp.Diff(next.Keys, p.Keys) != "" || p.Next != nil {
			t.Error("after the window the keys are not those of the next scheme alone")
		}
	})
}

// What an engine holds by either form of the keys draws the request, and its owner gets both.
func TestEitherFormFindsTheHolder(t *testing.T) {
	for name, form := range map[string]func(*cachestate.Prompt) *cachestate.Prompt{
		"old":  func(p *cachestate.Prompt) *cachestate.Prompt { return p },
		"next": func(p *cachestate.Prompt) *cachestate.Prompt { return p.Next },
	} {
		mesh2(t, func(t *testing.T, _ *memMesh, a, b *memAgent) {
			a.SetKeyings(map[string]KeyWindow{AnyModel: {Next: &otherSeed}})
			p := twoForms(t, a.Ingress)
			held := digestOf("b/0", 1, form(p).Keys...)
			a.Index.Apply(&held)
			var admitted *cachestate.Prompt
			e := b.Owner.engines["0"]
			e.Booker = spyBooker{b.book, func(ad Admission) { admitted = ad.Prompt.Clone() }}
			b.Owner.engines["0"] = e
			a.post(t.Context(), longBody)
			if e := a.last(); e.Engine != "b/0" || e.Outcome != outcomeOK {
				t.Errorf("%s: %s by %s, want b/0", name, e.Outcome, e.Engine)
			}
			if admitted == nil || admitted.Next == nil || cmp.Diff(p.Next.Keys, admitted.Next.Keys) != "" || cmp.Diff(p.Keys, admitted.Keys) != "" || !admitted.Next.Alike {
				t.Errorf("%s: the owner did not get both forms", name)
			}
			if share, n := a.Covered(AnyModel); n != 1 || name == "old" && share != 0 {
				t.Errorf("%s: %.2f covered of %d requests", name, share, n)
			}
		})
	}
}

// spyBooker shows what is admitted.
type spyBooker struct {
	*memBooker
	see func(Admission)
}

func (b spyBooker) Admit(ad Admission) (Booking, engine.Load, error) {
	b.see(ad)
	return b.memBooker.Admit(ad)
}

func TestCoveredIsOfTheLatestRequests(t *testing.T) {
	mesh2(t, func(t *testing.T, _ *memMesh, a, _ *memAgent) {
		a.cover("m", 100, 100)
		if share, n := a.Covered("m"); share != 0 || n != 0 {
			t.Errorf("outside of a window %.2f of %d requests", share, n)
		}
		window := map[string]KeyWindow{"m": {Next: &otherSeed}, AnyModel: {Next: &otherSeed}}
		a.SetKeyings(window)
		for range 600 {
			a.cover("m", 1000, 0)
		}
		for range 600 {
			a.cover("m", 1000, 5000)
		}
		a.cover("n", 100, 50)
		a.cover("o", 0, 700)
		if share, n := a.Covered("m"); n != 1200 || math.Abs(share-0.76) > 0.01 {
			t.Errorf("%.3f of %d requests, want about 0.76", share, n)
		}
		if share, n := a.Covered(AnyModel); n != 2 || share != 0.5 {
			t.Errorf("other models: %.3f of %d requests, want a half of 2", share, n)
		}
		a.SetKeyings(window) // something else of the state changed
		if _, n := a.Covered("m"); n != 1200 {
			t.Errorf("%d requests after the window was set again", n)
		}
		a.SetKeyings(map[string]KeyWindow{"m": {Current: otherSeed, Next: &Keying{}}})
		if _, n := a.Covered("m"); n != 0 {
			t.Errorf("%d requests of another window", n)
		}
	})
}
