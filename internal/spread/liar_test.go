package spread

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// A peer may open thousands of streams: one that says nothing, or announces a hello of any length, must hold none of them.
func TestFeedWithoutAHelloTakesNoPlace(t *testing.T) {
	h := newHearer(t)
	long := binary.AppendUvarint(nil, maxFrame)
	rest := bytes.NewReader(append(append(long, frameHello), make([]byte, maxFrame)...))
	if err := h.ServeFeed("liar", &recorded{Reader: rest}); err == nil || rest.Len() < maxFrame-firstRead {
		t.Errorf("%d bytes of a hello were read: %v", maxFrame-rest.Len(), err)
	}
	inWorld(t, func(t *testing.T, w *world) {
		peer := w.add("peer")
		_, far := newStreams()
		ended := false
		go func() {
			_ = peer.listener.ServeFeed("liar", far)
			ended = true
		}()
		time.Sleep(2 * helloPatience)
		if synctest.Wait(); !ended {
			t.Error("a feed without a word is still waited for")
		}
		far.Cancel(0)
	})
}

// Once its hello is there a feed may be silent for as long as it likes.
func TestSilentFeedStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		peer := w.add("peer")
		near, far := newStreams()
		go func() { _ = peer.listener.ServeFeed("owner", far) }()
		if _, err := near.Write(feedOf()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * helloPatience)
		if _, err := near.Write(feedOf()); err != nil {
			t.Errorf("it was ended: %v", err)
		}
		near.Cancel(0)
	})
}

// lie announces n engines under names that were not there before, and digests of them that miss what came before.
func lie(round, n int) []byte {
	var engines []engine.Engine
	var deltas []cachestate.Delta
	for i := range n {
		id := engine.MakeID("liar", fmt.Sprintf("%d-%d", round, i))
		engines = append(engines, engine.Engine{ID: id, Generation: 1, Models: []engine.Model{{Name: "m"}}})
		deltas = append(deltas, cachestate.Delta{
			Engine: id, Tier: cachestate.TierGPU, Generation: 1, Geometry: cachestate.DefaultGeometry(), From: 7, To: 8, Set: []uint32{1},
		})
	}
	return append(appendFrame(nil, frameEngines, appendEngines(nil, uint64(round+1), engines)), digestFrames(deltas)...)
}

// A liar whose engines have new names each time leaves nothing behind, and its pulls, which it does not answer, keep nobody
// else's waiting.
func TestLiarWithEverNewEnginesIsBounded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		owner, peer := owning(w)
		liar := w.add("liar")
		liar.hold = make(chan struct{})
		near, far := newStreams()
		peer.listener.PeerUp("liar", 7)
		go func() { _ = peer.listener.ServeFeed("liar", far) }()
		if _, err := near.Write(feedOf()); err != nil {
			t.Fatal(err)
		}
		before := runtime.NumGoroutine()
		for round := range 20 {
			if _, err := near.Write(lie(round, MaxEngines)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(time.Second)
		if n := runtime.NumGoroutine() - before; n > 2*maxAsked {
			t.Errorf("%d goroutines wait for the liar", n)
		}
		peer.listener.Index.Remove("owner/e")
		owner.sources[0].change(1, full)
		await(t, "another's digest is pulled", 3*time.Second, func() bool { return peer.agrees(owner) })
		near.Cancel(0)
		close(liar.hold)
	})
}

// Each name of a model takes a place in the view, under the lock that every decision takes.
func TestAnnouncementOfEndlessNamesIsNotTaken(t *testing.T) {
	for _, tt := range []struct {
		names int
		taken bool
	}{{maxNames, true}, {maxNames + 1, false}} {
		var engines []engine.Engine
		for i := range 32 {
			engines = append(engines, engine.Engine{ID: engine.MakeID("liar", fmt.Sprint(i)), Generation: 1})
		}
		for n := 0; n < tt.names; n++ {
			e := &engines[n%len(engines)]
			if i := len(e.Models) - 1; i >= 0 && len(e.Models[i].Aliases) < 60 {
				e.Models[i].Aliases = append(e.Models[i].Aliases, fmt.Sprintf("n%d", n))
				continue
			}
			e.Models = append(e.Models, engine.Model{Name: fmt.Sprintf("n%d", n)})
		}
		h := newHearer(t)
		_ = h.serve("liar", appendFrame(nil, frameEngines, appendEngines(nil, 1, engines)))
		if taken := len(h.View.Snapshot(time.Now())) > 0; taken != tt.taken || (len(h.doubts) == 0) != tt.taken {
			t.Errorf("%d names: taken %t, doubts %q", tt.names, taken, h.doubts)
		}
	}
}
