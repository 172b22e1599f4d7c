package node

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/mesh"
)

// good returns the messages and the datagram of an agent with two engines.
func good(t testing.TB, r *rig) (engines, digests, heartbeat []byte) {
	t.Helper()
	n := r.node(r.config("sender", "e", "f"))
	n.agentsOf[0].Publish()
	engines, _ = n.announcement()
	return engines, n.wholeDigests()[0], datagrams(n.ingress.Owner.Report(time.Second))[0]
}

func TestGarbageIsCountedAndDropped(t *testing.T) {
	r := newRig(t)
	engines, digests, heartbeat := good(t, r)
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
		n := r.node(r.config("hearer"))
		n.Message("sender", b)
		if got := metric(t, n, "kvmesh_node_bad_messages_total"); got != 1 {
			t.Errorf("%s: %v messages counted, want 1", name, got)
		}
	}
	n := r.node(r.config("hearer"))
	for i, b := range [][]byte{nil, heartbeat[:3], {0, 0}, append([]byte{1}, strings.Repeat("\xff", 20)...)} {
		n.Datagram("sender", b)
		if got := metric(t, n, "kvmesh_node_bad_messages_total"); got != float64(i+1) {
			t.Errorf("datagram %x: %v counted, want %d", b, got, i+1)
		}
	}
	n.MergeState([]byte{200, 1})
	if got := metric(t, n, "kvmesh_node_bad_messages_total"); got != 5 {
		t.Errorf("bad state: %v counted, want 5", got)
	}
}

func TestHeartbeatStandsWithoutALoadThatCannotBeTrue(t *testing.T) {
	r := newRig(t)
	engines, _, _ := good(t, r)
	var log bytes.Buffer
	c := r.config("hearer")
	c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n := r.node(c)
	n.Message("sender", engines)
	for seq := range uint64(3) {
		n.Datagram("sender", forward.AppendReport(nil, forward.Report{Period: time.Second, Loads: []forward.EngineLoad{
			{Name: "e", Load: engine.Load{Seq: seq + 1, BusyShare: 9}}, {Name: "f", Load: engine.Load{Seq: seq + 1, InFlight: 5}},
		}}))
	}
	for _, e := range n.Status().Engines {
		if good := e.Engine == "sender/f"; good != (e.InFlight == 5) || good != (e.LoadAge >= 0) {
			t.Errorf("%s: %+v", e.Engine, e)
		}
	}
	if bad, lies := metric(t, n, "kvmesh_node_bad_messages_total"), metric(t, n, "kvmesh_forward_implausible_loads_total"); bad != 0 || lies != 3 {
		t.Errorf("%v bad messages and %v impossible loads counted, want 0 and 3", bad, lies)
	}
	if lines := log.String(); strings.Count(lines, "\n") != 1 || !strings.Contains(lines, "engine=sender/e") {
		t.Errorf("want one line, with the engine's name: %s", lines)
	}
}

func TestMessagesSpeakOnlyForTheirSender(t *testing.T) {
	r := newRig(t)
	engines, digests, heartbeat := good(t, r)
	n := r.node(r.config("hearer"))
	n.Message("other", engines)
	n.Message("other", digests)
	n.Datagram("other", heartbeat)
	for _, e := range n.Status().Engines {
		if e.Engine.Agent() != "other" {
			t.Errorf("%s is known by a message of another agent", e.Engine)
		}
	}
	if _, ok := n.index.Have("sender/e"); ok {
		t.Error("a digest counts for another agent than its sender")
	}
	if got := metric(t, n, "kvmesh_node_bad_messages_total"); got != 0 {
		t.Errorf("%v good messages counted as bad", got)
	}
}

func TestRestartedPeerLosesItsDigest(t *testing.T) {
	r := newRig(t)
	engines, digests, _ := good(t, r)
	n := r.node(r.config("hearer"))
	n.Message("sender", engines)
	n.Message("sender", digests)
	if _, ok := n.index.Have("sender/e"); !ok {
		t.Fatal("the digest was not taken")
	}
	n.view.PeerReplaced("sender")
	if _, ok := n.index.Have("sender/e"); ok {
		t.Error("the digest of the last life is still there")
	}
	if s := n.Status(); len(s.Engines) != 0 {
		t.Errorf("engines of the last life: %+v", s.Engines)
	}
}

func TestOlderAnnouncementIsNoNews(t *testing.T) {
	r := newRig(t)
	sender := r.node(r.config("sender", "e", "f"))
	older, _ := sender.announcement()
	sender.agentsOf = sender.agentsOf[:1]
	newer, _ := sender.announcement()
	n := r.node(r.config("hearer"))
	for _, m := range [][]byte{newer, older, newer} {
		n.Message("sender", m)
	}
	if s := n.Status(); len(s.Engines) != 1 {
		t.Errorf("%d engines are known, want the one of the newer announcement", len(s.Engines))
	}
}

func TestDigestOfAnEngineNobodyAnnouncedTakesNoPlace(t *testing.T) {
	r := newRig(t)
	_, digests, _ := good(t, r)
	n := r.node(r.config("hearer"))
	n.Message("sender", digests)
	if _, ok := n.index.Slot("sender/e"); ok || len(n.digestAt) != 0 {
		t.Error("the digest of an unknown engine has a place in the index")
	}
}

func TestStateIsBoundedAndReadBack(t *testing.T) {
	r := newRig(t)
	n := r.node(r.config("hearer"))
	d := cachestate.NewDigest("a/e", cachestate.TierGPU, 1, cachestate.DefaultGeometry()).Full()
	for i := range 500 {
		d.Engine = engine.MakeID(strings.Repeat("a", 60), fmt.Sprintf("%d%s", i, strings.Repeat("n", 60)))
		n.index.Apply(&d)
	}
	b := n.LocalState()
	if len(b) < 500*120 || len(b) > mesh.MaxState {
		t.Errorf("state has %d bytes", len(b))
	}
	n.MergeState(b)
	if got := metric(t, n, "kvmesh_node_bad_messages_total"); got != 0 {
		t.Errorf("own state is not read back")
	}
}

func FuzzMessage(f *testing.F) {
	r := newRig(f)
	engines, digests, heartbeat := good(f, r)
	for _, b := range [][]byte{engines, digests, heartbeat, {messageEngines, 0}, {messageDigests}, {0, 0}, {}} {
		f.Add(b)
	}
	config := r.config("hearer")
	hearer := r.node(config)
	f.Fuzz(func(t *testing.T, b []byte) {
		hearer.Message("sender", b)
		hearer.Datagram("sender", b)
		hearer.MergeState(b)
		for _, e := range hearer.Status().Engines {
			if e.Engine.Agent() != "sender" {
				t.Fatalf("%x speaks for %s", b, e.Engine)
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
