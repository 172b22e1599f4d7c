package spread

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// good returns the frames and the datagram of an agent with two engines.
func good() (engines, digests, heartbeat []byte) {
	e, f := newSource("sender/e"), newSource("sender/f")
	e.change(3, 3)
	t := newSender(e, f)
	digests, _ = t.lead(nil)
	return t.now().announcement.frame, digests, datagrams(t.report(time.Second))[0]
}

// body returns the body of a frame.
func body(frame []byte) []byte {
	_, n := binary.Uvarint(frame)
	return frame[n+1:]
}

func TestFeedIsTakenIn(t *testing.T) {
	engines, digests, heartbeat := good()
	h := newHearer(t)
	if err := h.serve("sender", engines, digests); err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("got %v at the end of a feed", err)
	}
	h.Datagram("sender", heartbeat)
	for _, e := range h.View.Snapshot(time.Now()) {
		have, ok := h.Have(DigestID{e.ID, cachestate.TierGPU, cachestate.DefaultGeometry()})
		if !ok || e.Age < 0 || (e.ID == "sender/e") != (have.Number == 1) {
			t.Errorf("%s: digest %+v, load %v old", e.ID, have, e.Age)
		}
	}
	if n := len(h.View.Snapshot(time.Now())); n != 2 {
		t.Errorf("%d engines are known", n)
	}
	if bad := testutil.ToFloat64(h.badMessages); bad != 0 || len(h.doubts) != 0 {
		t.Errorf("%v bad messages, doubts %q", bad, h.doubts)
	}
}

func TestGarbageIsCountedAndNamed(t *testing.T) {
	engines, digests, heartbeat := good()
	frame := func(kind byte, b []byte) []byte { return appendFrame(nil, kind, b) }
	cutOff := func(b []byte) []byte { b = body(b); return b[:len(b)-1] }
	for name, tt := range map[string]struct {
		frame []byte
		goes  bool // the feed goes on
	}{
		"announcement cut off":   {frame(frameEngines, cutOff(engines)), true},
		"announcement of many":   {frame(frameEngines, []byte{1, 0xff, 0xff, 0xff, 0x7f}), true},
		"announcement of a text": {frame(frameEngines, append([]byte{5}, "hello"...)), true},
		"endless varint":         {frame(frameEngines, bytes.Repeat([]byte{0xff}, 20)), true},
		"digest cut off":         {frame(frameDigests, cutOff(digests)), true},
		"digest and a rest":      {frame(frameDigests, append(slices.Clip(body(digests)), 7)), true},
		"digest of nothing":      {frame(frameDigests, []byte{0}), true},
		"frame of nothing":       {[]byte{0}, false},
		"frame too large":        {binary.AppendUvarint(nil, maxFrame+1), false},
		"frame without an end":   {bytes.Repeat([]byte{0xff}, 20), false},
	} {
		h := newHearer(t)
		r := &recorded{Reader: bytes.NewReader(feedOf(engines, tt.frame, engines))}
		err := h.ServeFeed("sender", r)
		if got := testutil.ToFloat64(h.badMessages); tt.goes && got != 1 {
			t.Errorf("%s: %v messages counted, want 1", name, got)
		}
		if want := []string{"sender  " + forward.DoubtMessage}; tt.goes && !slices.Equal(h.doubts, want) {
			t.Errorf("%s: doubts %q, want %q", name, h.doubts, want)
		}
		if over := err == nil || !strings.Contains(err.Error(), "EOF"); over == tt.goes {
			t.Errorf("%s: the feed ended with %v", name, err)
		}
		if h.owners["sender"].feed != nil {
			t.Errorf("%s: the feed is remembered", name)
		}
	}
	h := newHearer(t)
	for i, b := range [][]byte{nil, heartbeat[:3], {0, 0}, append([]byte{1}, strings.Repeat("\xff", 20)...)} {
		h.Datagram("sender", b)
		if got := testutil.ToFloat64(h.badMessages); got != float64(i+1) {
			t.Errorf("datagram %x: %v counted, want %d", b, got, i+1)
		}
	}
	h.MergeState([]byte{200, 1})
	if got := testutil.ToFloat64(h.badMessages); got != 5 {
		t.Errorf("bad state: %v counted, want 5", got)
	}
}

func TestFeedBeginsWithAHelloOfTheLifeThatIsUp(t *testing.T) {
	engines, _, _ := good()
	of := func(instance uint64) []byte {
		return hello{protocol, instance, schemeOf(cachestate.DefaultScheme())}.frame()
	}
	longer := appendFrame(nil, frameHello, append(body(hello{protocol + 1, 7, schemeOf(cachestate.DefaultScheme())}.frame()), "more"...))
	for name, tt := range map[string]struct {
		feed  []byte
		taken bool
	}{
		"the life that is up": {append(of(7), engines...), true},
		"a newer version":     {append(longer, engines...), true},
		"an earlier life":     {append(of(6), engines...), false},
		"no hello":            {engines, false},
		"half a hello":        {append(appendFrame(nil, frameHello, []byte{1, 2, 3}), engines...), false},
	} {
		h := newHearer(t)
		h.PeerUp("sender", 7)
		r := &recorded{Reader: bytes.NewReader(tt.feed)}
		err := h.ServeFeed("sender", r)
		if taken := len(h.View.Snapshot(time.Now())) > 0; taken != tt.taken || r.canceled == tt.taken {
			t.Errorf("%s: taken %t, canceled %t, %v", name, taken, r.canceled, err)
		}
	}
}

func TestFramesOfOtherVersionsAreSkipped(t *testing.T) {
	engines, digests, _ := good()
	h := newHearer(t)
	_ = h.serve("sender", appendFrame(nil, 99, []byte("what is to come")), engines, appendFrame(nil, 0, nil), appendFrame(nil, 4, make([]byte, 70_000)), digests)
	if have, _ := h.Have(DigestID{"sender/e", cachestate.TierGPU, cachestate.DefaultGeometry()}); have.Number != 1 {
		t.Errorf("the digest behind unknown frames is at version %d", have.Number)
	}
	if bad := testutil.ToFloat64(h.badMessages); bad != 0 {
		t.Errorf("%v unknown frames counted as bad", bad)
	}
}

func TestLiarsAreNamed(t *testing.T) {
	announced := newSource("sender/e")
	foreign := cachestate.NewDigest("sender/e", cachestate.TierGPU, 1, cachestate.Geometry{Bits: cachestate.MaxBits, Hashes: 5}).Full()
	ones := cachestate.NewDigest("sender/e", cachestate.TierGPU, 1, cachestate.DefaultGeometry())
	for i := range cachestate.Key(200_000) {
		ones.Add(i * 0x9e3779b97f4a7c15)
	}
	full := ones.Publish(time.Now())
	if !full.Full() {
		full = ones.Full()
	}
	other := cachestate.NewDigest("sender/other/e", cachestate.TierGPU, 1, cachestate.DefaultGeometry()).Full()
	for name, tt := range map[string]struct {
		digest cachestate.Delta
		want   []string
	}{
		"another's engine": {other, []string{"sender sender/other/e " + forward.DoubtEngine}},
		"all ones":         {full, []string{"sender sender/e " + forward.DoubtDigest}},
		"foreign geometry": {foreign, []string{"sender sender/e " + forward.DoubtGeometry}},
	} {
		h := newHearer(t)
		digest := appendFrame(nil, frameDigests, cachestate.AppendDelta(nil, &tt.digest))
		_ = h.serve("sender", newSender(announced).now().announcement.frame, digest)
		if diff := cmp.Diff(tt.want, h.doubts); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestForeignKeySchemeStaysOut(t *testing.T) {
	engines, digests, _ := good()
	h := newHearer(t)
	scheme := cachestate.DefaultScheme()
	scheme.Seed++
	feed := hello{protocol, 7, schemeOf(scheme)}.frame()
	_ = h.ServeFeed("sender", &recorded{Reader: bytes.NewReader(append(append(feed, engines...), digests...))})
	if _, ok := h.Have(DigestID{"sender/e", cachestate.TierGPU, cachestate.DefaultGeometry()}); ok || len(h.View.Snapshot(time.Now())) != 2 {
		t.Error("the digest is in the index, or the engines are not known")
	}
	gen, _ := h.View.Generation("sender/e")
	if h.behind(DigestID{"sender/e", cachestate.TierGPU, cachestate.DefaultGeometry()}, gen, 9) {
		t.Error("it would be pulled")
	}
	notes := h.Notes()
	if len(notes) != 1 {
		t.Fatalf("notes %q", notes)
	}
	for _, want := range []string{"sender", schemeOf(scheme).String(), schemeOf(cachestate.DefaultScheme()).String()} {
		if !strings.Contains(notes[0], want) {
			t.Errorf("note %q does not say %q", notes[0], want)
		}
	}
	if strings.Contains(notes[0], fmt.Sprintf("%x", scheme.Seed)) {
		t.Errorf("note %q tells the seed", notes[0])
	}
	if h.PeerUp("sender", 8); len(h.Notes()) != 0 {
		t.Errorf("notes %q of a life that is over", h.Notes())
	}
}

func TestDigestIsASignOfLife(t *testing.T) {
	engines, digests, _ := good()
	h := newHearer(t)
	_ = h.serve("sender", engines)
	start := time.Now()
	h.View.Heard("sender", start.Add(-time.Minute)) // as if the announcement were old
	is := func() string { return h.View.StateOf("sender", start).String() }
	_ = h.serve("sender", appendFrame(nil, frameDigests, []byte{0}))
	if is() != "unreachable" {
		t.Fatalf("the sender is %s after a minute of silence and a frame that cannot be read", is())
	}
	_ = h.serve("sender", digests)
	if is() != "fresh" {
		t.Errorf("the sender is %s after a digest", is())
	}
}

func TestPeerSpeaksOnlyForItself(t *testing.T) {
	engines, digests, heartbeat := good()
	h := newHearer(t)
	_ = h.serve("other", engines, digests)
	h.Datagram("other", heartbeat)
	for _, e := range h.View.Snapshot(time.Now()) {
		if e.ID.Agent() != "other" {
			t.Errorf("%s is known by a frame of another agent", e.ID)
		}
	}
	if _, ok := h.Index.Have("sender/e"); ok {
		t.Error("a digest counts for another agent than its sender")
	}
}

func TestRestartedPeerLosesItsDigest(t *testing.T) {
	engines, digests, _ := good()
	h := newHearer(t)
	h.PeerUp("sender", 7)
	_ = h.serve("sender", engines, digests)
	if _, ok := h.Index.Have("sender/e"); !ok {
		t.Fatal("the digest was not taken")
	}
	h.PeerUp("sender", 7)
	if _, ok := h.Index.Have("sender/e"); !ok {
		t.Fatal("the digest is gone with a connection")
	}
	h.PeerUp("sender", 8)
	if _, ok := h.Index.Have("sender/e"); ok {
		t.Error("the digest of the last life is still there")
	}
	if s := h.View.Snapshot(time.Now()); len(s) != 0 {
		t.Errorf("engines of the last life: %+v", s)
	}
}

func TestOlderAnnouncementIsNoNews(t *testing.T) {
	sender := newSender(newSource("sender/e"), newSource("sender/f"))
	older := sender.now().announcement.frame
	sender.Sources = sender.Sources[:1]
	sender.announce()
	newer := sender.now().announcement.frame
	h := newHearer(t)
	_ = h.serve("sender", newer, older)
	_ = h.serve("sender", older)
	if s := h.View.Snapshot(time.Now()); len(s) != 1 {
		t.Errorf("%d engines are known, want the one of the newer announcement", len(s))
	}
}

func TestDigestOfAnEngineNobodyAnnouncedTakesNoPlace(t *testing.T) {
	_, digests, _ := good()
	h := newHearer(t)
	_ = h.serve("sender", digests)
	if _, ok := h.Index.Tier(cachestate.TierGPU).Slot("sender/e"); ok || len(h.DigestAges(time.Now())) != 0 {
		t.Error("the digest of an unknown engine has a place in the index")
	}
}

func TestStateIsBoundedAndReadBack(t *testing.T) {
	const limit = 1 << 17
	h := newHearer(t)
	d := cachestate.NewDigest("a/e", cachestate.TierGPU, 1, cachestate.DefaultGeometry()).Full()
	for i := range 1500 {
		d.Engine = engine.MakeID(strings.Repeat("a", 60), fmt.Sprintf("%d%s", i, strings.Repeat("n", 60)))
		h.Index.Apply(&d)
	}
	b := h.State(limit)
	if len(b) < limit-2*maxStateEntry || len(b) > limit {
		t.Errorf("state has %d bytes", len(b))
	}
	h.MergeState(b)
	if got := testutil.ToFloat64(h.badMessages); got != 0 {
		t.Errorf("own state is not read back")
	}
}

func TestVersionVectorOfAnotherLifeIsNoReasonToPull(t *testing.T) {
	engines, digests, _ := good()
	h := newHearer(t)
	_ = h.serve("sender", engines, digests)
	have, _ := h.Have(DigestID{"sender/e", cachestate.TierGPU, cachestate.DefaultGeometry()})
	for name, tt := range map[string]struct {
		id     DigestID
		gen    engine.Generation
		number uint64
		want   bool
	}{
		"same":             {DigestID{"sender/e", cachestate.TierGPU, cachestate.DefaultGeometry()}, have.Generation, have.Number, false},
		"newer":            {DigestID{"sender/e", cachestate.TierGPU, cachestate.DefaultGeometry()}, have.Generation, have.Number + 1, true},
		"another tier":     {DigestID{"sender/e", cachestate.TierCPU, cachestate.DefaultGeometry()}, have.Generation, 1, true},
		"no tier":          {DigestID{"sender/e", 3, cachestate.DefaultGeometry()}, have.Generation, 1, false},
		"earlier life":     {DigestID{"sender/e", cachestate.TierGPU, cachestate.DefaultGeometry()}, have.Generation - 1, have.Number + 1, false},
		"a life to come":   {DigestID{"sender/e", cachestate.TierGPU, cachestate.DefaultGeometry()}, have.Generation + 1, have.Number + 1, false},
		"unknown engine":   {DigestID{"sender/x", cachestate.TierGPU, cachestate.DefaultGeometry()}, have.Generation, 1, false},
		"an engine of his": {DigestID{"hearer/e", cachestate.TierGPU, cachestate.DefaultGeometry()}, have.Generation, 1, false},
	} {
		if got := h.behind(tt.id, tt.gen, tt.number); got != tt.want {
			t.Errorf("%s: behind %t", name, got)
		}
	}
}

func FuzzFeed(f *testing.F) {
	engines, digests, heartbeat := good()
	for _, b := range [][]byte{feedOf(engines, digests), feedOf(digests, engines), feedOf(), heartbeat, {0, 0}, {}} {
		f.Add(b)
	}
	h := newHearer(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = h.ServeFeed("sender", &recorded{Reader: bytes.NewReader(b)})
		h.Datagram("sender", b)
		h.MergeState(b)
		for _, e := range h.View.Snapshot(time.Now()) {
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
