package spread

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// good returns the messages and the datagram of an agent with two engines.
func good() (engines, digests, heartbeat []byte) {
	e, f := newSource("sender/e"), newSource("sender/f")
	e.Publish()
	t := newSender(e, f)
	engines, _ = t.announcement()
	return engines, t.wholeDigests()[0], datagrams(t.report(time.Second))[0]
}

func TestGarbageIsCountedAndDropped(t *testing.T) {
	engines, digests, heartbeat := good()
	foreign := cachestate.NewDigest("sender/e", cachestate.TierGPU, 1, cachestate.Geometry{Bits: cachestate.MaxBits, Hashes: 5}).Full()
	for name, b := range map[string][]byte{
		"unknown kind":           {99, 1, 2, 3},
		"announcement cut off":   engines[:len(engines)-3],
		"announcement of many":   {messageEngines, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff, 0xff, 0x7f},
		"digest cut off":         digests[:len(digests)-1],
		"digest and a rest":      append(slices.Clip(digests), 7),
		"digest of nothing":      {messageDigests, 0},
		"digest too large":       append([]byte{messageDigests}, cachestate.AppendDelta(nil, &foreign)...),
		"endless varint":         append([]byte{messageEngines}, strings.Repeat("\xff", 20)...),
		"announcement of a text": append([]byte{messageEngines, 5}, "hello"...),
	} {
		l := newHearer(t)
		l.Message("sender", b)
		if got := testutil.ToFloat64(l.badMessages); got != 1 {
			t.Errorf("%s: %v messages counted, want 1", name, got)
		}
	}
	l := newHearer(t)
	for i, b := range [][]byte{nil, heartbeat[:3], {0, 0}, append([]byte{1}, strings.Repeat("\xff", 20)...)} {
		l.Datagram("sender", b)
		if got := testutil.ToFloat64(l.badMessages); got != float64(i+1) {
			t.Errorf("datagram %x: %v counted, want %d", b, got, i+1)
		}
	}
	l.MergeState([]byte{200, 1})
	if got := testutil.ToFloat64(l.badMessages); got != 5 {
		t.Errorf("bad state: %v counted, want 5", got)
	}
}

func TestDigestIsASignOfLife(t *testing.T) {
	engines, digests, _ := good()
	l := newHearer(t)
	l.Message("sender", engines)
	start := time.Now()
	l.View.Heard("sender", start.Add(-time.Minute)) // as if the announcement were old
	is := func() string { return l.View.StateOf("sender", start).String() }
	l.Message("sender", digests[:len(digests)-1])
	if is() != "suspect" {
		t.Fatalf("the sender is %s after a minute of silence and a message that cannot be read", is())
	}
	l.Message("sender", digests)
	if is() != "fresh" {
		t.Errorf("the sender is %s after a digest", is())
	}
}

func TestMessagesSpeakOnlyForTheirSender(t *testing.T) {
	engines, digests, heartbeat := good()
	l := newHearer(t)
	l.Message("other", engines)
	l.Message("other", digests)
	l.Datagram("other", heartbeat)
	for _, e := range l.View.Snapshot(time.Now()) {
		if e.ID.Agent() != "other" {
			t.Errorf("%s is known by a message of another agent", e.ID)
		}
	}
	if _, ok := l.Index.Have("sender/e"); ok {
		t.Error("a digest counts for another agent than its sender")
	}
	if got := testutil.ToFloat64(l.badMessages); got != 0 {
		t.Errorf("%v good messages counted as bad", got)
	}
}

func TestRestartedPeerLosesItsDigest(t *testing.T) {
	engines, digests, _ := good()
	l := newHearer(t)
	l.PeerUp("sender", 7)
	l.Message("sender", engines)
	l.Message("sender", digests)
	if _, ok := l.Index.Have("sender/e"); !ok {
		t.Fatal("the digest was not taken")
	}
	l.PeerUp("sender", 8)
	if _, ok := l.Index.Have("sender/e"); ok {
		t.Error("the digest of the last life is still there")
	}
	if s := l.View.Snapshot(time.Now()); len(s) != 0 {
		t.Errorf("engines of the last life: %+v", s)
	}
}

func TestOlderAnnouncementIsNoNews(t *testing.T) {
	sender := newSender(newSource("sender/e"), newSource("sender/f"))
	older, _ := sender.announcement()
	sender.Sources = sender.Sources[:1]
	newer, _ := sender.announcement()
	l := newHearer(t)
	for _, m := range [][]byte{newer, older, newer} {
		l.Message("sender", m)
	}
	if s := l.View.Snapshot(time.Now()); len(s) != 1 {
		t.Errorf("%d engines are known, want the one of the newer announcement", len(s))
	}
}

func TestDigestOfAnEngineNobodyAnnouncedTakesNoPlace(t *testing.T) {
	_, digests, _ := good()
	l := newHearer(t)
	l.Message("sender", digests)
	if _, ok := l.Index.Slot("sender/e"); ok || len(l.DigestAges(time.Now())) != 0 {
		t.Error("the digest of an unknown engine has a place in the index")
	}
}

func TestStateIsBoundedAndReadBack(t *testing.T) {
	const limit = 1 << 17
	l := newHearer(t)
	d := cachestate.NewDigest("a/e", cachestate.TierGPU, 1, cachestate.DefaultGeometry()).Full()
	for i := range 1500 {
		d.Engine = engine.MakeID(strings.Repeat("a", 60), fmt.Sprintf("%d%s", i, strings.Repeat("n", 60)))
		l.Index.Apply(&d)
	}
	b := l.State(limit)
	if len(b) < limit-2*maxStateEntry || len(b) > limit {
		t.Errorf("state has %d bytes", len(b))
	}
	l.MergeState(b)
	if got := testutil.ToFloat64(l.badMessages); got != 0 {
		t.Errorf("own state is not read back")
	}
}

func TestVersionVectorOfAnotherLifeIsNoReasonToPull(t *testing.T) {
	engines, digests, _ := good()
	l := newHearer(t)
	l.Message("sender", engines)
	l.Message("sender", digests)
	have, _ := l.Have(DigestID{"sender/e", cachestate.TierGPU})
	for name, tt := range map[string]struct {
		id     DigestID
		gen    engine.Generation
		number uint64
		want   bool
	}{
		"same":             {DigestID{"sender/e", cachestate.TierGPU}, have.Generation, have.Number, false},
		"newer":            {DigestID{"sender/e", cachestate.TierGPU}, have.Generation, have.Number + 1, true},
		"another tier":     {DigestID{"sender/e", cachestate.TierCPU}, have.Generation, 1, true},
		"no tier":          {DigestID{"sender/e", 3}, have.Generation, 1, false},
		"earlier life":     {DigestID{"sender/e", cachestate.TierGPU}, have.Generation - 1, have.Number + 1, false},
		"a life to come":   {DigestID{"sender/e", cachestate.TierGPU}, have.Generation + 1, have.Number + 1, false},
		"unknown engine":   {DigestID{"sender/x", cachestate.TierGPU}, have.Generation, 1, false},
		"an engine of his": {DigestID{"hearer/e", cachestate.TierGPU}, have.Generation, 1, false},
	} {
		if got := l.behind(tt.id, tt.gen, tt.number); got != tt.want {
			t.Errorf("%s: behind %t", name, got)
		}
	}
}

func FuzzMessage(f *testing.F) {
	engines, digests, heartbeat := good()
	for _, b := range [][]byte{engines, digests, heartbeat, {messageEngines, 0}, {messageDigests}, {0, 0}, {}} {
		f.Add(b)
	}
	l := newHearer(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		l.Message("sender", b)
		l.Datagram("sender", b)
		l.MergeState(b)
		for _, e := range l.View.Snapshot(time.Now()) {
			if e.ID.Agent() != "sender" {
				t.Fatalf("%x speaks for %s", b, e.ID)
			}
		}
		if report, err := forward.ParseReport(b); err == nil {
			for _, part := range datagrams(report) {
				if _, err := forward.ParseReport(part); err != nil {
					t.Fatalf("%x is read, but not what is written of it: %v", b, err)
				}
			}
		}
	})
}
