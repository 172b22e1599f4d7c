package simcluster

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/node"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// talk is conversations that go on for ever, in a mesh whose hit ratio is looked at meanwhile. Each has eight turns and
// then begins anew with another text, and takes any ingress.
type talk struct {
	c      *Cluster
	t      *testing.T
	period time.Duration // between two requests
	turns  []int         // of each conversation so far
	seeds  []uint64

	mu             sync.Mutex
	cached, prompt int // tokens since they were looked at
}

const (
	turnsOfTalk = 8
	bytesOfTurn = 1500
)

// bound is how much may be lost: what was promised, and twice that where chance has as few conversations to play with.
func bound(promised float64) float64 {
	if os.Getenv("KVMESH_LONG") != "" {
		return promised
	}
	return 2 * promised
}

// size is how many agents and conversations there are: fewer where the race detector looks on.
func size() (agents, talkers int) {
	if os.Getenv("KVMESH_LONG") != "" {
		return 8, 240
	}
	return voters, 32
}

// converse begins conversations of which each is at another turn.
func converse(ctx context.Context, t *testing.T, c *Cluster) *talk {
	_, n := size()
	k := &talk{c: c, t: t, period: pace / time.Duration(n), turns: make([]int, n), seeds: make([]uint64, n)}
	rng := c.Rand()
	for i := range k.turns {
		k.turns[i], k.seeds[i] = i%turnsOfTalk, rng.Uint64()
	}
	go k.run(ctx, rng)
	return k
}

// run has the conversations take turns in an order of chance, one turn each a pace.
func (k *talk) run(ctx context.Context, rng *rand.Rand) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		for _, i := range rng.Perm(len(k.turns)) {
			if ctx.Err() != nil {
				return
			}
			if k.turns[i]++; k.turns[i] > turnsOfTalk {
				k.turns[i], k.seeds[i] = 1, rng.Uint64()
			}
			body := ChatBody("", text(k.seeds[i], k.turns[i]*bytesOfTurn))
			ingress := rng.IntN(k.c.config.Agents)
			wg.Go(func() { k.ask(ctx, ingress, body) })
			time.Sleep(k.period)
		}
	}
}

func (k *talk) ask(ctx context.Context, ingress int, body string) {
	a, err := k.c.Chat(ctx, ingress, body)
	if ctx.Err() != nil {
		return
	}
	if err != nil || faultOf(a) != "" {
		k.t.Errorf("answer not whole: %v", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cached += cached(k.t, a)
	k.prompt += len(body) / 4
}

// hits returns the share of prompt tokens that was cached over a time, in points.
func (k *talk) hits(d time.Duration) float64 {
	k.mu.Lock()
	k.cached, k.prompt = 0, 0
	k.mu.Unlock()
	time.Sleep(d)
	k.mu.Lock()
	defer k.mu.Unlock()
	return 100 * float64(k.cached) / float64(k.prompt)
}

// pace is the time in which each conversation has one turn. They are at different turns, so any two such times are alike.
const pace = 5 * time.Second

// moment is how long the hit ratio is looked at: two turns of each.
const moment = 2 * pace

// post makes a change of the agreed state.
func post(t *testing.T, c *Cluster, path string, query url.Values) {
	t.Helper()
	status, body, err := c.DebugPost(t.Context(), c.config.Agents-1, path+"?"+query.Encode(), "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("%s: %d %s %v", path, status, body, err)
	}
}

// changing runs f on a mesh under load, with the hit ratio of before; the name is that of what changes.
func changing(t *testing.T, name string, f func(t *testing.T, c *Cluster, k *talk, before float64)) {
	engines := engineWith(func(_ int, e *simengine.Config) { e.CapacityTokens = 1 << 17 })
	agents, _ := size()
	Test(t, deciding(t, Config{Agents: agents, Delay: lan, Engine: engines}), func(t *testing.T, c *Cluster) {
		c.Whole(wholeWithin)
		c.decided(30 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer c.Quiet(time.Minute)
		defer cancel()
		k := converse(ctx, t, c)
		time.Sleep(turnsOfTalk * pace) // a whole life of each, before all is as it will be
		before := k.hits(turnsOfTalk * pace)
		t.Logf("figure %s_change_hits_before %.3g points", name, before)
		f(t, c, k, before)
	})
}

// until looks at the hit ratio again and again until done, and returns the largest loss against before.
func (k *talk) until(before float64, limit time.Duration, done func() bool) (loss float64) {
	k.t.Helper()
	loss = math.Inf(-1)
	for start := time.Now(); !done(); {
		if time.Since(start) > limit {
			k.t.Fatalf("not done within %v: %+v", limit, k.c.Status(0).Agreed.Schemes)
		}
		now := k.hits(moment)
		k.t.Logf("%v: %.1f %%", time.Since(start), now)
		loss = max(loss, before-now)
	}
	return loss
}

func TestGeometryChangesUnderLoad(t *testing.T) {
	changing(t, "geometry", func(t *testing.T, c *Cluster, k *talk, before float64) {
		post(t, c, "/debug/geometry", url.Values{"step": {"begin"}, "bits": {"262144"}})
		phases := map[string]bool{}
		loss := k.until(before, 10*time.Minute, func() bool {
			s := c.Status(0).Agreed.Geometry
			phases[string(s.Phase)] = true
			return s.Phase == "" && s.Current == "262144 bits and 5 hashes"
		})
		loss = max(loss, before-k.hits(moment))
		if !phases["both"] || !phases["switched"] {
			t.Errorf("phases seen: %v", phases)
		}
		if !c.each(func(s node.Status) bool { return s.Agreed.Geometry.Read == "262144 bits and 5 hashes" }) {
			t.Error("not all read the new digests")
		}
		_, left := c.awaitNone(5*time.Second, c.StaleDigests)
		t.Logf("figure geometry_change_digests_differ %d engines", len(left))
		if len(left) > 0 {
			t.Errorf("digests differ: %v", left)
		}
		t.Logf("figure geometry_change_hits_lost %.3g points", loss)
		if loss > bound(2) {
			t.Errorf("%.1f points of hits are lost while the geometry changes", loss)
		}
	})
}

func TestKeySchemeChangesUnderLoad(t *testing.T) {
	changing(t, "scheme", func(t *testing.T, c *Cluster, k *talk, before float64) {
		post(t, c, "/debug/scheme", url.Values{"step": {"begin"}, "model": {"*"}, "seed": {"5eed"}})
		begun := time.Now()
		loss := k.until(before, 31*time.Minute, func() bool { return time.Since(begun) > time.Second && !c.Status(0).Agreed.Schemes[0].Window })
		t.Logf("the window ended after %v", time.Since(begun))
		for range 6 {
			loss = max(loss, before-k.hits(moment))
		}
		t.Logf("figure scheme_change_hits_lost %.3g points", loss)
		if loss > bound(5) {
			t.Errorf("%.1f points of hits are lost while the key scheme changes", loss)
		}
	})
}
