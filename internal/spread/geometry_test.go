package spread

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
)

// larger is what a geometry is changed to.
func larger() cachestate.Geometry { return cachestate.Geometry{Bits: 1 << 18, Hashes: 5} }

// A mesh changes its geometry one agent after another, in each step as late as agents hear of agreed state, and under
// changes of residency: no digest is doubted, none is lost, and both are there when reading moves.
func TestGeometryChangesWithoutAGap(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		small, none := cachestate.DefaultGeometry(), cachestate.Geometry{}
		e := newSource("owner/e", cachestate.TierCPU)
		e.change(1500, full)
		owner, peer := w.add("owner", e), w.add("peer")
		w.meet(owner, peer)
		await(t, "they agree", time.Second, func() bool { return peer.agrees(owner) })
		for _, step := range []struct {
			read, spare cachestate.Geometry
			publish     []cachestate.Geometry
		}{
			{small, larger(), []cachestate.Geometry{small, larger()}},
			{larger(), small, []cachestate.Geometry{small, larger()}},
			{larger(), none, []cachestate.Geometry{larger()}},
		} {
			e.use(step.publish...)
			owner.teller.Index.Use(step.read, step.spare)
			time.Sleep(1700 * time.Millisecond)
			e.change(100, full)
			peer.listener.Index.Use(step.read, step.spare)
			time.Sleep(time.Second)
			await(t, "they agree", 500*time.Millisecond, func() bool { return peer.agrees(owner) })
			for _, d := range e.Digests() {
				if index := peer.listener.Index.TierIn(d.Geometry, d.Tier); index.Keys(d.Engine) != len(e.keys) {
					t.Errorf("%v, tier %v: %d keys", d.Geometry, d.Tier, index.Keys(d.Engine))
				}
			}
			if got := owner.teller.Index.Geometries(); len(got) != len(step.publish) {
				t.Errorf("the owner takes %v", got)
			}
		}
		if len(peer.doubts) > 0 {
			t.Errorf("doubts of a mesh that changes: %v", peer.doubts)
		}
		if n := owner.get(&owner.pulled); n > 2 { // each tier of the geometry that the peer took later than it was told
			t.Errorf("%d pulls", n)
		}
	})
}

// A change that is taken back leaves what it was.
func TestGeometryRollsBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		small := cachestate.DefaultGeometry()
		owner, peer := owning(w)
		e := owner.sources[0]
		for range 2 {
			e.use(small, larger())
			peer.listener.Index.Use(small, larger())
			await(t, "both are there", time.Second, func() bool { return peer.agrees(owner) })
			e.use(small)
			peer.listener.Index.Use(small, cachestate.Geometry{})
			e.change(10, full)
			await(t, "the first is there", time.Second, func() bool { return peer.agrees(owner) })
		}
		if _, ok := peer.listener.Have(DigestID{"owner/e", cachestate.TierGPU, larger()}); ok {
			t.Error("the other one is still here")
		}
		peer.listener.Forget(func(string) bool { return true })
		if n := len(peer.listener.DigestAges(time.Now())); n != 1 {
			t.Errorf("ages of %d digests, want one", n)
		}
	})
}

func TestDigestsOfOtherGeometriesAloneAreDoubted(t *testing.T) {
	h := newHearer(t)
	both, one := newSource("sender/both"), newSource("sender/one")
	both.use(cachestate.DefaultGeometry(), larger())
	one.use(larger())
	sender := newSender(both, one)
	_ = h.serve("sender", sender.now().announcement.frame, mustLead(sender))
	if want := []string{"sender sender/one " + forward.DoubtGeometry}; !slices.Equal(h.doubts, want) {
		t.Errorf("doubts %q, want %q", h.doubts, want)
	}
}

func mustLead(t *Teller) []byte {
	frames, _ := t.lead(nil)
	return frames
}

// A version that knows one geometry asks without naming it.
func TestPullWithoutGeometryIsOfTheDefaultOne(t *testing.T) {
	s := newSource("sender/e")
	s.change(50, full)
	s.use(larger(), cachestate.DefaultGeometry())
	sender := newSender(s)
	for _, tt := range []struct {
		request []byte
		want    cachestate.Geometry
	}{
		{[]byte("\x01e\x00\x01\x00"), cachestate.DefaultGeometry()},
		{cachestate.AppendGeometry([]byte("\x01e\x00\x01\x00"), larger()), larger()},
	} {
		answer := &recorded{Reader: bytes.NewReader(tt.request)}
		if err := sender.ServePull("peer", answer); err != nil {
			t.Fatal(err)
		}
		if d, _, err := cachestate.ParseDelta(answer.written.Bytes(), "sender", tt.want); err != nil || d.Keys != 50 {
			t.Errorf("%v: %d keys, %v", tt.want, d.Keys, err)
		}
	}
}
