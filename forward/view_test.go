package forward

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

func testView(t *testing.T) (*View, *cachestate.Tiers, time.Time) {
	t.Helper()
	x := cachestate.NewTiers(cachestate.DefaultGeometry())
	return NewView("self", x), x, time.Unix(1000, 0)
}

func described(id engine.ID, gen engine.Generation) engine.Engine {
	return engine.Engine{ID: id, Generation: gen, Models: []engine.Model{{Name: "m", Aliases: []string{"alias"}}}}
}

func report(seq uint64, queued float64) Report {
	return Report{Period: 500 * time.Millisecond, Loads: []EngineLoad{{"0", engine.Load{Seq: seq, QueuedSeconds: queued}}}}
}

func TestSilentAgentIsSuspectAndThenUnreachable(t *testing.T) {
	v, _, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	v.Hear("b", report(1, 0), now)
	for _, tt := range []struct {
		after time.Duration
		want  State
	}{{0, Fresh}, {749 * time.Millisecond, Fresh}, {751 * time.Millisecond, Suspect}, {1501 * time.Millisecond, Suspect}, {deadAfter, Suspect}, {deadAfter + 1, Unreachable}} {
		if got := v.StateOf("b", now.Add(tt.after)); got != tt.want {
			t.Errorf("after %v: got %v, want %v", tt.after, got, tt.want)
		}
	}
	if v.Usable(now.Add(deadAfter)) != 1 {
		t.Error("the engine of an agent that is silent for a moment does not count")
	}
}

func TestAFewLostHeartbeatsAreNoDeath(t *testing.T) {
	v, _, now := testView(t)
	r := report(1, 0)
	r.Period = time.Second
	v.Hear("b", r, now)
	for after, want := range map[time.Duration]State{4 * time.Second: Suspect, 4*time.Second + 1: Unreachable} {
		if got := v.StateOf("b", now.Add(after)); got != want {
			t.Errorf("after %v of heartbeats a second: got %v, want %v", after, got, want)
		}
	}
}

func TestSilentAgentIsUnreachableOnceItMissed(t *testing.T) {
	for _, silent := range []time.Duration{800 * time.Millisecond, 1900 * time.Millisecond} { // when it is asked
		v, _, heard := testView(t)
		v.Announce("b", []engine.Engine{described("b/0", 1)}, heard)
		v.Hear("b", report(1, 0), heard)
		asked := heard.Add(silent)
		missed := asked.Add(acceptFloor)
		v.Missed("b", asked, missed)
		if got := v.StateOf("b", heard.Add(1499*time.Millisecond)); got != Suspect {
			t.Errorf("one miss and less than 3 periods: got %v, want suspect", got)
		}
		later := heard.Add(max(1501*time.Millisecond, missed.Sub(heard)))
		if c, _ := v.Candidate("b/0", later); c.State != Unreachable || !c.Away || v.Usable(later) != 0 {
			t.Errorf("missed after %v: got %v and away %t, want it unreachable and waited for", silent, c.State, c.Away)
		}
		v.Hear("b", report(2, 0), later)
		if c, _ := v.Candidate("b/0", later); c.State != Fresh || c.Away {
			t.Errorf("heard again: got %v, want fresh", c.State)
		}
	}
}

func TestMissesCountUntilHeard(t *testing.T) {
	v, _, now := testView(t)
	v.Hear("b", report(1, 0), now)
	for _, want := range []State{Suspect, Unreachable} {
		now = now.Add(time.Millisecond)
		v.Missed("b", now, now)
		if got := v.StateOf("b", now); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	v.SetLoad("b/0", engine.Load{Seq: 2}, now)
	if got := v.StateOf("b", now); got != Fresh {
		t.Errorf("after an accept: got %v, want fresh", got)
	}
}

func TestOlderLoadNeverReplacesNewer(t *testing.T) {
	v, _, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	v.Hear("b", report(7, 3), now)
	v.Hear("b", report(6, 1), now)
	if c, _ := v.Candidate("b/0", now); c.Load.QueuedSeconds != 3 {
		t.Errorf("got %v s queued, want 3", c.Load.QueuedSeconds)
	}
}

func TestOwnDispatchesCountUntilTheNextNews(t *testing.T) {
	v, _, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	v.Hear("b", report(1, 1), now)
	v.Dispatch("b/0", 2)
	if c, _ := v.Candidate("b/0", now); c.Load.QueuedSeconds != 3 || c.Load.InFlight != 1 {
		t.Errorf("got %v s and %d in flight, want 3 and 1", c.Load.QueuedSeconds, c.Load.InFlight)
	}
	v.Hear("b", report(2, 1.5), now)
	if c, _ := v.Candidate("b/0", now); c.Load.QueuedSeconds != 1.5 || c.Load.InFlight != 0 {
		t.Errorf("got %v s and %d in flight, want 1.5 and 0", c.Load.QueuedSeconds, c.Load.InFlight)
	}
}

func TestQueueDrainsWithTime(t *testing.T) {
	v, _, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	v.Hear("b", report(1, 1), now)
	if c, _ := v.Candidate("b/0", now.Add(400*time.Millisecond)); c.Load.QueuedSeconds != 0.6 {
		t.Errorf("got %v s queued, want 0.6", c.Load.QueuedSeconds)
	}
}

func digestOf(id engine.ID, gen engine.Generation, keys ...cachestate.Key) cachestate.Delta {
	d := cachestate.NewDigest(id, cachestate.TierGPU, gen, cachestate.DefaultGeometry())
	for _, k := range keys {
		d.Add(k)
	}
	return d.Publish(time.Unix(1000, 0))
}

func TestRestartedEngineLosesItsDigestAtOnce(t *testing.T) {
	v, x, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	d := digestOf("b/0", 1, 11, 12)
	x.Apply(&d)
	v.Announce("b", []engine.Engine{described("b/0", 2)}, now)
	if _, ok := x.Have("b/0"); ok {
		t.Error("the digest of the earlier generation is still there")
	}
	d = digestOf("b/0", 2, 11)
	x.Apply(&d)
	v.Announce("b", []engine.Engine{described("b/0", 2)}, now)
	if _, ok := x.Have("b/0"); !ok {
		t.Error("the digest of this generation is gone")
	}
}

func TestEngineNoLongerAnnouncedIsForgotten(t *testing.T) {
	v, x, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1), described("b/1", 1)}, now)
	d := digestOf("b/1", 1, 11)
	x.Apply(&d)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	if _, ok := x.Have("b/1"); ok || len(v.Candidates(nil, "m", now)) != 1 {
		t.Error("an engine that its owner no longer names is still known")
	}
}

func TestPeerDownEndsItsStreamsAndItIsUsedAgainWhenHeard(t *testing.T) {
	v, _, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	alive, cause := v.Alive("b"), errors.New("gone")
	v.PeerDown("b", cause)
	if !errors.Is(context.Cause(alive), cause) || v.StateOf("b", now) != Unreachable {
		t.Errorf("got cause %v and state %v", context.Cause(alive), v.StateOf("b", now))
	}
	v.PeerUp("b", now)
	if v.Alive("b").Err() != nil || v.StateOf("b", now) != Fresh {
		t.Error("the peer is not used again")
	}
}

func TestTickEndsStreamsOfSilentPeers(t *testing.T) {
	for period, silence := range map[time.Duration]time.Duration{
		100 * time.Millisecond: silenceOfDead, 500 * time.Millisecond: silenceOfDead, time.Second: 6 * time.Second, 2 * time.Second: 12 * time.Second,
	} {
		v, _, now := testView(t)
		v.PeerUp("b", now)
		v.Hear("b", Report{Period: period}, now)
		alive := v.Alive("b")
		v.Tick(now.Add(silence))
		if alive.Err() != nil {
			t.Errorf("period %v: given up too early", period)
		}
		v.Tick(now.Add(silence + time.Millisecond))
		if !errors.Is(context.Cause(alive), errPeerSilent) {
			t.Errorf("period %v: got cause %v", period, context.Cause(alive))
		}
	}
}

// TestStreamOutlivesLostHeartbeats: nothing else is heard of an agent whose engine works on a long prompt.
func TestStreamOutlivesLostHeartbeats(t *testing.T) {
	v, _, now := testView(t)
	v.PeerUp("b", now)
	alive := v.Alive("b")
	for beat := range 100 {
		if beat%beatsOfDead == 0 { // the others are lost
			v.Hear("b", Report{Period: time.Second}, now)
		}
		for range 4 {
			now = now.Add(time.Second / 4)
			v.Tick(now)
		}
	}
	if alive.Err() != nil {
		t.Errorf("given up though one heartbeat in %d comes: %v", beatsOfDead, context.Cause(alive))
	}
}

func TestSignOfLifeEndsASilence(t *testing.T) {
	v, _, now := testView(t)
	v.PeerUp("b", now)
	v.Hear("b", report(1, 0), now)
	alive, changed := v.Alive("b"), v.Changed()
	now = now.Add(silenceOfDead)
	v.Heard("b", now)
	select {
	case <-changed:
	default:
		t.Error("who waits for the agent is not woken")
	}
	if got := v.StateOf("b", now.Add(700*time.Millisecond)); got != Fresh {
		t.Errorf("got %v, want fresh", got)
	}
	v.Tick(now.Add(silenceOfDead))
	if alive.Err() != nil {
		t.Error("streams of a living agent are given up")
	}
	v.Tick(now.Add(silenceOfDead + time.Millisecond))
	if alive.Err() == nil {
		t.Error("silent again, and its streams go on")
	}
}

func TestSignOfLifeIsNoAnswer(t *testing.T) {
	v, _, now := testView(t)
	v.Hear("b", report(1, 0), now)
	for _, want := range []State{Suspect, Unreachable} {
		asked, missed := now.Add(10*time.Millisecond), now.Add(60*time.Millisecond)
		v.Heard("b", now.Add(30*time.Millisecond))
		v.Missed("b", asked, missed)
		v.Heard("b", missed)
		if got := v.StateOf("b", missed); got != want {
			t.Errorf("got %v, want %v: it does not accept, whatever else comes from it", got, want)
		}
		now = now.Add(100 * time.Millisecond)
	}
}

func TestAgentThatStaysAwayIsForgotten(t *testing.T) {
	v, x, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	d := digestOf("b/0", 1, 11)
	x.Apply(&d)
	v.Tick(now.Add(forgetAgent))
	if len(v.Snapshot(now)) != 1 {
		t.Error("forgotten too early")
	}
	v.Tick(now.Add(forgetAgent + time.Second))
	if _, ok := x.Have("b/0"); ok || len(v.Snapshot(now)) != 0 {
		t.Error("an agent that is gone for good is still known")
	}
}

func TestModelsAreFoundByEveryName(t *testing.T) {
	v, _, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1)}, now)
	for _, name := range []string{"m", "alias"} {
		if canonical, ok := v.Canonical(name); !ok || canonical != "m" {
			t.Errorf("%s: got %q, %t", name, canonical, ok)
		}
	}
	if _, ok := v.Canonical("other"); ok {
		t.Error("an unknown model has a canonical name")
	}
}

func TestCordonedEngineIsLeftOut(t *testing.T) {
	v, _, now := testView(t)
	v.Announce("b", []engine.Engine{described("b/0", 1), described("b/1", 1)}, now)
	v.Hear("b", Report{Period: time.Second, Loads: []EngineLoad{{"0", engine.Load{Seq: 1}}, {"1", engine.Load{Seq: 1}}, {"2", engine.Load{Seq: 1}}}}, now)
	v.SetCordons(func(id engine.ID) bool { return id == "b/1" || id == "b/2" })
	eligible := func() (n int) {
		for _, c := range v.Candidates(nil, "m", now) {
			if c.Eligible() {
				n++
			}
		}
		return n
	}
	if got := eligible(); got != 1 || v.Usable(now) != 1 {
		t.Errorf("%d engines can be chosen and %d used, want 1", got, v.Usable(now))
	}
	v.Announce("b", []engine.Engine{described("b/0", 1), described("b/1", 1), described("b/2", 1)}, now)
	if got := eligible(); got != 1 {
		t.Errorf("one that is announced later: %d can be chosen, want 1", got)
	}
	for _, s := range v.Snapshot(now) {
		if s.Cordoned != (s.ID != "b/0") || s.Load.Flags != 0 {
			t.Errorf("%s: %+v", s.ID, s)
		}
	}
	changed := v.Changed()
	v.SetCordons(func(engine.ID) bool { return false })
	select {
	case <-changed:
	default:
		t.Error("nobody was told that an engine can be used again")
	}
	if got := eligible(); got != 3 {
		t.Errorf("%d can be chosen afterwards, want 3", got)
	}
}
