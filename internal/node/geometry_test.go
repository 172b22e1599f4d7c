package node

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/mesh/agreed"
)

// council is a group in which all hear of everything at once.
type council struct {
	mu      sync.Mutex
	state   *agreed.State
	changed chan struct{}
	kinds   []agreed.Kind // that were proposed
}

func newCouncil(c agreed.GeometryChange) *council {
	return &council{state: &agreed.State{Geometry: c}, changed: make(chan struct{})}
}

func (c *council) change(edit func(*agreed.GeometryChange)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := *c.state
	edit(&next.Geometry)
	c.state = &next
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *council) propose(command agreed.Command) agreed.Result {
	c.change(func(g *agreed.GeometryChange) {
		g.Since = time.Now()
		switch command.Kind {
		case agreed.KindGeometry:
			g.Next, g.Phase = command.Geometry, agreed.PhaseBoth
		case agreed.KindGeometrySwitch:
			g.Phase = agreed.PhaseSwitched
		case agreed.KindGeometryFinish:
			*g = agreed.GeometryChange{Current: *g.Next, Since: g.Since}
		default:
			*g = agreed.GeometryChange{Current: g.Current, Since: g.Since}
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds = append(c.kinds, command.Kind)
	return agreed.Result{}
}

// steps returns what was proposed so far.
func (c *council) steps() []agreed.Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.kinds)
}

// seat is an agent's part in a council.
type seat struct {
	*council
	role agreed.Role
}

func (s seat) State() *agreed.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s seat) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s seat) Status() agreed.Status { return agreed.Status{Role: s.role} }

func (s seat) Propose(_ context.Context, c agreed.Command) (agreed.Result, error) {
	return s.propose(c), nil
}

// sit lets nodes follow the council; the first one leads it.
func (c *council) sit(t *testing.T, nodes ...*Node) {
	time.Sleep(time.Second) // they begin with what their own group says, which is nothing
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i, n := range nodes {
		role := agreed.RoleVoter
		if i == 0 {
			role = agreed.RoleLeader
		}
		wg.Go(func() { _ = n.followChanges(ctx, seat{c, role}) })
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// fill makes the engine beside an agent hold n keys that only it holds.
func fill(t *testing.T, n *Node, keys int) {
	t.Helper()
	p := &cachestate.Prompt{Bytes: int64(keys) * 40}
	for i := range keys {
		p.Keys = append(p.Keys, cachestate.Key((uint64(i)+1)*0x9e3779b97f4a7c15+uint64(n.config.Mesh.Name[0])<<40))
		p.Offsets = append(p.Offsets, uint32(i+1)*40)
	}
	b, _, err := n.agentsOf[0].Admit(engineagent.Admission{Prompt: p, QueuedAtProbe: -1})
	if err != nil {
		t.Fatal(err)
	}
	b.FirstContent()
	b.Finish(engineagent.Outcome{})
}

// A digest that fills up leads to a larger geometry on all agents, and no moment of the change knows less than before.
func TestFullDigestsGrow(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		small := agreed.Geometry{Bits: 1 << 10, Hashes: 5}
		c, nodes := newCouncil(agreed.GeometryChange{Current: small}), []*Node{}
		for _, name := range []string{"a", "b", "c"} {
			config := r.config(name, "e")
			if len(nodes) > 0 {
				config.Mesh.Join = []string{nodes[0].QUICAddr()}
			}
			n, _ := r.run(config)
			nodes = append(nodes, n)
		}
		c.sit(t, nodes...)
		await(t, "all know all", 20*time.Second, func() bool {
			return !slices.ContainsFunc(nodes, func(n *Node) bool { return n.UsableEngines() != len(nodes) })
		})
		fill(t, nodes[1], 120)
		knowing := func() int { // agents that know what the engine holds
			known := 0
			for _, n := range nodes {
				if n.index.Tier(cachestate.TierGPU).Keys("b/e") == 120 {
					known++
				}
			}
			return known
		}
		await(t, "its digest is everywhere", 2*time.Second, func() bool { return knowing() == len(nodes) })
		for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if knowing() != len(nodes) {
				t.Fatalf("in phase %q %d agents know what an engine holds", seat{council: c}.State().Geometry.Phase, knowing())
			}
		}
		if want := []agreed.Kind{agreed.KindGeometry, agreed.KindGeometrySwitch, agreed.KindGeometryFinish}; !slices.Equal(c.steps(), want) {
			t.Errorf("steps %v, want %v", c.steps(), want)
		}
		for _, n := range nodes {
			if got := n.index.Geometries(); len(got) != 1 || got[0].Bits != 1<<11 {
				t.Errorf("%s takes %v", n.config.Mesh.Name, got)
			}
			if d := n.agentsOf[0].Digests(); len(d) != 1 || d[0].Geometry.Bits != 1<<11 {
				t.Errorf("%s publishes %d digests", n.config.Mesh.Name, len(d))
			}
		}
	})
}

// A change that one agent does not follow is taken back, and one to what no agent can have changes nothing.
func TestGeometryThatDoesNotComeIsTakenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		a, _ := r.run(r.config("a", "e"))
		config := r.config("b", "e")
		config.Mesh.Join = []string{a.QUICAddr()}
		b, _ := r.run(config)
		c := newCouncil(agreed.GeometryChange{})
		c.sit(t, a) // b has a version that does not know of it
		await(t, "both know both", 20*time.Second, func() bool { return a.UsableEngines() == 2 && b.UsableEngines() == 2 })
		c.propose(agreed.Command{Kind: agreed.KindGeometry, Geometry: &agreed.Geometry{Bits: 1 << 18, Hashes: 5}})
		time.Sleep(3 * time.Minute)
		if want := []agreed.Kind{agreed.KindGeometry, agreed.KindGeometryRollback}; !slices.Equal(c.steps(), want) {
			t.Errorf("steps %v, want %v", c.steps(), want)
		}
		c.change(func(g *agreed.GeometryChange) { g.Current = agreed.Geometry{Bits: 1 << 40, Hashes: 5} })
		time.Sleep(10 * time.Second)
		if got := a.index.Geometries(); len(got) != 1 || got[0] != cachestate.DefaultGeometry() {
			t.Errorf("digests of %v are taken", got)
		}
	})
}
