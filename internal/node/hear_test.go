package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

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
	if bad, lies := metric(t, n, "kvmesh_node_bad_messages_total"), metric(t, n, "kvmesh_forward_doubts_total"); bad != 0 || lies != 3 {
		t.Errorf("%v bad messages and %v impossible loads counted, want 0 and 3", bad, lies)
	}
	if lines := log.String(); strings.Count(lines, "\n") != 1 || !strings.Contains(lines, "engine=sender/e") {
		t.Errorf("want one line, with the engine's name: %s", lines)
	}
}

func TestDigestIsASignOfLife(t *testing.T) {
	r := newRig(t)
	engines, digests, _ := good(t, r)
	n := r.node(r.config("hearer"))
	n.Message("sender", engines)
	start := time.Now()
	n.view.Heard("sender", start.Add(-time.Minute)) // as if the announcement were old
	is := func() string { return n.view.StateOf("sender", start).String() }
	n.Message("sender", digests[:len(digests)-1])
	if is() != "suspect" {
		t.Fatalf("the sender is %s after a minute of silence and a message that cannot be read", is())
	}
	n.Message("sender", digests)
	if is() != "fresh" {
		t.Errorf("the sender is %s after a digest", is())
	}
}

// only makes a node and runs of its loops those of its engines, its mesh, and what is given: it sends no heartbeats of
// itself, so that to its peers it is as if every datagram of it were lost.
func (r *rig) only(c Config, loop func(*Node, context.Context) error) *Node {
	r.t.Helper()
	n, err := New(c)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	for _, a := range n.agentsOf {
		g.Go(func() error { return a.Run(ctx) })
	}
	g.Go(func() error { return n.mesh.Run(ctx) })
	g.Go(func() error { return loop(n, ctx) })
	r.t.Cleanup(func() {
		cancel()
		if err := errors.Join(g.Wait(), n.Close()); err != nil {
			r.t.Errorf("run %s: %v", n.config.Mesh.Name, err)
		}
	})
	return n
}

func TestPullIsASignOfLifeAtBothEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		nothing := func(*Node, context.Context) error { return nil }
		owner := r.only(r.config("owner", "e"), nothing)
		await(t, "the engine is up", 5*time.Second, owner.EngineReady)
		owner.agentsOf[0].Publish()
		config := r.config("asker")
		config.Mesh.Join = []string{owner.QUICAddr()}
		asker := r.only(config, nothing)
		id := digestID{engine.MakeID("owner", "e"), cachestate.TierGPU}
		await(t, "the engine is known", 10*time.Second, func() bool { _, ok := asker.view.Generation(id.engine); return ok })
		states := func() string {
			now := time.Now()
			return asker.view.StateOf("owner", now).String() + " " + owner.view.StateOf("asker", now).String()
		}
		time.Sleep(10 * time.Second)
		if got := states(); got != "suspect suspect" {
			t.Fatalf("after a silence: %s", got)
		}
		if err := asker.pullNow(id); err != nil {
			t.Fatal(err)
		}
		if got := states(); got != "fresh fresh" {
			t.Errorf("after a pull: %s", got)
		}
	})
}

// pensive is an engine that thinks for longer than an agent may be silent before it answers.
type pensive struct{}

const pensiveAnswer = `data: {"choices":[{"index":0,"delta":{"content":"well"},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"

func (pensive) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(20 * time.Second)
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(strings.NewReader(pensiveAnswer)), Request: r,
	}, nil
}

func TestStreamOfAnAgentWhoseHeartbeatsAreLostGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		config := r.config("owner", "e")
		config.Transport = pensive{}
		owner := r.only(config, (*Node).publish)
		await(t, "the engine is up", 5*time.Second, owner.EngineReady)
		config = r.config("ingress")
		config.Mesh.Join = []string{owner.QUICAddr()}
		ingress, _ := r.run(config)
		await(t, "ready", 10*time.Second, func() bool {
			owner.heartbeat(time.Second) // the last that come
			return ingress.Ready()
		})
		w := httptest.NewRecorder()
		ingress.ingress.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions",
			strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`)))
		if w.Code != http.StatusOK || !strings.HasSuffix(w.Body.String(), pensiveAnswer) {
			t.Errorf("got %d %q", w.Code, w.Body)
		}
	})
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
