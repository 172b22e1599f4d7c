package mesh

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"
)

// four is three with d besides, whose files are in a folder.
func (w *world) four() (a, b, c, d *agent) {
	w.t.Helper()
	a, b, c = w.three()
	d = w.run(w.withFolder(w.config("d", a.QUICAddr().String())))
	await(w.t, 5*time.Second, "a full mesh of four", func() bool {
		return connectedTo(d, "a", "b", "c")() && connectedTo(a, "d")() && connectedTo(b, "d")() && connectedTo(c, "d")()
	})
	return a, b, c, d
}

// haveKeys reports whether all agents have the keys of the first, of that version, and decrypt with no others.
func haveKeys(version uint64, agents ...*agent) func() bool {
	return func() bool {
		want := agents[0].keys.current()
		for _, x := range agents {
			ring := x.keys.ring.GetKeys()
			if got := x.keys.current(); got.version != version || got.sum() != want.sum() || !slices.EqualFunc(ring, want.keys, bytes.Equal) {
				return false
			}
		}
		return true
	}
}

// speakGossip checks that memberlist's packets pass between all agents.
func speakGossip(t *testing.T, agents ...*agent) {
	t.Helper()
	for _, x := range agents {
		for _, y := range agents {
			if x == y {
				continue
			}
			p, _ := x.Peer(y.Name())
			if _, err := x.list.Load().Ping(y.Name(), net.UDPAddrFromAddrPort(p.GossipAddr)); err != nil {
				t.Errorf("%s pings %s: %v", x.Name(), y.Name(), err)
			}
		}
	}
}

func TestRotatedGossipKeyReachesEveryAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c, d := w.four()
		old := w.key
		if err := b.RotateGossipKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !haveKeys(3, b, a, c, d)() || bytes.Equal(b.keys.ring.GetPrimaryKey(), old) {
			t.Errorf("keys: %v, %v, %v, %v", a.GossipKeys(), b.GossipKeys(), c.GossipKeys(), d.GossipKeys())
		}
		speakGossip(t, a, b, c, d)
		for _, x := range []*agent{a, b, c, d} {
			if x.saw("down") {
				t.Errorf("%s was told %q", x.Name(), x.got(&x.events))
			}
			if n := counter(t, x.reg, "kvmesh_mesh_dropped_total", "reason", "bad_packet"); n > 0 {
				t.Errorf("%s could not read %v packets", x.Name(), n)
			}
		}
	})
}

func TestAgentThatMissedARotationIsHealedWhenItConnects(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c, d := w.four()
		w.net.Partition([]netip.Addr{d.QUICAddr().Addr()})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.RotateGossipKey(ctx); err != nil { // waits until gossip holds d for dead
			t.Fatal(err)
		}
		if !haveKeys(3, a, b, c)() || haveKeys(3, a, d)() {
			t.Errorf("keys: %v, %v, %v, %v", a.GossipKeys(), b.GossipKeys(), c.GossipKeys(), d.GossipKeys())
		}
		time.Sleep(5 * time.Minute)
		w.net.Partition()
		await(t, 10*time.Second, "d has the keys and is a member", func() bool {
			return haveKeys(3, a, b, c, d)() && connectedTo(d, "a", "b", "c")() && connectedTo(b, "d")()
		})
		speakGossip(t, a, b, c, d)
		for _, x := range []*agent{a, b, c, d} {
			if keys := x.CompareGossipKeys(t.Context()); len(keys.Behind) > 0 {
				t.Errorf("%s thinks of keys as %+v", x.Name(), keys)
			}
		}
	})
}

func TestAgentThatSleptThroughARotationJoins(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		agents, names := w.many(3, productionTimings) // they look for others every ten seconds
		a, b, c := agents[0], agents[1], agents[2]
		cfg := w.withFolder(w.config("d", "mesh.example:7081"))
		cfg.LookupHost = names.lookup
		productionTimings(&cfg)
		d := w.run(cfg)
		await(t, 5*time.Second, "a full mesh", fullMesh(a, b, c, d))
		d.stop()
		await(t, time.Minute, "d is dead", func() bool { p, _ := a.Peer("d"); return p.State != StateAlive })
		if err := a.RotateGossipKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		again := w.run(cfg)
		took := await(t, 20*time.Second, "d is a member", fullMesh(a, b, c, again))
		if !haveKeys(3, a, b, c, again)() || took > 2*time.Second {
			t.Errorf("after %v: keys %v and %v", took, a.GossipKeys(), again.GossipKeys())
		}
		file := filepath.Join(cfg.Certs, GossipKeyFile)
		saved, err := loadKeySet(file)
		if diff := cmp.Diff(a.keys.current(), saved, cmp.AllowUnexported(keySet{})); diff != "" || err != nil {
			t.Errorf("%v, in the file (-want +got):\n%s", err, diff)
		}
		if st, _ := os.Stat(file); st.Mode().Perm() != 0o600 {
			t.Errorf("the file has mode %v", st.Mode())
		}
		again.stop()
		if cfg.GossipKeys, err = LoadGossipKeys(file); err != nil {
			t.Fatal(err)
		}
		third := w.run(cfg)
		if got := third.GossipKeys(); got.Version != 3 {
			t.Errorf("started again it has %+v", got)
		}
	})
}

func TestRotationLeavesOutTheRevoked(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c, d := w.four()
		for _, x := range []*agent{a, b, d} {
			x.Revoke([]string{c.creds.identity().Serial()})
		}
		time.Sleep(time.Second)
		if p, _ := a.Peer("c"); p.State != StateAlive {
			t.Fatalf("gossip holds c for %v; it still has the key", p.State)
		}
		if err := a.RotateGossipKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if p, _ := a.Peer("c"); !haveKeys(3, a, b, d)() || c.GossipKeys().Version != 0 || p.State != StateDead {
			t.Errorf("keys: %v, %v, %v; a sees c as %v", a.GossipKeys(), d.GossipKeys(), c.GossipKeys(), p.State)
		}
		speakGossip(t, a, b, d)
	})
}

func TestRotationWaitsForPeersAndNamesThem(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		quicOf := func(at netip.AddrPort) bool { return at == a.QUICAddr() || at == c.QUICAddr() }
		w.net.Block(func(from, to netip.AddrPort) bool { return quicOf(from) && quicOf(to) }) // gossip still passes
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		errs := make(chan error)
		go func() { errs <- a.RotateGossipKey(ctx) }()
		time.Sleep(time.Second)
		if err := a.RotateGossipKey(t.Context()); !errors.Is(err, ErrRotating) {
			t.Errorf("a second rotation: %v", err)
		}
		if len(a.keys.current().keys) != 2 || !bytes.Equal(a.keys.ring.GetPrimaryKey(), w.key) {
			t.Errorf("a goes on without c: %v", a.GossipKeys())
		}
		// Whom a cannot reach, b tells.
		await(t, 30*time.Second, "c has the key by b", haveKeys(1, a, b, c))
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "adding the new key: not done by c") {
			t.Errorf("%v", err)
		}
		w.net.Block(nil)
		await(t, 30*time.Second, "connected", connectedTo(a, "c"))
		if err := c.RotateGossipKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !haveKeys(4, a, b, c)() || len(a.GossipKeys().Keys) != 1 {
			t.Errorf("keys: %v, %v, %v", a.GossipKeys(), b.GossipKeys(), c.GossipKeys())
		}
	})
}

func TestTwoRotationsAtOnceEndWithOneKey(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c, d := w.four()
		var wg sync.WaitGroup
		for _, x := range []*agent{a, d} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				x.RotateGossipKey(ctx) // one of them, or none, is the last
			})
		}
		wg.Wait()
		await(t, time.Minute, "all have the same", func() bool { return haveKeys(a.keys.current().version, a, b, c, d)() })
		speakGossip(t, a, b, c, d)
	})
}

func TestOneWrongGossipKeyFileChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a := w.run(w.config("a"))
		for range 4 { // whichever sum is the greater
			cx := w.config("x", a.QUICAddr().String())
			cx.GossipKeys = [][]byte{NewGossipKey()}
			x := w.run(cx)
			time.Sleep(time.Minute)
			if a.GossipKeys().Keys[0] != fingerprint(w.key) || x.GossipKeys().Keys[0] == fingerprint(w.key) {
				t.Errorf("keys: %v and %v", a.GossipKeys(), x.GossipKeys())
			}
			if notes := strings.Join(a.Health(), "\n"); !strings.Contains(notes, "peer x is connected, but no member: do its gossip keys differ?") {
				t.Errorf("health notes: %q", notes)
			}
			x.stop()
			time.Sleep(time.Minute)
		}
	})
}

func TestKeysThatCannotBeSavedAreAHealthNote(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.withFolder(w.config("a"))
		var log strings.Builder
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		a := w.run(c)
		if err := os.RemoveAll(c.Certs); err != nil {
			t.Fatal(err)
		}
		if err := a.RotateGossipKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		if notes := strings.Join(a.Health(), "\n"); !strings.Contains(notes, "the new gossip keys are not in") {
			t.Errorf("health notes: %q", notes)
		}
		a.stop()
		secret := strings.TrimSpace(string(appendKeySet(nil, keySet{keys: a.keys.current().keys})))
		if strings.Contains(log.String(), secret) || !strings.Contains(log.String(), a.GossipKeys().Keys[0]) {
			t.Errorf("the log shows the key, or not its fingerprint:\n%s", log.String())
		}
	})
}

// Whoever decrypts has memberlist's list of keys while it changes: run with -race.
func TestKeysChangeWhileOthersRead(t *testing.T) {
	keys := make([][]byte, 6)
	for i := range keys {
		keys[i] = bytes.Repeat([]byte{byte(i)}, GossipKeyBytes)
	}
	ring, err := memberlist.NewKeyring(nil, keys[0])
	if err != nil {
		t.Fatal(err)
	}
	k := &keyring{ring: ring, set: keySet{keys: keys[:1]}}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, key := range k.ring.GetKeys() {
				_ = key[0]
			}
		}
	})
	for i, want := range [][][]byte{keys, keys[3:], {keys[4], keys[1], keys[5]}, {keys[5]}, {keys[0], keys[5]}, {keys[0]}} {
		if !k.take(keySet{version: uint64(i + 1), keys: want}.full()) {
			t.Fatalf("step %d is not taken", i)
		}
		got := k.ring.GetKeys()
		sorted := func(keys [][]byte) [][]byte { return slices.SortedFunc(slices.Values(keys), bytes.Compare) }
		if diff := cmp.Diff(sorted(want), sorted(got)); diff != "" || !bytes.Equal(got[0], want[0]) {
			t.Errorf("step %d: primary %d, (-want +got):\n%s", i, got[0][0], diff)
		}
	}
	close(stop)
	wg.Wait()
	if k.take(keySet{version: 1, keys: keys}.full()) {
		t.Error("older keys were taken")
	}
}

func TestNewerKeysAreTheSameForAll(t *testing.T) {
	at := func(version uint64, sum byte) offer { return offer{version: version, sum: keySum{sum}} }
	for _, test := range []struct {
		a, b offer
		want bool
	}{
		{at(2, 0), at(1, 9), true},
		{at(1, 9), at(2, 0), false},
		{at(1, 2), at(1, 1), true},
		{at(1, 1), at(1, 2), false},
		{at(1, 1), at(1, 1), false},
		{at(0, 2), at(0, 1), false},
		{at(0, 1), at(0, 2), false},
		{at(1, 0), at(0, 9), true},
	} {
		if got := newer(test.a, test.b); got != test.want {
			t.Errorf("%v over %v: %v", test.a, test.b, got)
		}
	}
}
