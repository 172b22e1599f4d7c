package agreed

import (
	"cmp"
	"maps"
	"slices"
)

// Refusal is why the state machine did not take a command, in the closed list below; empty where it did.
type Refusal string

// The refusals.
const (
	RefusedConflict  Refusal = "conflict"  // another policy than BasedOn is in force
	RefusedUnknown   Refusal = "unknown"   // To, Model or Target names nothing
	RefusedPhase     Refusal = "phase"     // a change is not in the phase that this step needs
	RefusedOld       Refusal = "old"       // a version that is not above the present one
	RefusedTooLarge  Refusal = "too_large" // the state would be larger than MaxState allows
	RefusedMalformed Refusal = "malformed" // Validate finds a fault
)

// String returns the refusal as a sentence for an operator.
func (r Refusal) String() string {
	switch r {
	case RefusedConflict:
		return "another policy came into force meanwhile"
	case RefusedUnknown:
		return "what it names does not exist"
	case RefusedPhase:
		return "no change is under way in the phase that this step needs, or one is under way already"
	case RefusedOld:
		return "its version is not above the present one"
	case RefusedTooLarge:
		return "the agreed state would become too large: lift cordons or shorten the policy"
	case RefusedMalformed:
		return "it is malformed"
	}
	return string(r)
}

// Result is what came of a command.
type Result struct {
	Index  uint64 `json:"index"`           // of the command, or of the one that it repeats
	Repeat bool   `json:"repeat,omitzero"` // a command with this id was applied before, with this result
	// Refusal says why nothing changed; empty where the command is in force.
	Refusal Refusal `json:"refusal,omitzero"`
}

// first is the state before the first command.
func first() *State { return &State{Version: 1} }

// apply returns the state after command c at a raft index, and what came of it. It is a pure function, s does not
// change: every voter gets the same from the same. A repeat leaves the state as it is.
func apply(s *State, c *Command, index uint64) (*held, *State, Result) {
	if r, ok := recall(s.Remembered, c.ID); ok {
		return nil, s, Result{Index: r.Index, Repeat: true, Refusal: r.Refusal}
	}
	refusal := RefusedMalformed
	next := s
	if c.Validate() == nil {
		next, refusal = change(s, c, index)
	}
	if refusal == "" && tooLarge(next) {
		refusal = RefusedTooLarge
	}
	if refusal != "" {
		next = begin(s, c)
	}
	return finish(next, c, Result{Index: index, Refusal: refusal})
}

// change carries out c, which is valid by itself, on a copy of s.
func change(s *State, c *Command, index uint64) (*State, Refusal) {
	n, stamped := begin(s, c), *c
	stamped.Time = n.Time
	return n, changes[c.Kind](n, &stamped, index)
}

// begin returns a copy of s at the command's time, which never goes back, without what has run out by then.
func begin(s *State, c *Command) *State {
	n := *s
	if c.Time.After(n.Time) {
		n.Time = c.Time
	}
	n.Cordons = keep(s.Cordons, func(c Cordon) bool { return c.holds(n.Time) })
	n.Revoked = keep(s.Revoked, func(r Revoked) bool { return r.Until.IsZero() || n.Time.Before(r.Until) })
	return &n
}

// keep returns a new slice of those for which ok is true; nil for none, as decoding gives it.
func keep[T any](all []T, ok func(T) bool) []T {
	var kept []T
	for _, x := range all {
		if ok(x) {
			kept = append(kept, x)
		}
	}
	return kept
}

// finish records the command in a state that nobody else has yet. Malformed ids are not kept.
func finish(n *State, c *Command, r Result) (*held, *State, Result) {
	n.Index = r.Index
	if validID.MatchString(c.ID) {
		n.Remembered = remember(n.Remembered, remembered{c.ID, r.Index, r.Refusal})
	}
	h, err := hold(n)
	if err != nil {
		// What can be encoded was measured by tooLarge, and the window has its own room.
		panic(err)
	}
	return h, n, r
}

// tooLarge measures s without its window, which has room of its own.
func tooLarge(s *State) bool {
	content := *s
	content.Remembered = nil
	raw, err := encodeState(&content)
	return err != nil || len(raw) > maxContent
}

// changes says what each kind of command does to a copy of the state. Slices and maps of the copy are shared with the
// original: they are replaced, never written to.
var changes = map[Kind]func(*State, *Command, uint64) Refusal{
	KindPolicy:           setPolicy,
	KindRollback:         rollback,
	KindGeometry:         beginGeometry,
	KindGeometrySwitch:   switchGeometry,
	KindGeometryFinish:   finishGeometry,
	KindGeometryRollback: rollbackGeometry,
	KindScheme:           beginScheme,
	KindSchemeFinish:     finishScheme,
	KindSchemeRollback:   rollbackScheme,
	KindCordon:           cordon,
	KindUncordon:         uncordon,
	KindRevoke:           revoke,
	KindAPIKeys:          setAPIKeys,
	kindFound:            found,
	kindRaise:            raise,
	kindEpoch:            nextEpoch,
}

func setPolicy(n *State, c *Command, index uint64) Refusal {
	if c.BasedOn != 0 && c.BasedOn != n.Policy.Index {
		return RefusedConflict
	}
	if n.Policy.Text != "" {
		n.History = append(slices.Clip(n.History), n.Policy)
	}
	n.Policy = *c.Policy
	n.Policy.Index, n.Policy.Author, n.Policy.Time = index, c.Author, c.Time
	trimHistory(n)
	return ""
}

func trimHistory(n *State) {
	bytes, from := 0, len(n.History)
	for from > 0 && len(n.History)-from < maxHistory && bytes+len(n.History[from-1].Text) <= maxHistoryBytes {
		from--
		bytes += len(n.History[from].Text)
	}
	n.History = n.History[from:]
}

func rollback(n *State, c *Command, index uint64) Refusal {
	at := slices.IndexFunc(n.History, func(p Policy) bool { return p.Index == c.To })
	if at < 0 {
		return RefusedUnknown
	}
	old := n.History[at]
	return setPolicy(n, &Command{Policy: &old, BasedOn: c.BasedOn, Author: c.Author, Time: c.Time}, index)
}

func beginGeometry(n *State, c *Command, _ uint64) Refusal {
	if n.Geometry.Phase != PhaseStable {
		return RefusedPhase
	}
	n.Geometry.Next, n.Geometry.Phase, n.Geometry.Since = c.Geometry, PhaseBoth, c.Time
	return ""
}

func switchGeometry(n *State, c *Command, _ uint64) Refusal {
	if n.Geometry.Phase != PhaseBoth {
		return RefusedPhase
	}
	n.Geometry.Phase, n.Geometry.Since = PhaseSwitched, c.Time
	return ""
}

func finishGeometry(n *State, c *Command, _ uint64) Refusal {
	if n.Geometry.Phase != PhaseSwitched || n.Geometry.Next == nil {
		return RefusedPhase
	}
	n.Geometry.Current = *n.Geometry.Next
	return endGeometry(n, c)
}

func rollbackGeometry(n *State, c *Command, _ uint64) Refusal {
	if n.Geometry.Phase == PhaseStable {
		return RefusedPhase
	}
	return endGeometry(n, c)
}

func endGeometry(n *State, c *Command) Refusal {
	n.Geometry.Next, n.Geometry.Phase, n.Geometry.Since = nil, PhaseStable, c.Time
	return ""
}

func beginScheme(n *State, c *Command, _ uint64) Refusal {
	was, known := n.Schemes[c.Model]
	if was.Next != nil {
		return RefusedPhase
	}
	if !known && len(n.Schemes) >= maxSchemes {
		return RefusedTooLarge
	}
	was.Next = c.Scheme
	return setScheme(n, c, was)
}

func finishScheme(n *State, c *Command, _ uint64) Refusal {
	was := n.Schemes[c.Model]
	if was.Next == nil {
		return RefusedPhase
	}
	was.Current, was.Next = *was.Next, nil
	return setScheme(n, c, was)
}

func rollbackScheme(n *State, c *Command, _ uint64) Refusal {
	was := n.Schemes[c.Model]
	if was.Next == nil {
		return RefusedPhase
	}
	was.Next = nil
	return setScheme(n, c, was)
}

func setScheme(n *State, c *Command, s SchemeChange) Refusal {
	s.Since = c.Time
	n.Schemes = maps.Clone(n.Schemes)
	if n.Schemes == nil {
		n.Schemes = map[string]SchemeChange{}
	}
	n.Schemes[c.Model] = s
	return ""
}

func cordon(n *State, c *Command, _ uint64) Refusal {
	add := *c.Cordon
	add.Author, add.Since = c.Author, c.Time
	if !add.holds(c.Time) {
		return RefusedOld
	}
	n.Cordons = keep(n.Cordons, func(x Cordon) bool { return x.Target != add.Target })
	if len(n.Cordons) >= maxCordons {
		return RefusedTooLarge
	}
	n.Cordons = append(n.Cordons, add)
	slices.SortFunc(n.Cordons, func(a, b Cordon) int { return compareTargets(a.Target, b.Target) })
	return ""
}

func compareTargets(a, b Target) int {
	return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Agent, b.Agent))
}

func uncordon(n *State, c *Command, _ uint64) Refusal {
	left := keep(n.Cordons, func(x Cordon) bool { return x.Target != c.Target })
	if len(left) == len(n.Cordons) {
		return RefusedUnknown
	}
	n.Cordons = left
	return ""
}

func revoke(n *State, c *Command, _ uint64) Refusal {
	add := *c.Revoked
	add.Author = c.Author
	n.Revoked = keep(n.Revoked, func(x Revoked) bool { return x.Serial != add.Serial })
	if len(n.Revoked) >= maxRevoked {
		return RefusedTooLarge
	}
	n.Revoked = append(n.Revoked, add)
	slices.SortFunc(n.Revoked, func(a, b Revoked) int { return cmp.Compare(a.Serial, b.Serial) })
	return ""
}

func setAPIKeys(n *State, c *Command, _ uint64) Refusal {
	if c.APIKeys <= n.APIKeys {
		return RefusedOld
	}
	n.APIKeys = c.APIKeys
	return ""
}

// found names the group, once: two groups that meet know each other by it.
func found(n *State, c *Command, _ uint64) Refusal {
	if n.Group != "" {
		return RefusedOld
	}
	n.Group = c.Model
	return ""
}

func raise(n *State, c *Command, _ uint64) Refusal {
	if c.To <= uint64(n.Version) {
		return RefusedOld
	}
	n.Version = int(min(c.To, 1<<16))
	return ""
}

func nextEpoch(n *State, _ *Command, _ uint64) Refusal {
	n.Epoch++
	return ""
}

// newerThan reports whether c needs a state machine above version: such a command is not proposed until all voters know it,
// and a voter that meets one all the same must stop, since it cannot do what the others do.
func (c *Command) newerThan(version int) bool {
	_, known := changes[c.Kind]
	return c.Version > version || !known
}
