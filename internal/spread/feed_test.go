package spread

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// full is how many keys an engine's cache holds in these tests. Its whole digest takes more than wholeBytes.
const (
	full       = 2000
	wholeBytes = 5000
)

// whole reports whether a delta needs nothing before it.
func whole(d cachestate.Delta) bool { return d.From == 0 }

// owning is an owner whose engine's cache is full, and a peer that knows it.
func owning(w *world) (owner, peer *agent) {
	s := newSource("owner/e")
	s.change(full, full)
	owner, peer = w.add("owner", s), w.add("peer")
	w.meet(owner, peer)
	await(w.t, "the peer has the digest", time.Second, func() bool { return peer.agrees(owner) })
	return owner, peer
}

// churn changes an owner's caches for a while.
func churn(owner *agent, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, s := range owner.sources {
			s.change(2, full)
		}
	}
}

func TestNewPeerGetsTheAnnouncementAndWholeDigestsAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		kinds, deltas, size := peer.told(t, "owner")
		if !slices.Equal(kinds, []byte{frameHello, frameEngines, frameDigests}) || !whole(deltas[0]) || size < wholeBytes {
			t.Errorf("frames of kinds %v in %d bytes", kinds, size)
		}
		if peer.get(&peer.beats) == 0 {
			t.Error("its loads were not told")
		}
		if owner.get(&owner.pulled) != 0 {
			t.Error("something was pulled")
		}
	})
}

func TestEachPeriodTellsOneFrame(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		e, f := newSource("owner/e", cachestate.TierCPU), newSource("owner/f")
		e.change(1, full)
		owner, peer := w.add("owner", e, f), w.add("peer")
		w.meet(owner, peer)
		time.Sleep(time.Second)
		peer.told(t, "owner")
		time.Sleep(2 * time.Second) // of rest
		kinds, deltas, size := peer.told(t, "owner")
		if len(kinds) != 4 || len(deltas) != 4*3 || size > 4*150 {
			t.Errorf("%d frames with %d deltas in %d bytes", len(kinds), len(deltas), size)
		}
		for _, d := range deltas {
			if d.From != d.To {
				t.Errorf("%s changed from %d to %d", d.Engine, d.From, d.To)
			}
		}
		churn(owner, 10*time.Second)
		await(t, "they agree", 2*time.Second, func() bool { return peer.agrees(owner) })
		if owner.get(&owner.pulled) != 0 || owner.get(&owner.opened) != 1 {
			t.Errorf("%d pulls, %d feeds", owner.pulled, owner.opened)
		}
	})
}

func TestLostFeedIsOpenedAgainWithoutAWholeDigest(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		peer.told(t, "owner")
		for range 5 {
			owner.cut("peer")
			churn(owner, 2*time.Second)
		}
		await(t, "they agree", 2*time.Second, func() bool { return peer.agrees(owner) })
		_, deltas, size := peer.told(t, "owner")
		if slices.ContainsFunc(deltas, whole) || size > 15_000 {
			t.Errorf("%d bytes of %d deltas", size, len(deltas))
		}
		if owner.get(&owner.opened) != 6 || owner.get(&owner.pulled) != 0 {
			t.Errorf("%d feeds, %d pulls", owner.opened, owner.pulled)
		}
	})
}

func TestLatePeerGetsOneMergedDelta(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		peer.told(t, "owner")
		have, _ := peer.listener.Have(DigestID{"owner/e", cachestate.TierGPU, cachestate.DefaultGeometry()})
		w.part(owner, peer)
		churn(owner, 10*time.Second)
		if kinds, _, _ := peer.told(t, "owner"); len(kinds) != 0 {
			t.Fatalf("frames %v were told to a peer that is away", kinds)
		}
		w.meet(owner, peer)
		time.Sleep(300 * time.Millisecond) // less than a period
		_, deltas, size := peer.told(t, "owner")
		if len(deltas) == 0 || deltas[0].From != have.Number || deltas[0].To < have.Number+15 || size > wholeBytes {
			t.Errorf("%d deltas in %d bytes, the first %+v", len(deltas), size, deltas)
		}
		await(t, "they agree", time.Second, func() bool { return peer.agrees(owner) })
		if owner.get(&owner.pulled) != 0 {
			t.Error("something was pulled")
		}
	})
}

func TestPeerThatWasAwayTooLongGetsTheWholeDigest(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		peer.told(t, "owner")
		w.part(owner, peer)
		churn(owner, 2*time.Minute)
		w.meet(owner, peer)
		await(t, "they agree", 2*time.Second, func() bool { return peer.agrees(owner) })
		if _, deltas, _ := peer.told(t, "owner"); !whole(deltas[0]) || owner.get(&owner.pulled) != 0 {
			t.Errorf("%d pulls, the first delta is from %d", owner.pulled, deltas[0].From)
		}
	})
}

func TestWhatALostConnectionTookAlongIsPulled(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		peer.told(t, "owner")
		owner.set(&owner.mute, true)
		churn(owner, 2*time.Second)
		owner.set(&owner.mute, false)
		owner.cut("peer")
		await(t, "they agree", 2*time.Second, func() bool { return peer.agrees(owner) })
		if owner.get(&owner.pulled) != 1 {
			t.Errorf("%d pulls", owner.pulled)
		}
		if _, deltas, _ := peer.told(t, "owner"); slices.ContainsFunc(deltas, whole) {
			t.Error("a whole digest was told")
		}
	})
}

func TestPeerInAnotherLifeIsToldAll(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		w.part(owner, peer)
		peer.stop()
		again := w.add("peer")
		if again.instance++; again.instance == peer.instance {
			again.instance++
		}
		w.meet(owner, again)
		await(t, "the peer has the digest", time.Second, func() bool { return again.agrees(owner) })
		if owner.get(&owner.pulled) != 0 {
			t.Error("it was pulled")
		}
	})
}

func TestRestartedEngineIsFollowed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		for gen := range engine.Generation(5) {
			time.Sleep(730 * time.Millisecond)
			owner.sources[0].restart(2 + gen)
			owner.sources[0].change(100, full)
			if gen%2 == 0 { // else the edition comes before the word
				owner.teller.Changed()
			}
			await(t, "they agree", 2*time.Second, func() bool { return peer.agrees(owner) })
		}
		if n := owner.get(&owner.pulled); len(peer.doubts) != 0 || n != 0 {
			t.Errorf("%d pulls, doubts %q", n, peer.doubts)
		}
	})
}

func TestRestartOfAnEngineWhileAPeerIsAwayNeedsNoPull(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		w.part(owner, peer)
		owner.sources[0].restart(2)
		owner.teller.Changed()
		churn(owner, 5*time.Second) // its version is higher than that of the first life
		w.meet(owner, peer)
		await(t, "they agree", time.Second, func() bool { return peer.agrees(owner) })
		if n := owner.get(&owner.pulled); n != 0 {
			t.Errorf("%d pulls", n)
		}
	})
}

func TestChangeIsAnnouncedAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		time.Sleep(10 * time.Millisecond)
		s := owner.sources[0]
		s.mu.Lock()
		s.engine.MaxRunning = 77
		s.mu.Unlock()
		owner.teller.Changed()
		synctest.Wait()
		if got := peer.listener.View.Snapshot(time.Now())[0].MaxRunning; got != 77 {
			t.Errorf("the peer believes %d", got)
		}
	})
}

func TestPeerThatTakesNothingHoldsUpNobody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		stuck := w.add("stuck")
		stuck.set(&stuck.deaf, true)
		w.meet(owner, stuck)
		churn(owner, time.Minute)
		await(t, "they agree", 2*time.Second, func() bool { return peer.agrees(owner) })
		if n := owner.get(&owner.opened); n < 5 || n > 14 {
			t.Errorf("%d feeds in a minute, one of them to the peer that reads", n)
		}
		stuck.set(&stuck.deaf, false)
		await(t, "it has the digest when it reads", 30*time.Second, func() bool { return stuck.agrees(owner) })
	})
}

func TestPeersAreToldOneAfterTheOther(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.count = 1000
		owner := w.add("owner", newSource("owner/e"))
		var peers []*agent
		for i := range 20 {
			p := w.add(fmt.Sprint("peer", i))
			peers = append(peers, p)
			w.meet(owner, p)
		}
		time.Sleep(4900 * time.Millisecond)
		for _, p := range peers {
			p.told(t, "owner")
		}
		late := 0
		time.Sleep(720 * time.Millisecond) // half of a quarter period, from 5 s on
		for _, p := range peers {
			if kinds, _, _ := p.told(t, "owner"); len(kinds) == 0 {
				late++
			}
		}
		if late < 4 || late > 16 {
			t.Errorf("%d of %d peers are told in the second half", late, len(peers))
		}
		time.Sleep(640 * time.Millisecond)
		for _, p := range peers {
			p.told(t, "owner")
		}
		time.Sleep(3500 * time.Millisecond)
		for _, p := range peers {
			if kinds, _, _ := p.told(t, "owner"); len(kinds) != 0 {
				t.Errorf("%s is told after the quarter of the period: %v", p.name, kinds)
			}
		}
	})
}

func TestNewFeedOfAPeerReplacesTheLast(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		peer := w.add("peer")
		var ends []*stream
		for range 3 {
			near, far := newStreams()
			go func() { _ = peer.listener.ServeFeed("owner", far) }()
			if _, err := near.Write(feedOf()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			ends = append(ends, near)
		}
		for i, s := range ends {
			_, err := s.Write(feedOf())
			if open := err == nil; open != (i == len(ends)-1) {
				t.Errorf("feed %d: %v", i, err)
			}
		}
		ends[2].Cancel(0)
		synctest.Wait()
		if peer.listener.owners["owner"].feed != nil {
			t.Error("a feed that is over is remembered")
		}
	})
}

func TestLiarsVectorStartsNoMoreThanAPullAPeriod(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		id := DigestID{"owner/e", cachestate.TierGPU, cachestate.DefaultGeometry()}
		have, _ := peer.listener.Have(id)
		lie := versionVector(id.Engine, id.Tier, cachestate.Version{Generation: have.Generation, Number: 1 << 40})
		for range 1000 {
			peer.listener.MergeState(lie)
			time.Sleep(10 * time.Millisecond)
		}
		if n := owner.get(&owner.pulled); n < 15 || n > 27 {
			t.Errorf("%d pulls in 20 periods", n)
		}
	})
}

func TestPullsAreBounded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var sources []*source
		for i := range 40 {
			sources = append(sources, newSource(engine.MakeID("owner", fmt.Sprint(i))))
			sources[i].change(100, full)
		}
		owner, peer := w.add("owner", sources...), w.add("peer")
		w.meet(owner, peer)
		await(t, "they agree", time.Second, func() bool { return peer.agrees(owner) })
		owner.hold = make(chan struct{})
		var vector []byte
		for _, s := range sources {
			vector = append(vector, versionVector(s.engine.ID, cachestate.TierGPU, cachestate.Version{Generation: 1, Number: 99})...)
		}
		peer.listener.MergeState(vector)
		time.Sleep(time.Second)
		if n := owner.get(&owner.pulled); n != maxPullsOf {
			t.Errorf("%d pulls at a time, want %d", n, maxPullsOf)
		}
		close(owner.hold)
		await(t, "all are pulled", time.Second, func() bool { return owner.get(&owner.pulled) == len(sources) })
	})
}

func TestOnePeersPullsAreBoundedAtTheirOwner(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner := w.add("owner", newSource("owner/e"))
		var asking []*stream
		for range maxPulls {
			near, far := newStreams()
			go func() { _ = owner.teller.ServePull("liar", far) }()
			asking = append(asking, near)
		}
		synctest.Wait()
		_, far := newStreams()
		if err := owner.teller.ServePull("liar", far); !errors.Is(err, errBusy) {
			t.Errorf("one more is served: %v", err)
		}
		peer := w.add("peer")
		w.meet(owner, peer)
		await(t, "they agree", time.Second, func() bool { return peer.agrees(owner) })
		if err := peer.listener.pullNow(DigestID{"owner/e", cachestate.TierGPU, cachestate.DefaultGeometry()}); err != nil {
			t.Errorf("another's is not: %v", err)
		}
		for _, s := range asking {
			s.Cancel(0)
		}
		synctest.Wait()
		if len(owner.teller.pulls) != 0 {
			t.Errorf("pulls are remembered: %v", owner.teller.pulls)
		}
	})
}

func TestWrongDigestIsReplacedWhole(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		id := DigestID{"owner/e", cachestate.TierGPU, cachestate.DefaultGeometry()}
		want, _ := peer.listener.Have(id)
		other := cachestate.NewDigest(id.Engine, id.Tier, want.Generation, cachestate.DefaultGeometry())
		other.Add(99)
		wrong := other.Publish(time.Now())
		wrong.From, wrong.To = 0, want.Number
		peer.listener.Index.Remove(id.Engine)
		if got := peer.listener.Index.Apply(&wrong); got != cachestate.Applied {
			t.Fatalf("got %v", got)
		}
		await(t, "the right one is back", time.Second, func() bool { return peer.agrees(owner) })
		if n := owner.get(&owner.pulled); n != 2 {
			t.Errorf("%d pulls, want one for what is missing and one for all", n)
		}
	})
}

func TestAnotherDigestThanAskedForIsNotTaken(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := w.add("owner", newSource("owner/e"), newSource("owner/f")), w.add("peer")
		w.meet(owner, peer)
		await(t, "they agree", time.Second, func() bool { return peer.agrees(owner) })
		by := owner.teller.byName
		by["e"], by["f"] = by["f"], by["e"] // it mixes up what it is asked for
		if err := peer.listener.pullNow(DigestID{"owner/e", cachestate.TierGPU, cachestate.DefaultGeometry()}); !errors.Is(err, errOther) {
			t.Errorf("got %v", err)
		}
		if err := peer.listener.pullNow(DigestID{"owner/none", cachestate.TierGPU, cachestate.DefaultGeometry()}); err == nil {
			t.Error("a digest that is not there was pulled")
		}
	})
}

func TestOwnDigestIsThereAfterItWasDropped(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, _ := owning(w)
		owner.listener.Index.Remove("owner/e") // as the announcement of another generation does
		await(t, "it knows again", time.Second, func() bool { return owner.agrees(owner) })
	})
}

func TestAgentsWithAnotherKeySchemeKnowNothingOfEachOthersCaches(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, _ := owning(w)
		scheme := cachestate.Scheme{Version: 1, Seed: 5}
		stranger := w.addAs("stranger", func(tc *TellerConfig, lc *ListenerConfig) { tc.Scheme, lc.Scheme = scheme, scheme }, newSource("stranger/e"))
		w.meet(owner, stranger)
		time.Sleep(5 * time.Second)
		for _, a := range []*agent{owner, stranger} {
			if len(a.listener.Notes()) != 1 {
				t.Errorf("%s says %q", a.name, a.listener.Notes())
			}
		}
		if _, ok := owner.listener.Index.Have("stranger/e"); ok || stranger.agrees(owner) {
			t.Error("a digest of another scheme is in an index")
		}
		if owner.listener.View.StateOf("stranger", time.Now()) != forward.Fresh {
			t.Error("the stranger is not heard")
		}
	})
}

func TestForgottenPeersLeaveNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		nobody := func(string) bool { return false }
		owner.teller.Forget(nobody)
		if len(owner.teller.peers) != 1 {
			t.Error("a peer that is up was forgotten")
		}
		w.part(owner, peer)
		owner.teller.Forget(nobody)
		peer.listener.View.PeerReplaced("owner")
		peer.listener.Forget(nobody)
		if n := len(owner.teller.peers) + len(peer.listener.owners); n != 0 {
			t.Errorf("%d things are remembered", n)
		}
	})
}

func TestHeartbeatsComeInTurnAndAtOnceWhenAStateChanges(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner := w.add("owner", newSource("owner/e"))
		var peers []*agent
		for i := range 20 {
			p := w.add(fmt.Sprint("peer", i))
			peers = append(peers, p)
			w.meet(owner, p)
		}
		heard := func() (least, most, sum int) {
			least = 1 << 20
			for _, p := range peers {
				n := p.get(&p.beats)
				least, most, sum = min(least, n), max(most, n), sum+n
			}
			return least, most, sum
		}
		time.Sleep(10*time.Second + 600*time.Millisecond) // a turn begins at half seconds, because the owner was alone at first
		least, most, _ := heard()
		if least < 10 || most > 13 || least == most {
			t.Errorf("%d to %d heartbeats in ten periods and a part of a turn", least, most)
		}
		time.Sleep(400 * time.Millisecond) // the turn is over
		_, _, was := heard()
		owner.teller.Changed()
		synctest.Wait()
		if _, _, now := heard(); now-was != len(peers) {
			t.Errorf("%d heartbeats at once, want %d", now-was, len(peers))
		}
		_, _, was = heard()
		for range 100 {
			owner.teller.Changed()
			time.Sleep(10 * time.Millisecond)
		}
		if _, _, now := heard(); now-was < 3*len(peers) || now-was > 4*len(peers) {
			t.Errorf("%d heartbeats in a period of changes", now-was)
		}
	})
}
