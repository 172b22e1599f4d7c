package simcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/node"
)

// RunScript plays a script (see testdata) on a cluster of its own in fake time: in its long form where KVMESH_LONG is set.
// The first line that does not come true fails the test. What its expectations measured is logged at the end, one line
// "figure NAME VALUE UNIT" each, the worst where a script looks more than once; names begin with that of the script.
func RunScript(t *testing.T, path string) {
	t.Helper()
	s, err := readScript(path, os.Getenv("KVMESH_LONG") != "")
	if err != nil {
		t.Fatal(err)
	}
	Test(t, s.config, func(t *testing.T, c *Cluster) {
		figures, err := s.play(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range figures {
			t.Logf("figure %s_%s %.6g %s", s.name, f.name, f.value, f.unit)
		}
	})
}

// play is a script that is being played.
type play struct {
	ctx   context.Context
	c     *Cluster
	start time.Time

	load    *load
	judged  int               // of the load's replies: those that were looked at for errors
	timed   int               // and for their first bytes
	losses  []loss            // in order
	lostAt  map[int]time.Time // since when who does not run, or is silent, is so
	marked  usage
	twins   []*node.Node
	figures []figure
	as      string // goes before the names of figures to come
}

// figure is what an expectation measured.
type figure struct {
	name  string
	value float64
	unit  string
}

// play plays a script on a cluster of as many agents and returns what was measured.
func (s *script) play(ctx context.Context, c *Cluster) ([]figure, error) {
	p := &play{ctx: ctx, c: c, start: time.Now(), load: newLoad(c), lostAt: map[int]time.Time{}}
	defer p.load.off()
	ended := p.start
	for _, st := range s.steps {
		at := p.start.Add(st.at)
		if st.after {
			at = ended.Add(st.at)
		}
		err := errLate
		if wait := time.Until(at); wait >= 0 {
			time.Sleep(wait)
			logger().Info("script", "at", time.Since(p.start), "line", st.text)
			err = st.action(p)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %v after the beginning: %w", s.path, st.line, st.text, time.Since(p.start), err)
		}
		ended = time.Now()
	}
	return p.figures, nil
}

// errLate says that a line's time is over before those above have ended.
var errLate = errors.New("the lines above took longer")

// measured keeps the worst value of a figure.
func (p *play) measured(name string, value float64, unit string) {
	f := p.figure(name, unit)
	f.value = max(f.value, value)
}

// counted adds to a figure.
func (p *play) counted(name string, n int) { p.figure(name, "times").value += float64(n) }

// figure returns the figure of that name, which begins at 0.
func (p *play) figure(name, unit string) *figure {
	i := slices.IndexFunc(p.figures, func(f figure) bool { return f.name == p.as+name })
	if i < 0 {
		i = len(p.figures)
		p.figures = append(p.figures, figure{name: p.as + name, unit: unit})
	}
	return &p.figures[i]
}

// loss is a moment at which agents were parted.
type loss struct {
	at    time.Time
	dead  map[int]bool        // whose processes ended
	apart func(i, j int) bool // whether i and j were parted
}

// lose notes that agents are lost to all others; dead ones to their clients too.
func (p *play) lose(agents []int, dead bool) {
	l, lost := loss{at: time.Now(), dead: map[int]bool{}}, map[int]bool{}
	for _, i := range agents {
		p.lostAt[i], lost[i], l.dead[i] = l.at, true, dead
	}
	l.apart = func(i, j int) bool { return i != j && (lost[i] || lost[j]) }
	p.losses = append(p.losses, l)
}

// running returns an error for the first of agents that runs, or does not, against what is wanted.
func (p *play) running(agents []int, want bool) error {
	for _, i := range agents {
		if p.c.Running(i) != want {
			return fmt.Errorf("whether %s runs: %v", Name(i), !want)
		}
	}
	return nil
}

func (p *play) startAll(agents []int) error {
	if err := p.running(agents, false); err != nil {
		return err
	}
	p.c.client.transport.CloseIdleConnections() // those to the lives before: clients must not find out by a request
	for _, i := range agents {
		p.c.Start(i)
		delete(p.lostAt, i)
		p.load.use(i)
	}
	return nil
}

func (p *play) stopAll(agents []int) error {
	if err := p.running(agents, true); err != nil {
		return err
	}
	for _, i := range agents {
		p.lostAt[i] = time.Now()
		p.load.avoid(i)
		p.c.BeginStop(i)
	}
	for _, i := range agents {
		p.c.Ended(i)
	}
	return nil
}

func (p *play) killAll(agents []int) error {
	if err := p.running(agents, true); err != nil {
		return err
	}
	p.lose(agents, true)
	for _, i := range agents {
		p.load.avoid(i)
	}
	p.c.killAll(agents)
	return nil
}

// reboot ends agents and the engines on their hosts. The engines are back before the agents.
func (p *play) reboot(agents []int) error {
	if err := p.killAll(agents); err != nil {
		return err
	}
	for _, i := range agents {
		p.c.StopEngine(i)
		p.c.StartEngine(i)
	}
	return nil
}

func (p *play) silence(agents []int) error {
	p.lose(agents, false)
	for _, i := range agents {
		p.c.Silence(i)
	}
	return nil
}

func (p *play) resume(agents []int) error {
	for _, i := range agents {
		p.c.Resume(i)
		if p.c.Running(i) {
			delete(p.lostAt, i)
		}
	}
	return nil
}

func (p *play) move(agents []int) error {
	if err := p.running(agents, false); err != nil {
		return err
	}
	for _, i := range agents {
		p.c.Move(i)
	}
	return nil
}

// twin starts twins.
func (p *play) twin(agents []int) error {
	for _, i := range agents {
		p.twins = append(p.twins, p.c.Twin(i))
	}
	return nil
}

// rekey lets agents compute keys by a scheme of their own from their next life on: all that were rekeyed by the same.
func (p *play) rekey(agents []int) error {
	for _, i := range agents {
		p.c.Change(i, func(n *node.Config) { n.Forward.Scheme.Seed = ^cachestate.DefaultScheme().Seed })
	}
	return nil
}

// clock sets the clocks of agents from their next life on.
func (p *play) clock(off time.Duration, agents []int) error {
	for _, i := range agents {
		p.c.Change(i, func(n *node.Config) { n.Mesh.Now = func() time.Time { return time.Now().Add(off) } })
	}
	return nil
}

func (p *play) partition(groups [][]int) error {
	of := map[int]int{}
	for g, group := range groups {
		for _, i := range group {
			of[i] = g + 1
		}
	}
	p.losses = append(p.losses, loss{at: time.Now(), apart: func(i, j int) bool { return of[i] != of[j] }})
	p.c.Partition(groups...)
	return nil
}

func (p *play) loadOn(rate float64, agents []int) error {
	if p.load.cancel != nil {
		return errors.New("there is load already")
	}
	p.load.on(rate, agents)
	return nil
}

func (p *play) loadOff() error {
	p.load.off()
	return nil
}

func (p *play) heal() error {
	p.c.Partition()
	return nil
}

// restarts ends agents, in order, by kill, or with the whole host, and starts them again, both in random order: a quarter of
// them are down at a time at most, and each has half a second between two of its lives at least.
func (p *play) restarts(n int) error {
	rng, most := p.c.Rand(), max(1, p.c.config.Agents/4)
	var down []int
	for left := n; left > 0 || len(down) > 0; {
		if left > 0 && len(down) < most && (len(down) == 0 || rng.IntN(2) == 0) {
			i := p.pick(rng.IntN)
			ends := [...]func([]int) error{p.stopAll, p.killAll, p.reboot}
			if err := ends[rng.IntN(len(ends))]([]int{i}); err != nil {
				return err
			}
			down = append(down, i)
			left--
		} else {
			k := rng.IntN(len(down))
			if err := p.startAll(down[k : k+1]); err != nil {
				return err
			}
			down = slices.Delete(down, k, k+1)
		}
		time.Sleep(500*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second))))
	}
	return nil
}

// pick returns one of the agents that run.
func (p *play) pick(draw func(int) int) int {
	var up []int
	for i := range p.c.agents {
		if p.c.Running(i) {
			up = append(up, i)
		}
	}
	return up[draw(len(up))]
}
