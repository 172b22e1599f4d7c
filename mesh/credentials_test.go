package mesh

import (
	"io"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"
)

// both starts two agents whose certificates are valid for so long, and waits until they are connected.
func (w *world) both(validity time.Duration) (a, b *agent) {
	w.t.Helper()
	start := func(name string, seeds ...string) *agent {
		c := w.config(name, seeds...)
		c.Identity = mustIssue(w.t, w.ca, name, validity)
		return w.run(c)
	}
	a = start("a")
	b = start("b", a.QUICAddr().String())
	await(w.t, 3*time.Second, "connected", func() bool { return connectedTo(a, "b")() && connectedTo(b, "a")() })
	return a, b
}

// talks checks that a stream carries a text there and back. A long one comes back while it is still written: what waits
// unread is bounded at both ends.
func talks(t *testing.T, s *Stream, text string) {
	t.Helper()
	written := make(chan error, 1)
	go func() {
		_, err := s.Write([]byte(text))
		written <- err
	}()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(s, got); err != nil || string(got) != text {
		t.Fatalf("%q, %v", got, err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

func mustSetIdentity(t *testing.T, a *agent, id Identity) {
	t.Helper()
	if err := a.SetIdentity(id); err != nil {
		t.Fatal(err)
	}
}

func TestRotationOfCertificatesBreaksNoStream(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.both(10 * time.Minute)
		s, err := b.Open(t.Context(), "a", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		talks(t, s, "with the first certificates")
		old := b.table.current("a")
		time.Sleep(5 * time.Minute)
		mustSetIdentity(t, a, mustIssue(t, w.ca, "a", time.Hour))
		mustSetIdentity(t, b, mustIssue(t, w.ca, "b", time.Hour))
		time.Sleep(2 * time.Minute)
		if b.table.current("a") != old {
			t.Error("the connection was replaced before its time")
		}
		time.Sleep(10 * time.Minute)
		for _, x := range []*agent{a, b} {
			pc := x.table.current(map[string]string{"a": "b", "b": "a"}[x.Name()])
			if pc == nil || serialOf(pc.cert) == serialOf(old.cert) || pc.until.Sub(old.until) < 30*time.Minute {
				t.Errorf("%s still uses the old certificate: %+v", x.Name(), pc)
			}
			if x.saw("down") || len(x.Refusals()) > 0 || len(x.Health()) > 1 {
				t.Errorf("%s was told %q, refusals %v, health notes %q", x.Name(), x.got(&x.events), x.Refusals(), x.Health())
			}
		}
		talks(t, s, "after the first certificates")
		if !old.open() {
			t.Error("the connection was closed under its stream")
		}
		s.Close()
		await(t, 2*drainQuiet, "the old connection is closed", func() bool { return !old.open() })
		if a.saw("down") || b.saw("down") {
			t.Errorf("a was told %q, b %q", a.got(&a.events), b.got(&b.events))
		}
	})
}

func TestRenewedConnectionIsKeptWhoeverDialedIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.run(w.config("a")), w.run(w.config("b"))
		if _, err := a.dial(t.Context(), b.QUICAddr(), "b"); err != nil { // the smaller name's, which is kept otherwise
			t.Fatal(err)
		}
		mustSetIdentity(t, a, mustIssue(t, w.ca, "a", 60*24*time.Hour))
		mustSetIdentity(t, b, mustIssue(t, w.ca, "b", 60*24*time.Hour))
		renewed, err := b.dial(t.Context(), a.QUICAddr(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * drainQuiet)
		if a.table.current("b").dialed || b.table.current("a") != renewed || len(a.table.all())+len(b.table.all()) != 2 {
			t.Errorf("a keeps %d connections, b %d", len(a.table.all()), len(b.table.all()))
		}
	})
}

func TestRotationDoesNotWaitForFeeds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.both(10 * time.Minute)
		s, err := b.Open(t.Context(), "a", KindFeed)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		talks(t, s, "a feed")
		mustSetIdentity(t, a, mustIssue(t, w.ca, "a", time.Hour))
		mustSetIdentity(t, b, mustIssue(t, w.ca, "b", time.Hour))
		old := b.table.current("a")
		time.Sleep(10 * time.Minute)
		if old.open() || b.table.current("a") == nil || b.saw("down") {
			t.Errorf("the old connection is open: %v; b was told %q", old.open(), b.got(&b.events))
		}
	})
}

func TestPeerThatWasNotRenewedIsRefusedAndComesBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.both(10 * time.Minute)
		s, err := b.Open(t.Context(), "a", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		talks(t, s, "for longer than the certificate")
		mustSetIdentity(t, a, mustIssue(t, w.ca, "a", time.Hour))
		took := await(t, 20*time.Minute, "b is down", func() bool { return a.saw("down b: the certificate of the connection has ended") })
		if took < 9*time.Minute || took > 10*time.Minute+2*reviewEvery {
			t.Errorf("after %v", took)
		}
		time.Sleep(time.Minute)
		wantRefusal(t, a, false, "certificate expired at")
		if notes := strings.Join(b.Health(), "\n"); !strings.Contains(notes, "the certificate of this agent has ended at") {
			t.Errorf("health notes of b: %q", notes)
		}
		mustSetIdentity(t, b, mustIssue(t, w.ca, "b", time.Hour))
		await(t, 30*time.Second, "b is back", func() bool { return connectedTo(a, "b")() && connectedTo(b, "a")() })
		talks(t, s, "and a new one")
	})
}

func TestAuthorityTakesOverFromAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b := w.both(24 * time.Hour)
		s, err := b.Open(t.Context(), "a", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		talks(t, s, "by the first authority")
		first, second := w.ca, mustAuthority(t, "test")
		both := []*Authority{{mesh: "test", cert: first.cert, key: first.key}, {mesh: "test", cert: second.cert, key: second.key}}
		for _, ca := range both {
			ca.trusted = append(slices.Clone(first.trusted), second.trusted...)
		}
		// First all believe both, then all are certified by the second, then none believes the first.
		for _, ca := range []*Authority{both[0], both[1], second} {
			for _, x := range []*agent{a, b} {
				mustSetIdentity(t, x, mustIssue(t, ca, x.Name(), 24*time.Hour))
				time.Sleep(10 * time.Second)
			}
		}
		time.Sleep(10 * time.Second)
		for _, x := range []*agent{a, b} {
			if pcs := x.table.connected(); len(pcs) != 1 || issuer(second.trusted, pcs[0].cert) == nil {
				t.Errorf("%s has %d connections, or one by the first authority", x.Name(), len(pcs))
			}
			if len(x.Refusals()) > 0 {
				t.Errorf("%s refused %v", x.Name(), x.Refusals())
			}
		}
		talks(t, s, "by the second authority")
		s.Close()
	})
}

func TestIdentityThatDoesNotFitIsNotTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		before := a.creds.identity()
		for want, id := range map[string]Identity{
			`for agent "b", not "a"`:    mustIssue(t, w.ca, "b", time.Hour),
			`for mesh "prod", not`:      mustIssue(t, mustAuthority(t, "prod"), "a", time.Hour),
			"certificate expired":       mustIssue(t, w.ca, "a", -time.Minute),
			"no certificate, key or CA": {},
		} {
			if err := a.SetIdentity(id); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		if a.creds.identity() != before {
			t.Error("the identity was replaced")
		}
	})
}

func TestRevocationClosesWithinASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		s, err := c.Open(t.Context(), "a", KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		talks(t, s, "believed")
		serial := c.creds.identity().Serial()
		for _, x := range []*agent{a, b} {
			if err := x.Revoke([]string{"no serial", "serial=" + strings.ToLower(serial)}); err == nil || !strings.Contains(err.Error(), `"no serial"`) {
				t.Errorf("Revoke: %v", err)
			}
		}
		took := await(t, 2*time.Second, "c is down", func() bool { return a.saw("down c") && b.saw("down c") })
		if took > time.Second {
			t.Errorf("took %v", took)
		}
		if _, err := io.ReadAll(s); err == nil {
			t.Error("a stream of the revoked agent ended as if all were well")
		}
		time.Sleep(time.Minute)
		wantRefusal(t, a, false, "the certificate with serial "+serial+" is revoked")
		wantRefusal(t, c, true, "the certificate with serial "+serial+" is revoked")
		if n := counter(t, a.reg, "kvmesh_mesh_refused_total", "reason", "revoked"); n < 2 {
			t.Errorf("%v counted, want the closed connection and those tried since", n)
		}
		if events := a.got(&a.events); strings.Count(strings.Join(events, "\n"), "up c") != 1 {
			t.Errorf("a was told %q", events)
		}
		if p, _ := a.Peer("c"); p.Connected || !connectedTo(a, "b")() {
			t.Errorf("a sees c as %+v", p)
		}
		mustSetIdentity(t, c, mustIssue(t, w.ca, "c", time.Hour))
		await(t, 30*time.Second, "c is back with a new certificate", func() bool { return connectedTo(a, "c")() && connectedTo(b, "c")() })
	})
}

func TestAgentKnowsThatItIsRevoked(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		a.Revoke([]string{a.creds.identity().Serial()})
		if notes := strings.Join(a.Health(), "\n"); !strings.Contains(notes, "is revoked: its peers refuse it") {
			t.Errorf("health notes: %q", notes)
		}
	})
}

func TestSerialNumbersAsToolsPrintThem(t *testing.T) {
	for in, want := range map[string]string{
		"serial=0A1B": "0A1B", "a1b": "0A1B", "0x0a1b": "0A1B", "00:0a:1b": "0A1B", " 7f\n": "7F", "0": "00",
		"": "", "0A1G": "", "-1": "", "serial=": "", strings.Repeat("1", maxSerial+1): "",
	} {
		if got, err := ParseSerial(in); got != want || (want == "") != (err != nil) {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
	if got := formatSerial(big.NewInt(0xabc)); got != "0ABC" {
		t.Errorf("%q", got)
	}
}
