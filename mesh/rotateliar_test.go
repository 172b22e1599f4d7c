package mesh

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// A rotation that another has overtaken says so, and does not wait for peers to take what they have left behind.
func TestRotationThatIsOvertakenSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		quicOf := func(at netip.AddrPort) bool { return at == a.QUICAddr() || at == c.QUICAddr() }
		w.net.Block(func(from, to netip.AddrPort) bool { return quicOf(from) && quicOf(to) })
		time.Sleep(10 * time.Second)
		errs := make(chan error)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() { errs <- a.RotateGossipKey(ctx) }()
		time.Sleep(5 * time.Second)
		if !b.takeKeys(keySet{version: 9, keys: [][]byte{w.key}}.full()) {
			t.Fatal("newer keys are not taken")
		}
		err := <-errs
		if err == nil || !strings.Contains(err.Error(), "others changed the keys meanwhile") || time.Since(begin) > 15*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

// Beyond the last version that peers read, an agent's hellos would be refused.
func TestKeysAreNotRotatedBeyondTheLastVersion(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, _ := w.three()
		for _, version := range []uint64{maxKeyVersion - 2, maxKeyVersion} {
			a.takeKeys(keySet{version: version, keys: [][]byte{w.key}}.full())
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			err := a.RotateGossipKey(ctx)
			cancel()
			if err == nil || !strings.Contains(err.Error(), "version") {
				t.Errorf("keys of version %d are rotated: %v", version, err)
			}
		}
		again := w.run(w.config("d", a.QUICAddr().String()))
		await(t, 10*time.Second, "another joins", connectedTo(again, "a"))
		await(t, 10*time.Second, "and takes the keys", haveKeys(maxKeyVersion, a, b, again))
	})
}

// Somebody who shows a revoked certificate says nothing of the agent that has the name.
func TestRevokedCertificateOfAConnectedNameChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, _, _ := w.three()
		imposter := w.config("b", a.QUICAddr().String())
		a.Revoke([]string{imposter.Identity.Serial()})
		w.run(imposter)
		await(t, 10*time.Second, "it is refused", func() bool { return len(a.Refusals()) > 0 })
		if behind := a.table.behind(offer{version: 99}); !slices.Contains(behind, "b") {
			t.Errorf("a rotation would wait for %v only", behind)
		}
	})
}

// From its revocation on an agent gets no keys, also while its connections are still to be closed.
func TestRevokedAgentGetsNoKeysBeforeItIsCutOff(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		b.stop()
		a.creds.mu.Lock()
		a.creds.revoked[c.creds.identity().Serial()] = true // what Revoke does first
		a.creds.mu.Unlock()
		a.takeKeys(keySet{version: 1, keys: [][]byte{NewGossipKey()}}.full())
		a.CompareGossipKeys(t.Context())
		c.CompareGossipKeys(t.Context())
		if p, _ := a.Peer("c"); !p.Connected {
			t.Fatal("it was cut off before")
		}
		if got := c.GossipKeys().Version; got != 0 {
			t.Errorf("it has keys of version %d", got)
		}
	})
}
