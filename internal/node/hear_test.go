package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/spread"
)

func TestHeartbeatStandsWithoutALoadThatCannotBeTrue(t *testing.T) {
	r := newRig(t)
	var log bytes.Buffer
	c := r.config("hearer")
	c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n := r.node(c)
	n.view.Announce("sender", []engine.Engine{{ID: "sender/e"}, {ID: "sender/f"}}, time.Now())
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
	if bad, lies := metric(t, n, "kvmesh_spread_bad_messages_total"), metric(t, n, "kvmesh_forward_doubts_total"); bad != 0 || lies != 3 {
		t.Errorf("%v bad messages and %v impossible loads counted, want 0 and 3", bad, lies)
	}
	if lines := log.String(); strings.Count(lines, "\n") != 1 || !strings.Contains(lines, "engine=sender/e") {
		t.Errorf("want one line, with the engine's name: %s", lines)
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
		e := owner.agentsOf[0].Engine()
		await(t, "they are connected", 10*time.Second, func() bool { return owner.mesh.Settled() && len(asker.mesh.Peers()) == 1 })
		asker.view.Announce("owner", []engine.Engine{e}, time.Now())
		states := func() string {
			now := time.Now()
			return asker.view.StateOf("owner", now).String() + " " + owner.view.StateOf("asker", now).String()
		}
		time.Sleep(10 * time.Second)
		if got := states(); got != "unreachable unreachable" {
			t.Fatalf("after a silence: %s", got)
		}
		vector := append(engine.AppendString(nil, string(e.ID)), byte(cachestate.TierGPU))
		vector = binary.AppendUvarint(binary.AppendUvarint(vector, uint64(e.Generation)), 99)
		asker.MergeState(appendPart(nil, stateDigests, vector))
		time.Sleep(100 * time.Millisecond)
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

// mute loses all datagrams.
type mute struct{ spread.Carrier }

func (mute) SendDatagram(string, []byte) error { return nil }

func TestStreamOfAnAgentWhoseHeartbeatsAreLostGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		config := r.config("owner", "e")
		config.Transport = pensive{}
		owner := r.only(config, func(n *Node, ctx context.Context) error {
			n.teller.Carrier = mute{n.teller.Carrier}
			return n.teller.Run(ctx)
		})
		await(t, "the engine is up", 5*time.Second, owner.EngineReady)
		config = r.config("ingress")
		config.Mesh.Join = []string{owner.QUICAddr()}
		ingress, _ := r.run(config)
		await(t, "ready", 10*time.Second, func() bool {
			ingress.view.Hear("owner", owner.ingress.Owner.Report(time.Second), time.Now()) // the last that come
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

func TestLostDeltaIsRepairedByAPull(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		a, _ := r.run(r.config("a", "e"))
		config := r.config("b")
		config.Mesh.Join = []string{a.QUICAddr()}
		b, _ := r.run(config)
		id := engine.MakeID("a", "e")
		await(t, "b has a's digest", 10*time.Second, func() bool {
			_, ok := b.index.Have(id)
			return ok && b.Ready()
		})
		before := metric(t, b, "kvmesh_spread_digest_pulls_total")
		for n := range 3 {
			admit(t, a, uint64(n))
			a.agentsOf[0].Publish() // and nobody is told
		}
		time.Sleep(2 * time.Second)
		want := a.agentsOf[0].Digests()[0]
		have, _ := b.index.Have(id)
		if have.Checksum != want.Checksum || want.Checksum == 0 {
			t.Errorf("b has %+v, want checksum %x of version %d", have, want.Checksum, want.To)
		}
		if now := metric(t, b, "kvmesh_spread_digest_pulls_total"); now == before {
			t.Error("nothing was pulled")
		}
	})
}

func TestAgentWhosePartFailsDoesNotSayThatItLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		config := r.config("broken", "e")
		var listeners []net.Listener
		config.Listen = func(_, addr string) (net.Listener, error) {
			listeners = append(listeners, newDeaf(addr))
			return listeners[len(listeners)-1], nil
		}
		broken, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- broken.Run(t.Context()) }()
		config = r.config("peer")
		config.Mesh.Join = []string{broken.QUICAddr()}
		peer, _ := r.run(config)
		await(t, "the peer knows it", 10*time.Second, peer.Ready)
		listeners[0].Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("it ended with %v", err)
		}
		await(t, "the peer sees it", 5*time.Second, func() bool { return !peer.Ready() })
		for _, a := range peer.Status().Agents {
			if a.State == "left" {
				t.Errorf("%s is said to have left", a.Name)
			}
		}
	})
}
