package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
)

func TestConfigViolationsAreAllReported(t *testing.T) {
	c := DefaultConfig()
	c.MeshID, c.Name, c.Join, c.Meta = "Prod", "a/b", []string{"nowhere"}, make([]byte, MaxMeta+1)
	c.GossipKeys = [][]byte{make([]byte, 16)}
	c.Timings.KeepAlive, c.Timings.RetryMax = 2*time.Second, 0
	err := c.Validate()
	for _, want := range []string{"MeshID", "Name", "Join", "Meta", "GossipKeys[0]", "Identity", "KeepAlive", "RetryMax"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported: %v", want, err)
		}
	}
}

func TestBackoffGrowsToItsBound(t *testing.T) {
	b := backoff{min: 100 * time.Millisecond, max: 5 * time.Second}
	for i := range 100 {
		top := 5 * time.Second
		if i < 6 {
			top = 100 * time.Millisecond << i
		}
		if d := b.next(); d < top/2 || d > top {
			t.Errorf("wait %d is %v, want %v to %v", i, d, top/2, top)
		}
	}
}

func TestBestAddressToAdvertise(t *testing.T) {
	prefixes := func(s ...string) (all []net.Addr) {
		for _, p := range s {
			ip, n, err := net.ParseCIDR(p)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, &net.IPNet{IP: ip, Mask: n.Mask})
		}
		return all
	}
	for _, test := range []struct {
		only4 bool
		addrs []net.Addr
		want  string
	}{
		{false, prefixes("127.0.0.1/8", "fe80::1/64", "2001:db8::1/64", "192.0.2.1/24", "10.1.0.1/16"), "10.1.0.1"},
		{false, prefixes("127.0.0.1/8", "2001:db8::1/64", "192.0.2.1/24"), "192.0.2.1"},
		{false, prefixes("127.0.0.1/8", "2001:db8::1/64"), "2001:db8::1"},
		{true, prefixes("127.0.0.1/8", "2001:db8::1/64"), "127.0.0.1"},
		{true, prefixes("2001:db8::1/64"), ""},
	} {
		got, err := bestAddr(test.only4, test.addrs)
		if (test.want == "") != (err != nil) || test.want != "" && got.String() != test.want {
			t.Errorf("%v (only IPv4: %v): %v, %v", test.addrs, test.only4, got, err)
		}
	}
}

func TestAdvertiseAddressTakesTheBoundPort(t *testing.T) {
	bound := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7081}
	for want, text := range map[string]string{
		"10.0.0.1:7081": "", "192.0.2.1:7081": "192.0.2.1:0", "192.0.2.1:9": "192.0.2.1:9",
		"[2001:db8::1]:9": "[2001:db8::1]:9",
	} {
		if got, err := advertised(bound, text); err != nil || got.String() != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := advertised(bound, "host:1"); err == nil {
		t.Error("a name was taken as advertise address")
	}
}

func TestSmallerNamesConnectionIsKept(t *testing.T) {
	for _, test := range []struct {
		self, peer string
		dialed     bool
		want       bool
	}{
		{"a", "b", true, true},
		{"a", "b", false, false},
		{"b", "a", false, true}, // the same connection as the first, from its other end
		{"b", "a", true, false},
	} {
		if got := newTable(test.self, protocols{}).keeps(&peerConn{name: test.peer, dialed: test.dialed}); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestBucketRefillsAtItsRate(t *testing.T) {
	var b bucket
	now := time.Now()
	taken := 0
	for range 10 * initialsPerSecond { // ten seconds, ten tries each hundredth: all at once, then one each
		for range 10 {
			if b.take(now) {
				taken++
			}
		}
		now = now.Add(time.Second / initialsPerSecond)
	}
	if want := 11*initialsPerSecond - 1; taken != want {
		t.Errorf("%d taken, want %d", taken, want)
	}
}

func TestConnectionsAreMadeWhileAddressesAreVerified(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		b := w.run(w.config("b"))
		if a.quic.VerifySourceAddress(nil) {
			t.Error("the first dialer must verify its address")
		}
		for range initialsPerSecond {
			a.initials.take(time.Now())
		}
		if !a.quic.VerifySourceAddress(nil) {
			t.Error("a flood need not verify its addresses")
		}
		if _, err := b.dial(t.Context(), a.QUICAddr(), "a"); err != nil {
			t.Error(err)
		}
	})
}

func TestMemberlistLinesBecomeRecords(t *testing.T) {
	for line, want := range map[string]string{
		"[DEBUG] memberlist: x": "DEBUG memberlist: x",
		"[ERR] memberlist: x":   "WARN memberlist: x",
		"x":                     "INFO x",
	} {
		if level, text := splitLevel(line); level.String()+" "+text != want {
			t.Errorf("%q: %v %q", line, level, text)
		}
	}
	var out strings.Builder
	l := slog.NewLogLogger(newLineHandler(slog.NewTextHandler(&out, nil), mustMetrics(t)), slog.LevelInfo)
	l.Printf("[WARN] memberlist: %d of 8", 3)
	l.Print("[DEBUG] memberlist: unwanted") // by a handler of level info
	if got := out.String(); !strings.Contains(got, `level=WARN msg="3 of 8" from=memberlist`) ||
		strings.Contains(got, "unwanted") {
		t.Errorf("%q", out.String())
	}
}

func TestPacketsOfANonMemberDoNotFloodTheLog(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var out strings.Builder
		c := w.config("a")
		c.Logger = slog.New(slog.NewTextHandler(&out, nil))
		a := w.run(c)
		sock, _ := w.net.ListenPacket("udp", "10.0.0.99:0")
		t.Cleanup(func() { sock.Close() })
		to := net.UDPAddrFromAddrPort(a.GossipAddr())
		for i := range 100 {
			label := fmt.Sprintf("%02d", i)
			sock.WriteTo([]byte("no gossip"), to)
			sock.WriteTo(append([]byte{244, 2}, label...), to)
			sock.WriteTo([]byte{244}, to)
			sock.WriteTo(append([]byte{244, 4}, "test and no more"...), to)
		}
		time.Sleep(time.Second)
		n := counter(t, a.reg, "kvmesh_mesh_dropped_total", "reason", "bad_packet")
		a.stop()
		if lines := strings.Count(out.String(), "level=WARN"); lines > 4 || n < 390 {
			t.Errorf("%d lines, %v counted:\n%s", lines, n, out.String())
		}
	})
}

func TestMemNetworkDelaysCutsAndBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewMemNetwork(1)
		n.SetDelay(20*time.Millisecond, 0)
		a, err := n.ListenPacket("udp", "10.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := n.ListenPacket("udp", "10.0.0.2:5")
		if _, err := n.ListenPacket("udp", "10.0.0.2:5"); err == nil {
			t.Error("one address was given twice")
		}
		passes := func() bool {
			a.WriteTo([]byte("x"), b.LocalAddr())
			b.SetReadDeadline(time.Now().Add(time.Second))
			defer b.SetReadDeadline(time.Time{})
			start := time.Now()
			_, from, err := b.ReadFrom(make([]byte, 10))
			if err == nil && (time.Since(start) != 20*time.Millisecond || from.String() != a.LocalAddr().String()) {
				t.Errorf("from %v after %v", from, time.Since(start))
			}
			if err != nil && !os.IsTimeout(err) {
				t.Errorf("read: %v", err)
			}
			return err == nil
		}
		if !passes() {
			t.Error("a packet was lost")
		}
		n.Partition([]netip.Addr{netip.MustParseAddr("10.0.0.1")})
		if passes() {
			t.Error("a packet crossed the cut")
		}
		n.Partition()
		n.Block(func(_, to netip.AddrPort) bool { return to.Port() == 5 })
		if passes() {
			t.Error("a blocked packet passed")
		}
		n.Block(nil)
		if n.SetLoss(1); passes() {
			t.Error("a lost packet passed")
		}
		b.Close()
		if _, _, err := b.ReadFrom(nil); err == nil {
			t.Error("a closed socket was read")
		}
	})
}

func TestMembersWithoutNameOrAddressAreVetoed(t *testing.T) {
	d := newDelegate(&Mesh{metrics: mustMetrics(t)})
	good := &memberlist.Node{Name: "g1", Meta: encodeAbout(someAbout)}
	if err := d.NotifyAlive(good); err != nil {
		t.Error(err)
	}
	for _, n := range []*memberlist.Node{{Name: "a/b", Meta: good.Meta}, {Name: "g1"}, {Name: "g1", Meta: good.Meta[:9]}} {
		if d.NotifyAlive(n) == nil {
			t.Errorf("%+v was let in", n)
		}
	}
}

func TestRefusalsAreSentences(t *testing.T) {
	for want, r := range map[string]Refusal{
		"refused 10.0.0.1:1: why":          {Addr: "10.0.0.1:1", Reason: "why"},
		"refused by g1 at 10.0.0.1:1: why": {Addr: "10.0.0.1:1", Name: "g1", Reason: "why", ByPeer: true},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestUnrunMeshCanBeClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m, err := New(w.config("a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Open(t.Context(), "b", KindProbe); err == nil {
			t.Error("a stream was opened before Run")
		}
		if err := m.SendDatagram("b", nil); err == nil {
			t.Error("a datagram was sent before Run")
		}
		m.Close()
		if err := m.Run(context.Background()); err == nil {
			t.Error("a closed mesh ran")
		}
	})
}
