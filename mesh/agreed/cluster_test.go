package agreed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// cluster is several agents in one process, over streams in memory and logs that outlive their agents. It runs within
// synctest, so that its seconds cost none.
type cluster struct {
	t      *testing.T
	folder string
	mu     sync.Mutex

	agents map[string]*node
	side   map[string]int // agents of different sides cannot reach each other
	links  map[*link]struct{}
	opened int

	heartbeat time.Duration // zero: the default
}

// node is one agent: what is left of it when it is killed, and the group while it runs.
type node struct {
	name, folder string
	expect       int
	disk         *memDisk // nil: no data folder
	group        *Group
	kill         func()
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, folder: t.TempDir(), agents: map[string]*node{}, side: map[string]int{}, links: map[*link]struct{}{}}
	t.Cleanup(c.stop)
	return c
}

func (c *cluster) stop() {
	for name := range c.agents {
		c.killAgent(name)
	}
}

// add starts an agent; expect < 0 means one without a data folder.
func (c *cluster) add(name string, expect int) *Group {
	n := &node{name: name, expect: max(expect, 0)}
	if expect >= 0 {
		n.folder, n.disk = filepath.Join(c.folder, name), newMemDisk()
	}
	c.put(n)
	return c.start(name)
}

// put names an agent that is to start; agents that run already look for it.
func (c *cluster) put(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agents[n.name] = n
}

func (c *cluster) start(name string) *Group {
	c.t.Helper()
	n := c.agents[name]
	cfg := DefaultConfig()
	cfg.Name, cfg.Folder, cfg.Expect = name, n.folder, n.expect
	cfg.Agents, cfg.Streams = view{c, name}, view{c, name}
	if c.heartbeat > 0 {
		cfg.Timings.Heartbeat = c.heartbeat
	}
	cfg.writeFile = func(path string, data []byte) error { return os.WriteFile(path, data, fileMode) }
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})).With("agent", name)
	}
	if n.disk != nil {
		cfg.openStores = n.disk.open
		cfg.writeFile = n.disk.writeFile
	}
	g, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Run(ctx); err != nil {
			c.t.Errorf("run %s: %v", name, err)
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	n.group, n.kill = g, func() { cancel(); <-ended }
	return g
}

// killAgent ends an agent as a killed process ends: its peers see streams break.
func (c *cluster) killAgent(name string) {
	c.mu.Lock()
	n := c.agents[name]
	g := n.group
	n.group = nil
	var theirs []*link
	for l := range c.links {
		if l.a == name || l.b == name {
			theirs = append(theirs, l)
		}
	}
	c.mu.Unlock()
	if g == nil {
		return
	}
	for _, l := range theirs {
		l.close()
	}
	n.kill()
}

// partition cuts the agents of each side off from all others; without sides it heals. Streams across a cut go silent, and
// end after three seconds, as those of QUIC do.
func (c *cluster) partition(sides ...[]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.side = map[string]int{}
	for i, names := range sides {
		for _, name := range names {
			c.side[name] = i + 1
		}
	}
	for l := range c.links {
		if c.side[l.a] != c.side[l.b] && !l.silent.Swap(true) {
			time.AfterFunc(idle, l.close)
		}
	}
}

const (
	idle  = 3 * time.Second
	delay = time.Millisecond
)

// view is the mesh as one agent sees it.
type view struct {
	c    *cluster
	name string
}

func (v view) Agents() []Agent {
	v.c.mu.Lock()
	var groups []*Group
	for name, n := range v.c.agents {
		if name != v.name && n.group != nil && v.c.side[name] == v.c.side[v.name] {
			groups = append(groups, n.group)
		}
	}
	v.c.mu.Unlock()
	var all []Agent
	for _, g := range groups {
		all = append(all, g.Self())
	}
	return all
}

func (v view) Open(ctx context.Context, agent string) (net.Conn, error) {
	time.Sleep(delay)
	v.c.mu.Lock()
	n, cut := v.c.agents[agent], v.c.side[agent] != v.c.side[v.name]
	if n == nil || n.group == nil || cut {
		v.c.mu.Unlock()
		if cut {
			<-ctx.Done()
		}
		return nil, fmt.Errorf("%s cannot be reached", agent)
	}
	defer v.c.mu.Unlock()
	v.c.opened++
	l := &link{c: v.c, a: v.name, b: agent}
	l.near, l.far = net.Pipe()
	v.c.links[l] = struct{}{}
	g := n.group
	go g.Serve(end{l.far, l})
	return end{l.near, l}, nil
}

// link is a stream between two agents.
type link struct {
	c         *cluster
	a, b      string
	near, far net.Conn
	silent    atomic.Bool
}

func (l *link) close() {
	l.near.Close()
	l.far.Close()
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	delete(l.c.links, l)
}

// end is one end of a link.
type end struct {
	net.Conn
	l *link
}

func (e end) Write(p []byte) (int, error) {
	time.Sleep(delay)
	if e.l.silent.Load() {
		return len(p), nil
	}
	return e.Conn.Write(p)
}

func (e end) Close() error {
	e.l.close()
	return nil
}

// memDisk is a data folder's log in memory. It can fail from its nth write on, which then is done in part or not at all.
type memDisk struct {
	mu    sync.Mutex
	store *raft.InmemStore
	snaps *raft.InmemSnapshotStore
	left  int // writes until it fails; negative: never
	part  bool
	count int
}

var errDisk = errors.New("no space left on device")

func newMemDisk() *memDisk {
	return &memDisk{store: raft.NewInmemStore(), snaps: raft.NewInmemSnapshotStore(), left: -1}
}

// failAfter makes all writes after the next n fail, the first of them after its first part.
func (d *memDisk) failAfter(n int, part bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left, d.part = n, part
}

func (d *memDisk) heal() { d.failAfter(-1, false) }

// write reports whether a write may be done, or at least in part.
func (d *memDisk) write() (part bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	switch {
	case d.left < 0:
		return false, nil
	case d.left > 0:
		d.left--
		return false, nil
	}
	part, d.part = d.part, false
	return part, errDisk
}

func (d *memDisk) open() (*stores, error) {
	return &stores{memLogs{d.store, d}, memLogs{d.store, d}, d.snaps, func() error { return nil }}, nil
}

func (d *memDisk) writeFile(path string, data []byte) error {
	if _, err := d.write(); err != nil {
		return err // a rename is done or not
	}
	return os.WriteFile(path, data, fileMode)
}

type memLogs struct {
	*raft.InmemStore
	disk *memDisk
}

func (m memLogs) StoreLog(log *raft.Log) error { return m.StoreLogs([]*raft.Log{log}) }

func (m memLogs) StoreLogs(logs []*raft.Log) error {
	part, err := m.disk.write()
	if err != nil && !part {
		return err
	}
	if err != nil {
		logs = logs[:(len(logs)+1)/2] // on disk, and never said to be
	}
	return errors.Join(m.InmemStore.StoreLogs(logs), err)
}

func (m memLogs) Set(key, val []byte) error {
	part, err := m.disk.write()
	if err != nil && !part {
		return err
	}
	return errors.Join(m.InmemStore.Set(key, val), err)
}

func (m memLogs) SetUint64(key []byte, val uint64) error {
	part, err := m.disk.write()
	if err != nil && !part {
		return err
	}
	return errors.Join(m.InmemStore.SetUint64(key, val), err)
}

func (m memLogs) DeleteRange(from, to uint64) error {
	if _, err := m.disk.write(); err != nil {
		return err
	}
	return m.InmemStore.DeleteRange(from, to)
}

// names returns prefix1 to prefixN.
func names(prefix string, n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint(prefix, i+1))
	}
	return all
}

// found starts n agents that found a group together, and waits for its leader.
func (c *cluster) found(n int) {
	c.t.Helper()
	for _, name := range names("v", n) {
		c.add(name, n)
	}
	c.await(30*time.Second, "a leader", func() bool { return c.leader() != "" && len(c.group(c.leader()).State().Group) > 0 })
}

func (c *cluster) group(name string) *Group {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agents[name].group
}

// running returns the names of the agents that run, in their order.
func (c *cluster) running() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for name, n := range c.agents {
		if n.group != nil {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// leader returns the agent that leads, empty for none.
func (c *cluster) leader() string {
	for _, name := range c.running() {
		if g := c.group(name); g != nil && g.voter.Load().leads() {
			return name
		}
	}
	return ""
}

// await lets time pass until ok, and returns how much.
func (c *cluster) await(limit time.Duration, what string, ok func() bool) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > limit {
			for _, name := range c.running() {
				c.t.Logf("%s: %+v %+v", name, c.group(name).Status(), c.group(name).Members())
			}
			c.t.Fatalf("no %s within %v", what, limit)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
	return time.Since(begin)
}

// propose has agent propose a policy and fails the test where that fails.
func (c *cluster) propose(agent, id, text string) Result {
	c.t.Helper()
	r, err := c.group(agent).Propose(c.t.Context(), *policy(id, text))
	if err != nil {
		c.t.Fatalf("propose on %s: %v", agent, err)
	}
	return r
}

// everywhere reports whether all running agents have the policy.
func (c *cluster) everywhere(text string) bool {
	for _, name := range c.running() {
		if c.group(name).State().Policy.Text != text {
			return false
		}
	}
	return true
}
