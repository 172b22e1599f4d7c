package mesh

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// twoSockets are two sockets of one network, and what the second has received.
type twoSockets struct {
	net  *MemNetwork
	a, b net.PacketConn
	got  chan arrival
}

// arrival is a packet by its first byte, and when it came.
type arrival struct {
	first byte
	after time.Duration
}

// between runs f on two hosts of a network in fake time.
func between(t *testing.T, hostA, hostB string, f func(t *testing.T, p *twoSockets)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &twoSockets{net: NewMemNetwork(1), got: make(chan arrival, 10_000)}
		var err error
		if p.a, err = p.net.ListenPacket("udp", hostA); err != nil {
			t.Fatal(err)
		}
		if p.b, err = p.net.ListenPacket("udp", hostB); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		go func() {
			buf := make([]byte, 2000)
			for {
				if _, _, err := p.b.ReadFrom(buf); err != nil {
					return
				}
				p.got <- arrival{buf[0], time.Since(start)}
			}
		}()
		f(t, p)
		p.a.Close()
		p.b.Close()
	})
}

// send sends packets of size bytes, numbered from 0, at one moment.
func (p *twoSockets) send(count, size int) {
	for i := range count {
		b := make([]byte, size)
		b[0] = byte(i)
		p.a.WriteTo(b, p.b.LocalAddr())
	}
}

// arrivals returns what has come a second later.
func (p *twoSockets) arrivals() []arrival {
	time.Sleep(time.Second)
	var all []arrival
	for len(p.got) > 0 {
		all = append(all, <-p.got)
	}
	return all
}

func TestMemNetworkRepeatsAShareOfThePackets(t *testing.T) {
	between(t, "10.0.0.1:1", "10.0.0.2:1", func(t *testing.T, p *twoSockets) {
		p.net.SetDelay(time.Millisecond, 5*time.Millisecond)
		p.net.SetRepeat(0.25)
		p.send(200, 10)
		times := map[byte]int{}
		for _, a := range p.arrivals() {
			times[a.first]++
		}
		twice := 0
		for n, k := range times {
			if k > 2 {
				t.Errorf("packet %d came %d times", n, k)
			}
			if k == 2 {
				twice++
			}
		}
		if len(times) != 200 || twice < 30 || twice > 70 {
			t.Errorf("%d of 200 packets came, %d twice", len(times), twice)
		}
		if p.net.SetRepeat(0); len(p.arrivals()) > 0 {
			t.Error("packets come from nowhere")
		}
	})
}

func TestMemNetworkDropsWhatIsLargerThanThePath(t *testing.T) {
	for _, test := range []struct {
		hosts   [2]string
		headers int
	}{
		{[2]string{"10.0.0.1:1", "10.0.0.2:1"}, 28},
		{[2]string{"[fd00::1]:1", "[fd00::2]:1"}, 48},
	} {
		between(t, test.hosts[0], test.hosts[1], func(t *testing.T, p *twoSockets) {
			p.net.SetMTU(1280)
			p.send(1, 1280-test.headers+1)
			if all := p.arrivals(); len(all) > 0 {
				t.Errorf("%v: a packet of 1,281 bytes passed", test.hosts)
			}
			p.send(1, 1280-test.headers)
			if all := p.arrivals(); len(all) != 1 {
				t.Errorf("%v: a packet of 1,280 bytes was lost", test.hosts)
			}
		})
	}
}

func TestMemNetworkCarriesAsMuchAsItsRate(t *testing.T) {
	between(t, "10.0.0.1:1", "10.0.0.2:1", func(t *testing.T, p *twoSockets) {
		p.net.SetRate(100_000)
		p.send(20, 1000-28) // each is sent in 10 ms; after six the next would wait longer than the queue is
		all := p.arrivals()
		if len(all) != 6 {
			t.Fatalf("%d packets came: %v", len(all), all)
		}
		for i, a := range all {
			if want := time.Duration(i+1) * 10 * time.Millisecond; int(a.first) != i || a.after != want {
				t.Errorf("packet %d came after %v, want packet %d after %v", a.first, a.after, i, want)
			}
		}
		start := time.Now()
		for time.Since(start) < time.Second {
			p.send(1, 1000-28)
			time.Sleep(5 * time.Millisecond)
		}
		if n := len(p.arrivals()); n < 100 || n > 106 {
			t.Errorf("%d kB passed in a second, want the rate and the queue: 105", n)
		}
	})
}

func TestMemNetworkGivesALinkItsOwnSettings(t *testing.T) {
	between(t, "10.0.0.1:1", "10.0.0.2:1", func(t *testing.T, p *twoSockets) {
		a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		p.net.SetLoss(1)
		p.net.SetLink(a, b, &MemLink{Delay: 30 * time.Millisecond})
		p.net.SetLink(b, a, &MemLink{Delay: time.Hour})
		p.send(1, 10)
		if all := p.arrivals(); len(all) != 1 || all[0].after != 30*time.Millisecond {
			t.Errorf("%v came, want one packet after 30 ms", all)
		}
		p.net.SetLink(a, b, nil)
		if p.send(10, 10); len(p.arrivals()) > 0 {
			t.Error("packets came over a link that loses all")
		}
	})
}

// On a path of 1,280 bytes agents find each other and stay members, and datagrams and the bytes of streams arrive.
func TestMeshLivesOnAPathOf1280Bytes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.net.SetMTU(1280 - 20) // IPv4's header is so much shorter: this is what IPv6 leaves to UDP
		a, b, c := w.three()
		time.Sleep(30 * time.Second)
		if h := slices.Concat(a.Health(), b.Health(), c.Health()); len(h) > 0 {
			t.Errorf("health notes: %q", h)
		}
		s, err := a.Open(t.Context(), "b", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		go func() {
			s.Write(make([]byte, 100_000))
			s.CloseWrite()
		}()
		if echo, err := io.ReadAll(s); err != nil || len(echo) != 100_000 {
			t.Errorf("%d bytes came back: %v", len(echo), err)
		}
		if err := a.SendDatagram("b", make([]byte, MaxDatagram)); err != nil {
			t.Fatal(err)
		}
		await(t, 5*time.Second, "the largest datagram", func() bool { return len(b.got(&b.datagrams)) == 1 })
	})
}

func TestLossRepeatsAndReorderingBreakNoStream(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		w.net.SetDelay(time.Millisecond, 20*time.Millisecond)
		w.net.SetLoss(0.1)
		w.net.SetRepeat(0.2)
		var echoed atomic.Int64
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 20 {
			s, err := a.Open(ctx, "b", KindRequest)
			if err != nil {
				t.Fatal(err)
			}
			s.SetDeadline(time.Now().Add(time.Minute))
			go func() {
				s.Write(make([]byte, 5000))
				s.CloseWrite()
			}()
			n, err := io.Copy(io.Discard, s)
			if err != nil {
				t.Error(err)
			}
			echoed.Add(n)
			s.Close()
		}
		if n := echoed.Load(); n != 20*5000 {
			t.Errorf("%d bytes came back", n)
		}
	})
}
