package node

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/openai"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

func TestKeyingOfAgreedSchemes(t *testing.T) {
	seeded := forward.Keying{Scheme: cachestate.Scheme{Version: cachestate.SchemeVersion, Seed: 0x5eed}}
	laid := seeded
	laid.Layout, laid.HasLayout = openai.LayoutToolsFirst, true
	for _, tt := range []struct {
		scheme agreed.Scheme
		want   forward.Keying
		fault  string
	}{
		{agreed.Scheme{}, forward.Keying{}, ""},
		{agreed.Scheme{Version: 1}, forward.Keying{Scheme: cachestate.DefaultScheme()}, ""},
		{agreed.Scheme{Seed: "5eed"}, seeded, ""},
		{agreed.Scheme{Version: 1, Seed: "5eed", Layout: "1"}, laid, ""},
		{agreed.Scheme{Version: 2}, forward.Keying{}, "cannot be computed"},
		{agreed.Scheme{Seed: "seed"}, forward.Keying{}, "hexadecimal"},
		{agreed.Scheme{Layout: "65536"}, forward.Keying{}, "layout"},
	} {
		got, err := keyingOf(tt.scheme)
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%+v: %v, want a fault about %q", tt.scheme, err, tt.fault)
			}
		} else if err != nil || got != tt.want {
			t.Errorf("%+v: %+v, %v, want %+v", tt.scheme, got, err, tt.want)
		}
	}
}

func TestWindowEnds(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name     string
		next     bool
		age      time.Duration
		share    float64
		requests int
		want     bool
	}{
		{"there is none", false, time.Hour, 1, 1000, false},
		{"after half an hour", true, 30 * time.Minute, 0, 0, true},
		{"all covered", true, time.Minute, 0.95, 200, true},
		{"not all covered", true, 29 * time.Minute, 0.94, 5000, false},
		{"of few requests", true, 10 * time.Minute, 1, 199, false},
		{"before all have heard of it", true, 59 * time.Second, 1, 1000, false},
	} {
		c := agreed.SchemeChange{Since: now.Add(-tt.age)}
		if tt.next {
			c.Next = &agreed.Scheme{}
		}
		if got := windowOver(c, tt.share, tt.requests, now); got != tt.want {
			t.Errorf("%s: over %v", tt.name, got)
		}
	}
}

// What cannot be computed changes nothing, is said in a note, and does not keep other models from changing.
func TestSchemeThatCannotBeComputedIsLeftOut(t *testing.T) {
	n := newRig(t).node(newRig(t).config("a", "e"))
	known, newer := agreed.Scheme{Seed: "1"}, agreed.Scheme{Version: 9}
	n.useSchemes(map[string]agreed.SchemeChange{"m": {Current: known}})
	was := n.keyed.window("m")
	n.useSchemes(map[string]agreed.SchemeChange{
		"m": {Current: newer}, "n": {Current: known, Next: &newer}, "o": {Current: known, Next: &agreed.Scheme{Seed: "2"}},
	})
	if got := n.keyed.window("m"); got != was {
		t.Errorf("m is keyed by %+v, want as before", got)
	}
	if got := n.keyed.window("n"); got.Next != nil || got.Current != was.Current {
		t.Errorf("n is keyed by %+v", got)
	}
	if got := n.keyed.window("o"); got.Next == nil || got.Next.Scheme.Seed != 2 {
		t.Errorf("o is keyed by %+v", got)
	}
	if notes := strings.Join(n.Status().Notes, "\n"); strings.Count(notes, "version 9 of the key scheme cannot be computed") != 2 {
		t.Errorf("notes %s", notes)
	}
}

func TestChangesThatCannotBeAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		nodes, _, _ := r.voters(3)
		h := nodes[1].debugMux()
		for path, want := range map[string]int{
			"/debug/geometry?step=begin&bits=1000":                    http.StatusBadRequest,
			"/debug/geometry?step=begin&bits=1099511627776":           http.StatusBadRequest,
			"/debug/geometry?step=begin&bits=262144&hashes=300":       http.StatusBadRequest,
			"/debug/geometry?step=finish":                             http.StatusBadRequest,
			"/debug/geometry?step=rollback":                           http.StatusConflict,
			"/debug/scheme?step=begin&model=m&seed=x":                 http.StatusBadRequest,
			"/debug/scheme?step=begin&model=m&seed=12345678123456781": http.StatusBadRequest,
			"/debug/scheme?step=begin&seed=1":                         http.StatusBadRequest,
			"/debug/scheme?step=rollback&model=m":                     http.StatusConflict,
			"/debug/scheme?model=m":                                   http.StatusBadRequest,
		} {
			if w := change(t, h, path, "", nil); w.Code != want {
				t.Errorf("%s: %d %s, want %d", path, w.Code, strings.TrimSpace(w.Body.String()), want)
			}
		}
		var done ChangeAnswer
		change(t, h, "/debug/geometry?step=begin&bits=262144&author=me", "", &done)
		change(t, h, "/debug/scheme?step=begin&model=m&seed=1f", "", &done)
		r.await("all follow", 2*time.Second, func() bool {
			for _, n := range nodes {
				s := n.Status().Agreed
				if s.Geometry.Next != "262144 bits and 5 hashes" || len(s.Schemes) != 1 || !s.Schemes[0].Window || len(n.index.Geometries()) != 2 {
					return false
				}
			}
			return true
		})
		change(t, h, "/debug/geometry?step=rollback", "", &done)
		change(t, h, "/debug/scheme?step=rollback&model=m", "", &done)
		r.await("all are back", 2*time.Second, func() bool {
			for _, n := range nodes {
				if len(n.index.Geometries()) != 1 || n.Status().Agreed.Schemes[0].Window {
					return false
				}
			}
			return true
		})
	})
}
