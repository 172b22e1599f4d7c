package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/openai"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// When the window of a key scheme ends.
const (
	windowMost     = 30 * time.Minute
	windowCovered  = 0.95 // of what the old keys find the new ones find too
	windowLeast    = time.Minute
	windowRequests = 200 // that the comparison must be of
)

// keyingOf returns an agreed scheme as prompts are keyed by it; an error is one that this version cannot compute.
func keyingOf(s agreed.Scheme) (k forward.Keying, err error) {
	if s.Version != 0 || s.Seed != "" {
		k.Scheme = cachestate.DefaultScheme()
	}
	if s.Version != 0 && s.Version != cachestate.SchemeVersion {
		return k, fmt.Errorf("version %d of the key scheme cannot be computed, only %d", s.Version, cachestate.SchemeVersion)
	}
	if s.Seed != "" {
		if k.Scheme.Seed, err = strconv.ParseUint(s.Seed, 16, 64); err != nil {
			return k, errors.New("seed of a key scheme must be 1 to 16 hexadecimal digits")
		}
	}
	if s.Layout != "" {
		layout, err := strconv.ParseUint(s.Layout, 10, 16)
		if err != nil {
			return k, fmt.Errorf("layout (%.20q) must be a number below 2^16", s.Layout)
		}
		k.Layout, k.HasLayout = openai.Layout(layout), true
	}
	return k, nil
}

// windowOf returns how a model is keyed, false when its scheme cannot be computed. A next one that cannot be is left out.
func windowOf(c agreed.SchemeChange) (w forward.KeyWindow, usable bool, err error) {
	if w.Current, err = keyingOf(c.Current); err != nil || c.Next == nil {
		return w, err == nil, err
	}
	next, err := keyingOf(*c.Next)
	if err == nil {
		w.Next = &next
	}
	return w, true, err
}

// keyed is how this agent keys prompts, and why not as is agreed.
type keyed struct {
	mu      sync.Mutex
	windows map[string]forward.KeyWindow
	notes   []string
}

func (k *keyed) set(windows map[string]forward.KeyWindow, notes []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.windows, k.notes = windows, notes
}

func (k *keyed) window(model string) forward.KeyWindow {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.windows[model]
}

func (k *keyed) why() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.notes
}

// useSchemes keys prompts as is agreed. A model whose scheme cannot be computed stays as it was: its requests are routed by
// load as far as others have changed, which a note says.
func (n *Node) useSchemes(agreedOn map[string]agreed.SchemeChange) {
	windows, notes := map[string]forward.KeyWindow{}, []string{}
	for _, model := range slices.Sorted(maps.Keys(agreedOn)) {
		w, usable, err := windowOf(agreedOn[model])
		if err != nil {
			n.log.Warn("agreed key scheme cannot be used", "model", model, "err", err)
			notes = append(notes, fmt.Sprintf("prompts of model %s are keyed as before and not as the mesh agreed: %v; update this agent", model, err))
			if !usable {
				w = n.keyed.window(model)
			}
		}
		windows[model] = w
	}
	n.keyed.set(windows, notes)
	n.ingress.SetKeyings(windows)
}

// steerSchemes ends windows that are over. A proposal that fails is made again.
func (n *Node) steerSchemes(ctx context.Context, g decider) {
	schemes := g.State().Schemes
	for _, model := range slices.Sorted(maps.Keys(schemes)) {
		share, requests := n.ingress.Covered(model)
		if !windowOver(schemes[model], share, requests, time.Now()) {
			continue
		}
		n.log.Info("window of a key scheme ends", "model", model, "covered", share, "requests", requests)
		command := agreed.Command{Kind: agreed.KindSchemeFinish, Author: byItself, Model: model}
		if result, err := g.Propose(ctx, command); err != nil || result.Refusal != "" {
			n.log.Warn("window of a key scheme does not end", "model", model, "refusal", string(result.Refusal), "err", err)
		}
	}
}

// windowOver reports whether a window is to end: after half an hour, or when the leader's own ingress finds by the next keys
// what it finds by the current ones. Clients take any ingress, so what one sees is a sample of all.
func windowOver(c agreed.SchemeChange, share float64, requests int, now time.Time) bool {
	age := now.Sub(c.Since)
	return c.Next != nil && (age >= windowMost || age >= windowLeast && requests >= windowRequests && share >= windowCovered)
}
