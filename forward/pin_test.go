package forward

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// idle returns n engines without load, of as many agents.
func idle(n int) []Candidate {
	all := make([]Candidate, n)
	for i := range all {
		all[i] = candidate(fmt.Sprintf("agent%03d/0", i), 0, 0, 0)
	}
	return all
}

// pinnedChoice is the engine that a session goes to.
func pinnedChoice(session string, all []Candidate) engine.ID {
	q := ask(40000)
	q.Strategy, q.Pin, q.Learned = StrategySession, pinOf(session), LearnedBy(all)
	ranked := Rank(q, Shortlist(q, all, nil), nil)
	return ranked[0].ID
}

func TestSessionsStayAndSpread(t *testing.T) {
	all := idle(10)
	counts := map[engine.ID]int{}
	for i := range 5000 {
		session := fmt.Sprint("session ", i)
		id := pinnedChoice(session, all)
		counts[id]++
		if again := pinnedChoice(session, all); again != id {
			t.Fatalf("%s went to %s, then to %s", session, id, again)
		}
	}
	for _, c := range all {
		if n := counts[c.ID]; n < 400 || n > 600 {
			t.Errorf("%s has %d sessions of 5000, want about 500", c.ID, n)
		}
	}
}

func TestEngineThatLeavesMovesOnlyItsOwnSessions(t *testing.T) {
	all := idle(10)
	fewer := slices.Delete(slices.Clone(all), 3, 4)
	for i := range 1000 {
		session := fmt.Sprint("session ", i)
		before, after := pinnedChoice(session, all), pinnedChoice(session, fewer)
		if before != all[3].ID && before != after {
			t.Fatalf("%s moved from %s to %s although %s left", session, before, after, all[3].ID)
		}
	}
}

func TestSessionMovesOnWhenItsEngineIsAboveTheBound(t *testing.T) {
	all := idle(4)
	first := pinnedChoice("s", all)
	at := slices.IndexFunc(all, func(c Candidate) bool { return c.ID == first })
	for inFlight, want := range map[int]bool{0: true, 4: true, 5: false, 100: false} { // mean + 4 is above 1.25 × mean here
		all[at].Load.InFlight = inFlight
		if got := pinnedChoice("s", all) == first; got != want {
			t.Errorf("with %d in flight and none elsewhere: stays %t, want %t", inFlight, got, want)
		}
	}
	for i := range all {
		all[i].Load.InFlight = 100
	}
	for inFlight, want := range map[int]bool{100: true, 132: true, 135: false} { // 1.25 × 109 is 136
		all[at].Load.InFlight = inFlight
		if got := pinnedChoice("s", all) == first; got != want {
			t.Errorf("with %d in flight and 100 elsewhere: stays %t, want %t", inFlight, got, want)
		}
	}
}

func TestSilentEngineOfASessionIsPassedOver(t *testing.T) {
	all := idle(4)
	first := pinnedChoice("s", all)
	at := slices.IndexFunc(all, func(c Candidate) bool { return c.ID == first })
	for name, change := range map[string]func(*Candidate){
		"suspect":  func(c *Candidate) { c.State = Suspect },
		"away":     func(c *Candidate) { c.State = Unreachable },
		"full":     func(c *Candidate) { c.Load.Flags = engine.Full },
		"cordoned": func(c *Candidate) { c.Load.Flags = engine.Draining },
	} {
		changed := slices.Clone(all)
		change(&changed[at])
		if pinnedChoice("s", changed) == first {
			t.Errorf("%s: it is chosen all the same", name)
		}
	}
}

func TestSuspectKeepsItsSessionsIfItAnswers(t *testing.T) {
	q := ask(40000)
	q.Pin = pinOf("s")
	all := idle(3 * pinned) // more than the short list holds: silence must not put it off that
	first := Shortlist(q, all, nil)[0].ID
	at := slices.IndexFunc(all, func(c Candidate) bool { return c.ID == first })
	all[at].State = Suspect
	short := Shortlist(q, all, nil)
	if ranked := Rank(q, short, nil); ranked[0].ID == first || ranked[pinned-1].ID != first {
		t.Errorf("got %v, want the suspect %s last while it has not answered", ranked, first)
	}
	short[0].Probed = true
	if ranked := Rank(q, short, nil); ranked[0].ID != first {
		t.Errorf("got %v, want %s first, which has answered", ranked, first)
	}
}

func TestPinnedAreAskedInTheirOrder(t *testing.T) {
	q := ask(40000)
	q.Pin = pinOf("s")
	short := Shortlist(q, idle(20), nil)
	if set := ProbeSet(q, short); len(short) != pinned || !slices.Equal(set, []int{0, 1, 2, 3}) {
		t.Fatalf("%d on the short list, %v are asked", len(short), set)
	}
	short[0].Load.InFlight = 50 // as it answers
	if ranked := Rank(q, short, nil); ranked[0].ID != short[1].ID || ranked[pinned-1].ID != short[0].ID {
		t.Errorf("got %v, want the overloaded one last", ranked)
	}
}

// TestBoundedLoadHoldsFromZeroUpward places requests one by one, with pins that all want the same engine or any, and
// takes some away again.
func TestBoundedLoadHoldsFromZeroUpward(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		all := idle(rapid.IntRange(1, 30).Draw(t, "engines"))
		sessions := rapid.IntRange(1, 40).Draw(t, "sessions")
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			learned := LearnedBy(all)
			id := pinnedChoice(fmt.Sprint(rng.IntN(sessions)), all)
			c := &all[slices.IndexFunc(all, func(c Candidate) bool { return c.ID == id })]
			c.Load.InFlight++
			if bound := max(1.25*learned.InFlight, learned.InFlight+4); float64(c.Load.InFlight) > bound {
				t.Fatalf("%s has %d in flight, above the bound of %v", id, c.Load.InFlight, bound)
			}
			if rng.IntN(4) == 0 {
				all[rng.IntN(len(all))].Load.InFlight = 0
			}
		}
	})
}
