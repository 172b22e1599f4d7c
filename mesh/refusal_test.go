package mesh

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// wantRefusal checks that a keeps a refusal with that text, by itself or by its peer.
func wantRefusal(t *testing.T, a *agent, byPeer bool, text string) {
	t.Helper()
	for _, r := range a.Refusals() {
		if r.ByPeer == byPeer && strings.Contains(r.Reason, text) && r.Addr != "" {
			return
		}
	}
	t.Errorf("%s keeps no refusal (by peer: %v) with %q: %v", a.Name(), byPeer, text, a.Refusals())
}

// stranger starts an agent that dials a with another identity and mesh, and lets it try for a while.
func (w *world) stranger(a *agent, change func(*Config)) *agent {
	c := w.config("x", a.QUICAddr().String())
	change(&c)
	x := w.run(c)
	time.Sleep(3 * time.Second)
	return x
}

func TestForeignersAreRefusedWithTheReason(t *testing.T) {
	for _, test := range []struct {
		name   string
		ca     string // mesh of a CA of its own, "" for the common one
		text   string
		metric string
	}{
		{"other CA of the same mesh", "test", "not from this mesh's CA", "other_ca"},
		{"other mesh", "prod", `is of mesh`, "other_mesh"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				a := w.run(w.config("a"))
				ca, err := EphemeralAuthority(test.ca)
				if err != nil {
					t.Fatal(err)
				}
				x := w.stranger(a, func(c *Config) {
					c.MeshID = test.ca
					c.Identity, _ = ca.Issue(c.Name, time.Hour)
				})
				wantRefusal(t, x, false, test.text)
				wantRefusal(t, a, false, test.text)
				if n := counter(t, a.reg, "kvmesh_mesh_refused_total", "reason", test.metric); n == 0 {
					t.Errorf("nothing counted as %s", test.metric)
				}
				if len(a.Peers())+len(x.Peers()) > 0 || len(a.got(&a.events)) > 0 {
					t.Errorf("peers %v and %v, events %q", a.Peers(), x.Peers(), a.got(&a.events))
				}
			})
		})
	}
}

func TestDialerWithAForeignCertificateIsRefusedByTheAcceptor(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		other, _ := EphemeralAuthority("test")
		id, _ := other.Issue("x", time.Hour)
		sock, _ := w.net.ListenPacket("udp", "10.0.0.99:0")
		tr := &quic.Transport{Conn: sock}
		t.Cleanup(func() { tr.Close(); sock.Close() })
		conf := tlsConfigs{speaks: protocols{1, 1}}.client(&id)
		qc, err := tr.Dial(t.Context(), net.UDPAddrFromAddrPort(a.QUICAddr()), conf, nil)
		if err != nil {
			t.Fatal(err)
		}
		<-qc.Context().Done()
		_, err = qc.AcceptStream(t.Context())
		if err == nil || !strings.Contains(err.Error(), "not from this mesh's CA") {
			t.Errorf("the dialer was told %v", err)
		}
		wantRefusal(t, a, false, "not from this mesh's CA")
	})
}

func TestOtherProtocolIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		id, _ := w.ca.Issue("x", time.Hour)
		sock, _ := w.net.ListenPacket("udp", "10.0.0.99:0")
		tr := &quic.Transport{Conn: sock}
		t.Cleanup(func() { tr.Close(); sock.Close() })
		conf := tlsConfigs{}.client(&id)
		conf.NextProtos = []string{"kvmesh/2"}
		_, err := tr.Dial(t.Context(), net.UDPAddrFromAddrPort(a.QUICAddr()), conf, nil)
		if err == nil {
			t.Fatal("the handshake succeeded")
		}
		if got := explainDial(err, a.QUICAddr(), a.tls.speaks).Error(); !strings.Contains(got, "another major version") {
			t.Errorf("the dialer is told %q", got)
		}
		wantRefusal(t, a, false, "kvmesh/2")
	})
}

func TestCertificateForAnotherNameIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		b := w.run(w.config("b"))
		_, err := a.dial(t.Context(), b.QUICAddr(), "c")
		if err == nil || !strings.Contains(err.Error(), `"c" was dialed`) {
			t.Errorf("dial: %v", err)
		}
		time.Sleep(time.Second)
		wantRefusal(t, a, false, `"c" was dialed`)
		wantRefusal(t, b, true, `"c" was dialed`)
	})
}

func TestHelloOfAnotherNameIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		x, err := New(w.config("x"))
		if err != nil {
			t.Fatal(err)
		}
		x.cfg.Name = "liar"
		qc, err := x.quic.Dial(t.Context(), net.UDPAddrFromAddrPort(a.QUICAddr()), x.tls.client(x.creds.identity()), x.quicConfig)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.greet(t.Context(), qc, "", x.attempt(false)); err == nil {
			t.Error("the hello was accepted")
		}
		time.Sleep(time.Second)
		wantRefusal(t, a, false, `the hello is from "liar", the certificate for "x"`)
		x.quic.Close()
		x.Close()
	})
}

func TestSecondLiveAgentWithANameIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		twin := w.run(w.config("b", a.QUICAddr().String(), c.QUICAddr().String()))
		time.Sleep(20 * time.Second)
		wantRefusal(t, a, false, `"b" is taken by an agent at `+b.QUICAddr().String())
		wantRefusal(t, twin, true, `"b" is taken`)
		if p, _ := a.Peer("b"); p.Instance != b.Instance() || !p.Connected {
			t.Errorf("a sees b as %+v", p)
		}
		if a.saw("down b") || c.saw("down b") {
			t.Errorf("the older b was dropped: %q, %q", a.got(&a.events), c.got(&c.events))
		}
		b.stop()
		await(t, 30*time.Second, "the twin takes the name of the stopped agent", connectedTo(a, "b"))
	})
}

// unlink closes the connection of a and b, and lets neither dial again.
func unlink(a, b *agent) {
	for _, x := range []*agent{a, b} {
		for range cap(x.dialSlots) {
			x.dialSlots <- struct{}{}
		}
	}
	a.table.current(b.Name()).close(codeClosed, "test")
	time.Sleep(100 * time.Millisecond)
}

func TestNameIsNotTakenWhileDialsAreMany(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, _ := w.three()
		unlink(a, b)
		twin := w.run(w.config("b", a.QUICAddr().String()))
		await(t, 3*time.Second, "the older b is asked", connectedTo(a, "b"))
		time.Sleep(3 * time.Second)
		wantRefusal(t, twin, true, "which answers")
		if p, _ := a.Peer("b"); p.Instance != b.Instance() {
			t.Errorf("a sees b as %+v", p)
		}
	})
}

func TestNameIsNotTakenWhileTheOlderCannotBeAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, _ := w.three()
		unlink(a, b)
		for range cap(a.askSlots) {
			a.askSlots <- struct{}{}
		}
		twin := w.run(w.config("b", a.QUICAddr().String()))
		time.Sleep(3 * time.Second)
		wantRefusal(t, twin, true, "cannot be asked now")
		if p, _ := a.Peer("b"); p.Instance != b.Instance() || p.Connected {
			t.Errorf("a sees b as %+v", p)
		}
	})
}

func TestTwinOfThisAgentIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		twin := w.run(w.config("a", a.QUICAddr().String()))
		time.Sleep(2 * time.Second)
		wantRefusal(t, a, false, "is this agent's own")
		wantRefusal(t, twin, true, "is this agent's own")
	})
}

func TestRefusalsKeepTheLast(t *testing.T) {
	r := newRefusals(LocalConfig().withDefaults().Logger, mustMetrics(t))
	for i := range keepRefusals + 5 {
		r.add(&net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: i}, "x", refusef(reasonCA, "number %d\n\x1b", i))
	}
	got := r.all()
	if len(got) != keepRefusals || got[len(got)-1].Reason != "number 36  " {
		t.Errorf("%d refusals, last %q", len(got), got[len(got)-1].Reason)
	}
	if len(r.logged) != 1 {
		t.Errorf("the same refusal was logged %d times", len(r.logged))
	}
}
