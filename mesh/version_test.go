package mesh

import (
	"strings"
	"testing"
	"time"
)

// speaking starts an agent of another release.
func (w *world) speaking(p protocols, name string, seeds ...string) *agent {
	c := w.config(name, seeds...)
	c.protocols = p
	return w.run(c)
}

func TestReleasesWithACommonProtocolMesh(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.speaking(protocols{1, 2}, "a")
		b := w.speaking(protocols{1, 1}, "b", a.QUICAddr().String())
		c := w.speaking(protocols{1, 2}, "c", a.QUICAddr().String())
		await(t, 5*time.Second, "connected", func() bool {
			return connectedTo(a, "b", "c")() && connectedTo(b, "a", "c")() && connectedTo(c, "a", "b")()
		})
		for _, test := range []struct {
			from *agent
			to   string
			want uint8
		}{{a, "b", 1}, {b, "a", 1}, {b, "c", 1}, {c, "b", 1}, {a, "c", 2}, {c, "a", 2}} {
			if p, _ := test.from.Peer(test.to); p.Protocol != test.want {
				t.Errorf("%s and %s speak protocol %d, want %d", test.from.Name(), test.to, p.Protocol, test.want)
			}
		}
		s, err := b.Open(t.Context(), "a", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		talks(t, s, "across releases")
	})
}

func TestReleasesWithoutACommonProtocolAreNamed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.speaking(protocols{1, 2}, "a")
		x := w.speaking(protocols{3, 4}, "x", a.QUICAddr().String())
		time.Sleep(3 * time.Second)
		const text = "it speaks kvmesh/4, kvmesh/3, this agent protocols 1 to 2"
		wantRefusal(t, a, false, text)
		wantRefusal(t, x, true, text)
		if n := counter(t, a.reg, "kvmesh_mesh_refused_total", "reason", "other_version"); n == 0 {
			t.Error("nothing was counted")
		}
		if len(a.Peers())+len(x.Peers()) > 0 {
			t.Errorf("peers %v and %v", a.Peers(), x.Peers())
		}
	})
}

func TestMemberOfAnotherReleaseIsAHealthNote(t *testing.T) {
	table := newTable("a", protocols{1, 2})
	other := someAbout
	other.speaks = protocols{3, 3}
	table.joined("x", other, other.quic)
	const want = "peer x speaks protocol 3, this agent protocols 1 to 2: they cannot connect"
	if notes := table.health(time.Now()); strings.Join(notes, "\n") != want {
		t.Errorf("%q", notes)
	}
}

func TestProtocolRanges(t *testing.T) {
	for _, test := range []struct {
		a, b protocols
		want bool
	}{
		{protocols{1, 1}, protocols{1, 1}, true},
		{protocols{1, 2}, protocols{2, 3}, true},
		{protocols{1, 4}, protocols{2, 3}, true},
		{protocols{1, 1}, protocols{2, 3}, false},
	} {
		if test.a.meet(test.b) != test.want || test.b.meet(test.a) != test.want {
			t.Errorf("%v and %v: %v", test.a, test.b, !test.want)
		}
	}
	if got := strings.Join(protocols{254, 255}.alpn(), " "); got != "kvmesh/255 kvmesh/254 kvmesh" {
		t.Errorf("%q", got)
	}
	for negotiated, want := range map[string]uint8{"kvmesh/7": 7, "kvmesh": 0, "kvmesh/": 0, "kvmesh/256": 0, "": 0} {
		if got := agreedProtocol(negotiated); got != want {
			t.Errorf("%q: %d", negotiated, got)
		}
	}
}
