package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quic-go/quic-go"
)

// world is a network, a CA and the gossip key of one mesh.
type world struct {
	t    *testing.T
	net  *MemNetwork
	ca   *Authority
	key  []byte
	next byte        // of the last agent's address
	deaf bool        // agents to come serve no streams
	tune func(*Mesh) // changes agents to come before they run; nil: nothing
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ca, err := EphemeralAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, net: NewMemNetwork(1), ca: ca, key: NewGossipKey()}
	w.net.SetDelay(time.Millisecond, time.Millisecond)
	return w
}

// inBubble runs f in fake time and lets what it started end in it.
func inBubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// memberlist's timers outlive its Shutdown by up to a probe, quic-go's closed connections by three PTO.
		t.Cleanup(func() { time.Sleep(time.Minute) })
		f(t, newWorld(t))
	})
}

// agent is one running mesh with what its handlers were told.
type agent struct {
	*Mesh
	t    *testing.T
	stop func()
	reg  *prometheus.Registry

	mu        sync.Mutex
	events    []string
	datagrams []string
	merged    []string
	state     []byte
}

func (a *agent) PeerUp(p Peer) { a.add(&a.events, "up "+p.Name) }

func (a *agent) PeerDown(name, reason string) { a.add(&a.events, "down "+name+": "+reason) }

func (a *agent) Datagram(peer string, b []byte) { a.add(&a.datagrams, peer+": "+string(b)) }

func (a *agent) LocalState() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

func (a *agent) MergeState(b []byte) { a.add(&a.merged, string(b)) }

// ServeStream answers with what it reads.
func (a *agent) ServeStream(_ context.Context, peer string, kind Kind, s *Stream) {
	io.Copy(s, s)
}

func (a *agent) add(to *[]string, s string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*to = append(*to, s)
}

func (a *agent) got(from *[]string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), *from...)
}

func (a *agent) saw(event string) bool {
	for _, e := range a.got(&a.events) {
		if strings.HasPrefix(e, event) {
			return true
		}
	}
	return false
}

// config returns an agent's config on a host of its own.
func (w *world) config(name string, seeds ...string) Config {
	w.t.Helper()
	w.next++
	id, err := w.ca.Issue(name, 30*24*time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	c := LocalConfig()
	c.MeshID, c.Name, c.Identity, c.GossipKeys = w.ca.Mesh(), name, id, [][]byte{w.key}
	host := fmt.Sprintf("10.0.0.%d", w.next)
	c.QUICBind, c.GossipBind, c.Join = host+":7081", host+":7082", seeds
	c.ListenPacket = w.net.ListenPacket
	c.Meta = []byte("meta of " + name)
	if os.Getenv("KVMESH_TEST_LOG") != "" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return c
}

// run starts an agent; it stops with the test.
func (w *world) run(c Config) *agent {
	w.t.Helper()
	a := &agent{t: w.t, reg: prometheus.NewRegistry(), state: []byte("state of " + c.Name)}
	c.Peers, c.Datagrams, c.State, c.Registerer = a, a, a, a.reg
	if c.Streams = a; w.deaf {
		c.Streams = nil
	}
	m, err := New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.tune != nil {
		w.tune(m)
	}
	a.Mesh = m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	a.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run of %s: %v", c.Name, err)
		}
		m.Close()
	})
	w.t.Cleanup(a.stop)
	return a
}

// vanish stops an agent as kill -9 does: nobody hears of it.
func (w *world) vanish(a *agent) {
	w.net.Partition([]netip.Addr{a.QUICAddr().Addr()})
	a.stop()
	w.net.Partition()
}

// await waits up to d of fake time until ok, and returns how long it took.
func await(t *testing.T, d time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > d {
			t.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func connectedTo(a *agent, names ...string) func() bool {
	return func() bool {
		for _, n := range names {
			p, ok := a.Peer(n)
			if !ok || !p.Connected || p.State != StateAlive || !p.GossipAddr.IsValid() {
				return false
			}
		}
		return true
	}
}

// three starts a, b and c, of which the later two join by a, and waits until all are connected.
func (w *world) three() (a, b, c *agent) {
	w.t.Helper()
	a = w.run(w.config("a"))
	b = w.run(w.config("b", a.QUICAddr().String()))
	c = w.run(w.config("c", a.QUICAddr().String()))
	await(w.t, 3*time.Second, "a full mesh of three", func() bool {
		return connectedTo(a, "b", "c")() && connectedTo(b, "a", "c")() && connectedTo(c, "a", "b")()
	})
	return a, b, c
}

func TestThreeAgentsFormAFullMesh(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		_, b, c := w.three()
		p, _ := b.Peer("c")
		if string(p.Meta) != "meta of c" || p.Instance != c.Instance() || p.QUICAddr != c.QUICAddr() || p.RTT <= 0 {
			t.Errorf("b sees c as %+v", p)
		}
		await(t, 5*time.Second, "settled", func() bool { return b.Settled() && c.Settled() })
		if h := append(b.Health(), c.Health()...); len(h) > 0 {
			t.Errorf("health notes: %q", h)
		}
		if !b.saw("up c") || b.saw("down") {
			t.Errorf("b was told %q", b.got(&b.events))
		}
		await(t, 10*time.Second, "state by push/pull", func() bool { return len(c.got(&c.merged)) > 0 })
	})
}

func TestStreamsCarryBytesBothWays(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		_, b, _ := w.three()
		for _, size := range []int{1, combineBelow, 1 << 20} {
			s, err := b.Open(t.Context(), "c", KindRequest)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				s.Write([]byte(strings.Repeat("x", size)))
				s.CloseWrite()
			}()
			got, err := io.ReadAll(s)
			if err != nil || len(got) != size {
				t.Errorf("echo of %d bytes: %d, %v", size, len(got), err)
			}
			s.Close()
		}
	})
}

func TestBrokenOffStreamsGiveTheirPlaceBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		_, b, _ := w.three()
		for i := range int(b.quicConfig.MaxIncomingStreams) + 100 {
			s, err := b.Open(t.Context(), "c", KindRequest)
			if err != nil {
				t.Fatalf("stream %d: %v", i, err)
			}
			s.Write([]byte("x"))
			if s.Cancel(16); i%64 == 0 {
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
}

func TestStreamThatNobodyServesIsCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.deaf = true
		a := w.run(w.config("a"))
		b := w.run(w.config("b", a.QUICAddr().String()))
		await(t, 3*time.Second, "connected", connectedTo(b, "a"))
		s, err := b.Open(t.Context(), "a", Kind(200))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, err = io.ReadAll(s)
		if se, ok := errors.AsType[*quic.StreamError](err); !ok || se.ErrorCode != codeUnknownKind || !se.Remote {
			t.Errorf("read: %v", err)
		}
	})
}

func TestOversizedStateIsNotSent(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		a.mu.Lock()
		a.state = make([]byte, MaxState+1)
		a.mu.Unlock()
		b := w.run(w.config("b", a.QUICAddr().String()))
		await(t, 3*time.Second, "connected", connectedTo(b, "a"))
		time.Sleep(20 * time.Second)
		if n := counter(t, a.reg, "kvmesh_mesh_dropped_total", "reason", "local_state_size"); n == 0 {
			t.Error("nothing was counted")
		}
		if got := b.got(&b.merged); len(got) > 0 {
			t.Errorf("b merged %d states", len(got))
		}
	})
}

func TestVanishedPeerIsDownWithinFourSeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, c := w.three()
		w.net.Partition([]netip.Addr{c.QUICAddr().Addr()})
		took := await(t, 5*time.Second, "c is down", func() bool { return a.saw("down c") })
		if limit := a.cfg.Timings.IdleTimeout + a.cfg.Timings.KeepAlive + 100*time.Millisecond; took > limit {
			t.Errorf("took %v, want at most %v", took, limit)
		}
		await(t, 5*time.Second, "the connection is closed", func() bool { return a.table.current("c") == nil })
		if s, err := a.Open(t.Context(), "c", KindProbe); err == nil {
			s.Close()
			t.Error("a stream to a vanished peer was opened")
		}
	})
}

func TestRestartedPeerReplacesItsOldLife(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, _ := w.three()
		cfg := w.config("d", a.QUICAddr().String())
		d := w.run(cfg)
		await(t, 3*time.Second, "d connected", connectedTo(b, "d"))
		w.vanish(d)
		again := w.run(cfg)
		took := await(t, 5*time.Second, "the new d is known", func() bool {
			p, _ := b.Peer("d")
			return p.Instance == again.Instance() && p.Connected
		})
		if took > time.Second {
			t.Errorf("took %v", took)
		}
		if !b.saw("down d") {
			t.Errorf("b was told %q, want a PeerDown between the lives", b.got(&b.events))
		}
		await(t, 10*time.Second, "the new d is a member", func() bool {
			return connectedTo(b, "d")() && connectedTo(again, "b")()
		})
	})
}

func TestRestartedSeedIsNoticedByItsReset(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := w.config("b") // dials nobody by itself, and is the greater name
		b := w.run(cfg)
		a := w.run(w.config("a", b.QUICAddr().String()))
		await(t, 3*time.Second, "connected", connectedTo(a, "b"))
		w.vanish(b)
		again := w.run(cfg)
		await(t, time.Second, "the new b is known", func() bool {
			a.SendDatagram("b", make([]byte, 64)) // a heartbeat
			p, _ := a.Peer("b")
			return p.Connected && p.Instance == again.Instance()
		})
		if !a.saw("down b: restarted: it does not know the connection") {
			t.Errorf("a was told %q", a.got(&a.events))
		}
	})
}

func TestRestartAtAnotherAddressTakesTheName(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, _ := w.three()
		d := w.run(w.config("d", a.QUICAddr().String()))
		await(t, 3*time.Second, "d connected", connectedTo(b, "d"))
		w.vanish(d)
		again := w.run(w.config("d", a.QUICAddr().String()))
		await(t, 20*time.Second, "the new d at its new address", func() bool {
			p, _ := b.Peer("d")
			return p.QUICAddr == again.QUICAddr() && connectedTo(b, "d")()
		})
	})
}

func TestHealedPartitionMeetsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		w.net.Partition([]netip.Addr{c.QUICAddr().Addr()})
		// Long enough that gossip to the dead has ended on both sides.
		time.Sleep(5 * time.Minute)
		if p, _ := a.Peer("c"); p.State != StateDead {
			t.Fatalf("a sees c as %+v", p)
		}
		w.net.Partition()
		await(t, 10*time.Second, "full mesh after healing", func() bool {
			return connectedTo(a, "b", "c")() && connectedTo(b, "a", "c")() && connectedTo(c, "a", "b")()
		})
	})
}

func TestLossyNetworkStillFormsAMesh(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.net.SetLoss(0.1)
		a := w.run(w.config("a"))
		b := w.run(w.config("b", a.QUICAddr().String()))
		await(t, 20*time.Second, "connected", func() bool { return connectedTo(a, "b")() && connectedTo(b, "a")() })
	})
}

func TestDatagramsArriveWithTheirSender(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		if err := a.SendDatagram("c", []byte("beat")); err != nil {
			t.Fatal(err)
		}
		for _, peer := range []string{"a", "c"} {
			if err := b.SendDatagram(peer, []byte("beats")); err != nil {
				t.Fatal(err)
			}
		}
		await(t, time.Second, "all arrived", func() bool {
			return len(a.got(&a.datagrams)) == 1 && len(c.got(&c.datagrams)) == 2
		})
		if got := a.got(&a.datagrams); got[0] != "b: beats" {
			t.Errorf("a got %q", got)
		}
	})
}

func TestDatagramsOfOnePeerComeOneAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		slow := &slowHandler{}
		b := w.run(w.config("b"))
		w.tune = func(m *Mesh) { m.cfg.Datagrams = slow }
		a := w.run(w.config("a"))
		for range 2 {
			if _, err := b.dial(t.Context(), a.QUICAddr(), "a"); err != nil {
				t.Fatal(err)
			}
		}
		b.table.mu.Lock()
		conns := slices.Clone(b.table.records["a"].conns)
		b.table.mu.Unlock()
		for range 5 {
			for _, pc := range conns {
				b.queueDatagram(pc, []byte("x"))
			}
		}
		time.Sleep(time.Second)
		if len(conns) != 2 || slow.most.Load() != 1 || slow.calls.Load() != 10 {
			t.Errorf("%d connections, %d calls, %d at a time", len(conns), slow.calls.Load(), slow.most.Load())
		}
	})
}

// slowHandler counts how many of its calls run at a time.
type slowHandler struct{ calls, now, most atomic.Int64 }

func (h *slowHandler) Datagram(string, []byte) {
	h.calls.Add(1)
	h.most.Store(max(h.most.Load(), h.now.Add(1)))
	time.Sleep(10 * time.Millisecond)
	h.now.Add(-1)
}

func TestTooLargeIsRefusedBeforeSending(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		if err := a.SendDatagram("b", make([]byte, MaxDatagram+1)); err == nil {
			t.Error("an oversized datagram was sent")
		}
	})
}

func TestLargestDatagramArrives(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, _ := w.three()
		if err := a.SendDatagram("b", make([]byte, MaxDatagram)); err != nil {
			t.Fatal(err)
		}
		await(t, 5*time.Second, "it arrived", func() bool { return len(b.got(&b.datagrams)) == 1 })
	})
}

// narrow is a socket that keeps the size of the largest packet.
type narrow struct {
	*memSock
	most *atomic.Int64
}

func (s narrow) WriteTo(p []byte, addr net.Addr) (int, error) {
	for n := s.most.Load(); int64(len(p)) > n && !s.most.CompareAndSwap(n, int64(len(p))); n = s.most.Load() {
	}
	return s.memSock.WriteTo(p, addr)
}

// Sockets in memory cannot forbid fragments, so that quic-go does not look for larger packets that pass.
func TestPacketsFitTheNarrowestPathOfIPv6(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var most atomic.Int64
		listen := func(network, addr string) (net.PacketConn, error) {
			sock, err := w.net.ListenPacket(network, addr)
			if err != nil {
				return nil, err
			}
			return narrow{sock.(*memSock), &most}, nil
		}
		ca := w.config("a")
		ca.ListenPacket = listen
		a := w.run(ca)
		cb := w.config("b", a.QUICAddr().String())
		cb.ListenPacket = listen
		b := w.run(cb)
		await(t, 5*time.Second, "joined", connectedTo(a, "b"))
		s, err := a.Open(t.Context(), "b", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		talks(t, s, strings.Repeat("x", 100_000))
		if err := a.SendDatagram("b", make([]byte, MaxDatagram)); err != nil {
			t.Fatal(err)
		}
		await(t, 5*time.Second, "it arrived", func() bool { return len(b.got(&b.datagrams)) == 1 })
		const headers = 40 + 8                                        // of IPv6 and UDP
		if n := most.Load() + headers; n > 1280 || n < headers+1200 { // QUIC's handshake has packets of 1,200
			t.Errorf("the largest packet takes %d bytes, want at most 1,280", n)
		}
	})
}

func TestLeftPeerIsKnownToHaveLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		if err := c.Leave(2 * time.Second); err != nil {
			t.Fatal(err)
		}
		if !a.saw("down c: agent left") || !b.saw("down c: agent left") {
			t.Errorf("a and b were told %q and %q", a.got(&a.events), b.got(&b.events))
		}
		await(t, 100*time.Millisecond, "c left", func() bool {
			pa, _ := a.Peer("c")
			pb, _ := b.Peer("c")
			return pa.State == StateLeft && pb.State == StateLeft && !pa.Connected && !pb.Connected
		})
		c.stop()
		time.Sleep(30 * time.Second)
		if p, _ := a.Peer("c"); p.Connected || p.State != StateLeft {
			t.Errorf("a sees c as %+v", p)
		}
		if n := len(a.got(&a.events)); n != 3 {
			t.Errorf("a was told %q, want two ups and one down", a.got(&a.events))
		}
	})
}

func TestSeedNotUpYetIsRetried(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		seed := w.config("a")
		b := w.run(w.config("b", seed.QUICBind))
		time.Sleep(time.Minute)
		if h := b.Health(); len(h) != 1 || !strings.Contains(h[0], "does not answer") {
			t.Errorf("health notes: %q", h)
		}
		w.run(seed)
		await(t, b.cfg.Timings.RetryMax+4*time.Second, "joined", connectedTo(b, "a"))
		await(t, time.Second, "no health notes", func() bool { return len(b.Health()) == 0 })
	})
}

func TestOwnAddressAmongTheSeedsIsSkipped(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		ca, cb := w.config("a", "mesh.example:7081"), w.config("b", "mesh.example:7081")
		hosts := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
		lookup := func(context.Context, string) ([]netip.Addr, error) { return hosts, nil }
		ca.LookupHost, cb.LookupHost = lookup, lookup
		// Behind address translation an agent does not know its own address by sight.
		ca.QUICAdvertise = ca.QUICBind
		a, b := w.run(ca), w.run(cb)
		await(t, 5*time.Second, "joined", func() bool { return connectedTo(a, "b")() && connectedTo(b, "a")() })
		await(t, 5*time.Second, "settled", func() bool { return a.Settled() && b.Settled() })
		if r := append(a.Refusals(), b.Refusals()...); len(r) > 0 {
			t.Errorf("refusals: %v", r)
		}
	})
}

func TestAgentThatReachesItselfSettles(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.config("a", "10.0.0.1:7081")
		c.QUICAdvertise = "192.0.2.1:7081" // as outsiders see it: the seed does not look like the agent's own
		a := w.run(c)
		await(t, 2*time.Second, "settled", a.Settled)
		if r := a.Refusals(); len(r) > 0 || len(a.Peers()) > 0 {
			t.Errorf("refusals %v, peers %v", r, a.Peers())
		}
	})
}

// behind returns a Config.ListenPacket where one address stands for another agent by turns, as a load balancer does.
func (w *world) behind(
	vip netip.AddrPort, target func(from netip.AddrPort) netip.AddrPort,
) func(network, addr string) (net.PacketConn, error) {
	return func(network, addr string) (net.PacketConn, error) {
		sock, err := w.net.ListenPacket(network, addr)
		if err != nil {
			return nil, err
		}
		return &balanced{memSock: sock.(*memSock), vip: vip, target: target}, nil
	}
}

// balanced is a socket whose packets to vip go to a target instead.
type balanced struct {
	*memSock
	vip    netip.AddrPort
	target func(from netip.AddrPort) netip.AddrPort
}

func (b *balanced) WriteTo(p []byte, addr net.Addr) (int, error) {
	if addrPort(addr) == b.vip {
		addr = net.UDPAddrFromAddrPort(b.target(addrPort(b.LocalAddr())))
	}
	return b.memSock.WriteTo(p, addr)
}

func TestBalancedSeedThatLedToOneselfLeavesNoIsland(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		vip := netip.MustParseAddrPort("10.9.9.9:7081")
		var astray atomic.Bool
		astray.Store(true)
		self := func(from netip.AddrPort) netip.AddrPort {
			if astray.Load() {
				return from
			}
			return netip.MustParseAddrPort("10.0.0.1:7081")
		}
		ca, cb := w.config("a", vip.String()), w.config("b", vip.String())
		ca.ListenPacket, cb.ListenPacket = w.behind(vip, self), w.behind(vip, self)
		a, b := w.run(ca), w.run(cb)
		await(t, 5*time.Second, "both settle alone", func() bool { return a.Settled() && b.Settled() })
		time.Sleep(10 * time.Second)
		if n := len(a.Peers()) + len(b.Peers()); n > 0 {
			t.Fatalf("%d peers, want none yet", n)
		}
		astray.Store(false)
		limit := (ownMax + 2) * a.cfg.Timings.RejoinInterval
		await(t, limit, "the two have met", func() bool { return connectedTo(a, "b")() && connectedTo(b, "a")() })
	})
}

func TestBlockedQUICIsAHealthNoteWithPeerAndPort(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		b := w.run(w.config("b", a.QUICAddr().String()))
		cc := w.config("c", a.QUICAddr().String())
		w.net.Block(func(from, to netip.AddrPort) bool {
			hosts := from.Addr().String() + to.Addr().String()
			return from.Port() == 7081 && strings.Contains(hosts, "10.0.0.2") && strings.Contains(hosts, "10.0.0.3")
		})
		c := w.run(cc)
		await(t, 5*time.Second, "c joins by a", func() bool { return connectedTo(c, "a")() && connectedTo(a, "b", "c")() })
		time.Sleep(20 * time.Second)
		notes := strings.Join(c.Health(), "\n")
		if !strings.Contains(notes, "peer b is alive by gossip") || !strings.Contains(notes, b.QUICAddr().String()+"/udp") {
			t.Errorf("health notes: %q", notes)
		}
	})
}

func TestDoubleDialKeepsOneConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		b := w.run(w.config("b"))
		var wg sync.WaitGroup
		wg.Go(func() { a.dial(t.Context(), b.QUICAddr(), "b") })
		wg.Go(func() { b.dial(t.Context(), a.QUICAddr(), "a") })
		wg.Wait()
		time.Sleep(100 * time.Millisecond)
		if ca, cb := a.table.current("b"), b.table.current("a"); !ca.dialed || cb.dialed {
			t.Errorf("kept: dialed by a %v, by b %v; want a's", ca.dialed, cb.dialed)
		}
		time.Sleep(5 * time.Second)
		for _, x := range []*agent{a, b} {
			x.table.mu.Lock()
			for name, r := range x.table.records {
				if len(r.conns) != 1 {
					t.Errorf("%s has %d connections to %s", x.Name(), len(r.conns), name)
				}
			}
			x.table.mu.Unlock()
			if x.saw("down") {
				t.Errorf("%s was told %q", x.Name(), x.got(&x.events))
			}
		}
	})
}

func TestDialsInOneDirectionKeepTheSameConnectionAtBothEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		b := w.run(w.config("b"))
		w.net.SetDelay(time.Millisecond, 30*time.Millisecond) // hellos overtake one another
		for range 5 {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() { b.dial(t.Context(), a.QUICAddr(), "a") })
			}
			wg.Wait()
			time.Sleep(100 * time.Millisecond)
			if na, nb := a.table.current("b").number, b.table.current("a").number; na != nb {
				t.Errorf("kept: dial %d by a, %d by b", na, nb)
			}
			time.Sleep(3 * drainQuiet)
		}
		if a.saw("down") || b.saw("down") {
			t.Errorf("a was told %q, b %q", a.got(&a.events), b.got(&b.events))
		}
	})
}

func TestTwoSeedsOfOneAgentDisturbNothing(t *testing.T) {
	for range 5 {
		inBubble(t, func(t *testing.T, w *world) {
			w.net.SetDelay(time.Millisecond, 10*time.Millisecond)
			a := w.run(w.config("a"))
			c := w.config("b", a.QUICAddr().String(), "seed.example:7081")
			c.LookupHost = func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{a.QUICAddr().Addr()}, nil
			}
			b := w.run(c)
			await(t, 3*time.Second, "connected", connectedTo(b, "a"))
			time.Sleep(5 * drainQuiet)
			if a.saw("down") || b.saw("down") {
				t.Errorf("a was told %q, b %q", a.got(&a.events), b.got(&b.events))
			}
		})
	}
}

func TestDrainingConnectionFinishesItsStreams(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		b := w.run(w.config("b"))
		old, err := b.dial(t.Context(), a.QUICAddr(), "a")
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.Open(t.Context(), "a", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		s.Write([]byte("before "))
		if _, err := a.dial(t.Context(), b.QUICAddr(), "b"); err != nil { // the smaller name's connection is kept
			t.Fatal(err)
		}
		time.Sleep(10 * drainQuiet)
		s.Write([]byte("after"))
		s.CloseWrite()
		if got, err := io.ReadAll(s); string(got) != "before after" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		s.Close()
		await(t, 2*drainQuiet, "the older connection is closed", func() bool { return !old.open() })
		if !b.table.current("a").open() || b.saw("down") {
			t.Errorf("b was told %q", b.got(&b.events))
		}
	})
}

func TestConnectedSeedUnderAnotherAddressIsNotConnectedTwice(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cfg := w.config("a")
		cfg.QUICAdvertise = "192.0.2.1:7081" // so that its seed address does not look like it
		a := w.run(cfg)
		b := w.run(w.config("b", cfg.QUICBind))
		await(t, 3*time.Second, "connected", connectedTo(b, "a"))
		first := b.table.current("a")
		for range 20 {
			if err := b.joinAddr(netip.MustParseAddrPort(cfg.QUICBind)); err != nil {
				t.Fatal(err)
			}
		}
		if b.table.current("a") != first || a.saw("down") || len(a.Refusals()) > 0 {
			t.Errorf("a was told %q, refused %v", a.got(&a.events), a.Refusals())
		}
	})
}
