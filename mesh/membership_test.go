package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// resolver answers for every name with the same addresses, which may change.
type resolver struct {
	mu      sync.Mutex
	hosts   []netip.Addr // none: the name does not exist
	lookups int
}

func (r *resolver) set(hosts ...netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts = hosts
}

func (r *resolver) lookup(context.Context, string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lookups++; len(r.hosts) == 0 {
		return nil, errors.New("no such host")
	}
	return slices.Clone(r.hosts), nil
}

func hostOf(a *agent) netip.Addr { return a.QUICAddr().Addr() }

func hostsOf(agents []*agent) (hosts []netip.Addr) {
	for _, a := range agents {
		hosts = append(hosts, hostOf(a))
	}
	return hosts
}

// many starts n agents at once, all of which join by one name that stands for all of them.
func (w *world) many(n int, change func(*Config)) ([]*agent, *resolver) {
	w.t.Helper()
	var names resolver
	configs := make([]Config, n)
	for i := range configs {
		configs[i] = w.config(fmt.Sprintf("n%02d", i), "mesh.example:7081")
		configs[i].LookupHost = names.lookup
		names.hosts = append(names.hosts, netip.MustParseAddrPort(configs[i].QUICBind).Addr())
		change(&configs[i])
	}
	agents := make([]*agent, n)
	for i, c := range configs {
		agents[i] = w.run(c)
	}
	return agents, &names
}

// fullMesh reports whether every agent is connected to every other.
func fullMesh(agents ...*agent) func() bool {
	var names []string
	for _, a := range agents {
		names = append(names, a.Name())
	}
	return func() bool {
		for _, a := range agents {
			others := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == a.Name() })
			if !connectedTo(a, others...)() {
				return false
			}
		}
		return true
	}
}

func productionTimings(c *Config) { c.Timings = DefaultConfig().Timings }

func TestManyAgentsThatStartAtOnceMakeOneConnectionAPair(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		n := 64
		if raceEnabled || testing.Short() {
			n = 16 // every handshake takes ten times as long
		}
		agents, _ := w.many(n, productionTimings)
		took := await(t, 15*time.Second, "a full mesh", fullMesh(agents...))
		t.Logf("%d agents are a full mesh after %v", n, took)
		dials := uint64(0)
		for _, a := range agents {
			dials += a.dials.Load()
			if a.saw("down") || len(a.Refusals()) > 0 {
				t.Errorf("%s was told %q, refusals %v", a.Name(), a.got(&a.events), a.Refusals())
			}
		}
		if pairs := uint64(n * (n - 1) / 2); dials > pairs+pairs/4 {
			t.Errorf("%d dials for %d pairs", dials, pairs)
		}
		time.Sleep(3 * drainQuiet)
		for _, a := range agents {
			if conns := len(a.table.all()); conns != n-1 {
				t.Errorf("%s has %d connections, want %d", a.Name(), conns, n-1)
			}
		}
	})
}

func TestGroupsThatStartedApartMeetByTheNameOfAll(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		some, first := w.many(3, productionTimings)
		rest, second := w.many(3, func(c *Config) {
			productionTimings(c)
			c.Name = "m" + c.Name[1:]
			c.Identity = mustIssue(t, w.ca, c.Name, time.Hour)
		})
		await(t, 15*time.Second, "two meshes", func() bool { return fullMesh(some...)() && fullMesh(rest...)() })
		all := slices.Concat(some, rest)
		if fullMesh(all...)() {
			t.Fatal("they have met already")
		}
		time.Sleep(time.Minute)
		first.set(hostsOf(all)...)
		second.set(hostsOf(all)...)
		await(t, 30*time.Second, "one mesh", fullMesh(all...))
	})
}

func TestHalvesWithoutSeedsMeetAgainAfterGossipForgot(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		agents, names := w.many(6, productionTimings)
		await(t, 15*time.Second, "a full mesh", fullMesh(agents...))
		names.set()
		w.net.Partition(hostsOf(agents[:3]), hostsOf(agents[3:]))
		time.Sleep(20 * time.Minute) // gossip remembers its dead for one
		for _, a := range agents {
			if n := len(a.table.connected()); n != 2 {
				t.Errorf("%s has %d connections in its half", a.Name(), n)
			}
		}
		w.net.Partition()
		took := await(t, 30*time.Second, "a full mesh", fullMesh(agents...))
		t.Logf("a full mesh again after %v", took)
		if took > 15*time.Second {
			t.Errorf("after %v", took)
		}
	})
}

func TestPeersForgottenAreFoundBySeedsOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		tune := func(c *Config) { c.Timings.ForgetAfter = 5 * time.Minute }
		agents, names := w.many(2, tune)
		a, b := agents[0], agents[1]
		await(t, 15*time.Second, "connected", fullMesh(agents...))
		names.set()
		w.net.Partition([]netip.Addr{hostOf(b)})
		time.Sleep(10 * time.Minute)
		if n := len(a.Peers()) + len(b.Peers()); n > 0 {
			t.Errorf("%d peers are remembered", n)
		}
		w.net.Partition()
		time.Sleep(time.Minute)
		if n := len(a.Peers()) + len(b.Peers()); n > 0 {
			t.Errorf("%d peers were found without seeds", n)
		}
		names.set(hostsOf(agents)...)
		await(t, 10*time.Second, "found by its seed", fullMesh(agents...))
	})
}

func TestNameThatChangesItsAddressesIsFollowed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var names resolver
		names.set(netip.MustParseAddr("10.0.0.200")) // nobody
		cb := w.config("b", "mesh.example:7081")
		cb.LookupHost = names.lookup
		b := w.run(cb)
		time.Sleep(30 * time.Second)
		a := w.run(w.config("a"))
		names.set(hostOf(a))
		await(t, 20*time.Second, "b follows the name", connectedTo(b, "a"))
		// The name moves to an agent that b has never heard of, in a mesh of its own.
		w.vanish(a)
		await(t, 30*time.Second, "a is gone", func() bool { p, _ := b.Peer("a"); return !p.Connected })
		names.set(hostOf(w.run(w.config("c"))))
		await(t, 10*time.Second, "b follows the name again", connectedTo(b, "c"))
		if names.lookups > 200 {
			t.Errorf("%d lookups in two minutes", names.lookups)
		}
	})
}

func TestRestartWithItsClockAnHourBackIsBelieved(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		inBubble(t, func(t *testing.T, w *world) {
			a, b, _ := w.three()
			cfg := w.config("d", a.QUICAddr().String())
			d := w.run(cfg)
			await(t, 3*time.Second, "d connected", connectedTo(b, "d"))
			w.vanish(d)
			cfg.Now = func() time.Time { return time.Now().Add(skew) }
			again := w.run(cfg)
			await(t, 5*time.Second, "the new d is known", func() bool {
				p, _ := b.Peer("d")
				return p.Instance == again.Instance() && p.Connected && connectedTo(again, "a", "b", "c")()
			})
			if p, _ := b.Peer("d"); time.Until(p.Started).Round(time.Minute) != skew {
				t.Errorf("d began at %v by its clock", p.Started)
			}
			if r := slices.Concat(a.Refusals(), b.Refusals(), again.Refusals()); len(r) > 0 {
				t.Errorf("refusals: %v", r)
			}
		})
	}
}

func TestClockThatJumpsBreaksNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var skew atomic.Int64
		a := w.run(w.config("a"))
		cb := w.config("b", a.QUICAddr().String())
		cb.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
		b := w.run(cb)
		await(t, 3*time.Second, "connected", fullMesh(a, b))
		for _, jump := range []time.Duration{24 * time.Hour, -30 * time.Minute, 0} {
			skew.Store(int64(jump))
			time.Sleep(30 * time.Second)
			if !fullMesh(a, b)() || a.saw("down") || b.saw("down") {
				t.Errorf("after a jump of %v: a was told %q, b %q", jump, a.got(&a.events), b.got(&b.events))
			}
		}
	})
}

func TestFlappingAgentLeavesNothingBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		cfg := w.config("d", a.QUICAddr().String(), b.QUICAddr().String())
		d := w.run(cfg)
		await(t, 10*time.Second, "d is a member", fullMesh(a, b, c, d))
		time.Sleep(30 * time.Second)
		before := runtime.NumGoroutine()
		for i := range 20 {
			if i%2 == 0 {
				w.vanish(d)
			} else {
				d.stop()
			}
			d = w.run(cfg)
			time.Sleep(time.Duration(i) * 200 * time.Millisecond)
		}
		await(t, 10*time.Second, "d is a member once more", fullMesh(a, b, c, d))
		time.Sleep(30 * time.Second)
		await(t, time.Minute, "no more goroutines than before", func() bool { return runtime.NumGoroutine() <= before })
		for _, x := range []*agent{a, b, c, d} {
			if n := len(x.table.all()); n != 3 || len(x.Peers()) != 3 || len(x.Refusals()) > 0 {
				t.Errorf("%s has %d connections, knows %v, refusals %v", x.Name(), n, x.Peers(), x.Refusals())
			}
		}
	})
}

func TestBlockedGossipPortIsAHealthNoteWithPeerAndPort(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		a, b, c := w.three()
		w.net.Block(func(from, to netip.AddrPort) bool { return from == a.GossipAddr() && to == b.GossipAddr() })
		const want = "is connected by QUIC, but gossip packets to it at "
		time.Sleep(30 * time.Second)
		for _, test := range []struct{ at, peer *agent }{{a, b}, {b, a}} {
			notes := strings.Join(test.at.Health(), "\n")
			if !strings.Contains(notes, "peer "+test.peer.Name()+" "+want+test.peer.GossipAddr().String()+"/udp") {
				t.Errorf("health notes of %s: %q", test.at.Name(), notes)
			}
		}
		if notes := c.Health(); len(notes) > 0 {
			t.Errorf("health notes of c: %q", notes)
		}
		if a.saw("down") || b.saw("down") {
			t.Errorf("a was told %q, b %q", a.got(&a.events), b.got(&b.events))
		}
		w.net.Block(nil)
		await(t, 30*time.Second, "no more notes", func() bool { return len(a.Health())+len(b.Health()) == 0 })
	})
}

func TestChangedMetaReachesPeersThatAreConnectedAndThoseThatCome(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		agents, names := w.many(3, productionTimings)
		await(t, 15*time.Second, "a full mesh", fullMesh(agents...))
		if err := agents[0].SetMeta([]byte("changed")); err != nil {
			t.Fatal(err)
		}
		if err := agents[0].SetMeta(make([]byte, MaxMeta+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("too much meta: got %v", err)
		}
		metaAt := func(a *agent) string {
			p, _ := a.Peer("n00")
			return string(p.Meta)
		}
		took := await(t, 5*time.Second, "both have it", func() bool { return metaAt(agents[1]) == "changed" && metaAt(agents[2]) == "changed" })
		t.Logf("changed after %v", took)
		c := w.config("n09", "mesh.example:7081")
		c.LookupHost = names.lookup
		late := w.run(c)
		await(t, 5*time.Second, "a late one is connected", connectedTo(late, "n00"))
		if got := metaAt(late); got != "changed" {
			t.Errorf("a late one has %q at once", got)
		}
		if agents[1].saw("down") || agents[2].saw("down") {
			t.Error("a peer was told that it is down")
		}
	})
}
