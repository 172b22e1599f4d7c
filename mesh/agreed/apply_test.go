package agreed

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func policy(id, text string) *Command {
	return &Command{ID: id, Kind: KindPolicy, Author: "ann", Policy: &Policy{Text: text}}
}

// run applies commands from index 1, a second apart.
func run(t *testing.T, s *State, commands ...*Command) (*State, []Result) {
	t.Helper()
	var results []Result
	for i, c := range commands {
		if c.Time.IsZero() {
			c.Time = t0.Add(time.Duration(i) * time.Second)
		}
		var r Result
		_, s, r = apply(s, c, s.Index+1)
		results = append(results, r)
	}
	return s, results
}

func TestCommandsChangeTheState(t *testing.T) {
	a, b := Geometry{Bits: 1 << 20, Hashes: 7}, Geometry{Bits: 1 << 21, Hashes: 7}
	scheme := &Scheme{Version: 2, Seed: "s"}
	engine := Target{Engine: "g1/0"}
	tests := []struct {
		name string
		give []*Command
		want []Refusal
		look func(*State) any
		then any
	}{
		{
			"a policy replaces the other",
			[]*Command{policy("1", "a"), policy("2", "b")},
			[]Refusal{"", ""},
			func(s *State) any { return []any{s.Policy.Text, s.Policy.Index, s.History[0].Text} },
			[]any{"b", uint64(2), "a"},
		},
		{
			"a policy based on an old one is refused",
			[]*Command{policy("1", "a"), policy("2", "b"), {ID: "3", Kind: KindPolicy, Policy: &Policy{Text: "c"}, BasedOn: 1}},
			[]Refusal{"", "", RefusedConflict},
			func(s *State) any { return s.Policy.Text }, "b",
		},
		{
			"a rollback brings an old text under a new index",
			[]*Command{policy("1", "a"), policy("2", "b"), {ID: "3", Kind: KindRollback, To: 1, Author: "bob"}, {ID: "4", Kind: KindRollback, To: 9}},
			[]Refusal{"", "", "", RefusedUnknown},
			func(s *State) any { return []any{s.Policy.Text, s.Policy.Index, s.Policy.Author} },
			[]any{"a", uint64(3), "bob"},
		},
		{
			"a geometry changes in its phases",
			[]*Command{
				{ID: "1", Kind: KindGeometry, Geometry: &a},
				{ID: "2", Kind: KindGeometry, Geometry: &b},
				{ID: "3", Kind: KindGeometryFinish},
				{ID: "4", Kind: KindGeometrySwitch},
				{ID: "5", Kind: KindGeometryFinish},
			},
			[]Refusal{"", RefusedPhase, RefusedPhase, "", ""},
			func(s *State) any { return s.Geometry },
			GeometryChange{Current: a, Since: t0.Add(4 * time.Second)},
		},
		{
			"a geometry is taken back from either phase",
			[]*Command{
				{ID: "1", Kind: KindGeometry, Geometry: &a},
				{ID: "2", Kind: KindGeometryRollback},
				{ID: "3", Kind: KindGeometryRollback},
				{ID: "4", Kind: KindGeometry, Geometry: &b},
				{ID: "5", Kind: KindGeometrySwitch},
				{ID: "6", Kind: KindGeometryRollback},
			},
			[]Refusal{"", "", RefusedPhase, "", "", ""},
			func(s *State) any { return s.Geometry },
			GeometryChange{Since: t0.Add(5 * time.Second)},
		},
		{
			"a key scheme changes by a window",
			[]*Command{
				{ID: "1", Kind: KindSchemeFinish, Model: "m"},
				{ID: "2", Kind: KindScheme, Model: "m", Scheme: scheme},
				{ID: "3", Kind: KindScheme, Model: "m", Scheme: scheme},
				{ID: "4", Kind: KindSchemeFinish, Model: "m"},
			},
			[]Refusal{RefusedPhase, "", RefusedPhase, ""},
			func(s *State) any { return s.Schemes },
			map[string]SchemeChange{"m": {Current: *scheme, Since: t0.Add(3 * time.Second)}},
		},
		{
			"a key scheme is taken back",
			[]*Command{{ID: "1", Kind: KindScheme, Model: "m", Scheme: scheme}, {ID: "2", Kind: KindSchemeRollback, Model: "m"}},
			[]Refusal{"", ""},
			func(s *State) any { return s.Schemes["m"].Next == nil && s.Schemes["m"].Current.Version == 0 }, true,
		},
		{
			"a cordon replaces the one on its target and is lifted once",
			[]*Command{
				{ID: "1", Kind: KindCordon, Cordon: &Cordon{Target: engine, Reason: "x"}},
				{ID: "2", Kind: KindCordon, Cordon: &Cordon{Target: Target{Agent: "g2"}}},
				{ID: "3", Kind: KindCordon, Cordon: &Cordon{Target: engine, Reason: "y"}, Author: "ann"},
				{ID: "4", Kind: KindUncordon, Target: Target{Agent: "g2"}},
				{ID: "5", Kind: KindUncordon, Target: Target{Agent: "g2"}},
			},
			[]Refusal{"", "", "", "", RefusedUnknown},
			func(s *State) any { return s.Cordons },
			[]Cordon{{Target: engine, Reason: "y", Author: "ann", Since: t0.Add(2 * time.Second)}},
		},
		{
			"a cordon that has run out goes with the next command, and none begins that has",
			[]*Command{
				{ID: "1", Kind: KindCordon, Cordon: &Cordon{Target: engine, Expiry: t0.Add(time.Second)}},
				{ID: "2", Kind: KindCordon, Cordon: &Cordon{Target: engine, Expiry: t0}},
			},
			[]Refusal{"", RefusedOld},
			func(s *State) any { return s.Cordons }, []Cordon(nil),
		},
		{
			"revoked certificates are kept until they end",
			[]*Command{
				{ID: "1", Kind: KindRevoke, Revoked: &Revoked{Serial: "bb", Until: t0.Add(time.Second)}},
				{ID: "2", Kind: KindRevoke, Revoked: &Revoked{Serial: "cc"}},
				{ID: "3", Kind: KindRevoke, Revoked: &Revoked{Serial: "aa"}},
				{ID: "4", Kind: KindRevoke, Revoked: &Revoked{Serial: "A!"}},
			},
			[]Refusal{"", "", "", RefusedMalformed},
			func(s *State) any { return []string{s.Revoked[0].Serial, s.Revoked[1].Serial} },
			[]string{"aa", "cc"},
		},
		{
			"API-key sets only go forward",
			[]*Command{{ID: "1", Kind: KindAPIKeys, APIKeys: 4}, {ID: "2", Kind: KindAPIKeys, APIKeys: 4}},
			[]Refusal{"", RefusedOld},
			func(s *State) any { return s.APIKeys }, uint64(4),
		},
		{
			"a group is named once",
			[]*Command{{ID: "1", Kind: kindFound, Model: "g"}, {ID: "2", Kind: kindFound, Model: "h"}},
			[]Refusal{"", RefusedOld},
			func(s *State) any { return s.Group }, "g",
		},
		{
			"time never goes back",
			[]*Command{{ID: "1", Kind: kindEpoch, Time: t0.Add(time.Hour)}, policy("2", "a")},
			[]Refusal{"", ""},
			func(s *State) any { return s.Policy.Time }, t0.Add(time.Hour),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, results := run(t, first(), tt.give...)
			var got []Refusal
			for _, r := range results {
				got = append(got, r.Refusal)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("refusals (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.then, tt.look(s)); d != "" {
				t.Errorf("state (-want +got):\n%s", d)
			}
		})
	}
}

func TestARepeatDoesNothing(t *testing.T) {
	s, _ := run(t, first(), policy("1", "a"), policy("2", "b"))
	h, again, r := apply(s, policy("1", "a"), 3)
	if h != nil || again != s || r != (Result{Index: 1, Repeat: true}) {
		t.Errorf("apply(repeat) = %v, %v, want the same state and the first result", h, r)
	}
	for i := range windowSize {
		s, _ = run(t, s, &Command{ID: fmt.Sprint("api-", i), Kind: KindAPIKeys, APIKeys: uint64(i + 1)})
	}
	if len(s.Remembered) != windowSize {
		t.Errorf("%d commands are remembered, want %d", len(s.Remembered), windowSize)
	}
	if _, _, r := apply(s, policy("1", "a"), s.Index+1); r.Repeat {
		t.Error("a command outside of the window is still known")
	}
}

func TestStateKeepsWithinItsSize(t *testing.T) {
	cordonOf := func(i int) *Cordon {
		return &Cordon{Target: Target{Engine: fmt.Sprintf("%04d", i)}, Reason: strings.Repeat("y", maxReason)}
	}
	s := first()
	for !tooLarge(s) {
		s.Cordons = append(s.Cordons, *cordonOf(len(s.Cordons)))
	}
	s.Cordons = s.Cordons[:len(s.Cordons)-2]
	var got []Refusal
	for i := range 3 {
		h, next, r := apply(s, &Command{ID: fmt.Sprint(i), Kind: KindCordon, Cordon: cordonOf(1000 + i)}, uint64(i+1))
		if len(h.raw) > MaxState {
			t.Fatalf("state has %d bytes", len(h.raw))
		}
		s, got = next, append(got, r.Refusal)
	}
	if d := cmp.Diff([]Refusal{"", RefusedTooLarge, RefusedTooLarge}, got); d != "" {
		t.Errorf("refusals (-want +got):\n%s", d)
	}
	if _, _, r := apply(s, &Command{ID: "un", Kind: KindUncordon, Target: s.Cordons[0].Target}, s.Index+1); r.Refusal != "" {
		t.Errorf("a full state takes no uncordon: %q", r.Refusal)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	s := first()
	for i := range maxHistory + 5 {
		s, _ = run(t, s, policy(fmt.Sprint(i), "p"))
	}
	if len(s.History) != maxHistory || s.History[maxHistory-1].Index != s.Index-1 {
		t.Errorf("history has %d entries to index %d, want %d to %d", len(s.History), s.History[len(s.History)-1].Index, maxHistory, s.Index-1)
	}
	for i := range 3 {
		s, _ = run(t, s, policy(fmt.Sprint("long", i), strings.Repeat("z", maxPolicy)))
	}
	if len(s.History) != 1 {
		t.Errorf("history keeps %d long policies, want 1", len(s.History))
	}
}

func TestUnknownMembersAreKept(t *testing.T) {
	raw := `{"version":1,"index":3,"later":{"n":12345678901234567890,"a":1},"policy":{"text":"a","index":3,"style":"x"},` +
		`"cordons":[{"target":{"agent":"a"},"zone":"z"}],"geometry":{"next":{"bits":1,"hashes":1,"blocks":2},"phase":"both"}}`
	h, err := parseHeld([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	c, err := decodeCommand([]byte(`{"id":"4","kind":"cordon","cordon":{"target":{"engine":"e"},"rack":7}}`))
	if err != nil {
		t.Fatal(err)
	}
	_, s, _ := apply(h.state, c, 4)
	next, _, _ := apply(s, policy("5", "b"), 5)
	for _, want := range []string{
		`"later":{"a":1,"n":12345678901234567890}`, `"style":"x"`, `"zone":"z"`, `"rack":7`, `"blocks":2`,
	} {
		if !strings.Contains(string(next.raw), want) {
			t.Errorf("%s is lost from\n%s", want, next.raw)
		}
	}
}

func TestCommandsOfANewerVersionAreKnownAsSuch(t *testing.T) {
	tests := []struct {
		give Command
		want bool
	}{
		{Command{Kind: KindPolicy}, false},
		{Command{Kind: KindPolicy, Version: 1}, false},
		{Command{Kind: KindPolicy, Version: 2}, true},
		{Command{Kind: "zones"}, true},
	}
	for _, tt := range tests {
		if got := tt.give.newerThan(1); got != tt.want {
			t.Errorf("newerThan(1) of %+v = %v", tt.give, got)
		}
	}
}
