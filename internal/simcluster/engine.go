package simcluster

import (
	"context"

	"github.com/kvmesh/kvmesh/internal/simengine"
)

// engineBox is one engine's place, through all its lives.
type engineBox struct {
	engine *simengine.Engine
	run    *running // nil while it is stopped
}

// StartEngine starts the engine beside agent i: a new process with an empty cache.
func (c *Cluster) StartEngine(i int) {
	c.t.Helper()
	b := c.boxes[i]
	if b.run != nil {
		c.t.Fatalf("the engine beside %s runs already", Name(i))
	}
	e, err := simengine.New(c.config.Engine(i))
	if err != nil {
		c.t.Fatal(err)
	}
	p := c.net.process(c.host(i))
	l, err := p.listen("tcp", c.addr(i, portEngine))
	if err != nil {
		c.t.Fatal(err)
	}
	b.engine = e
	b.run = start(p, func(ctx context.Context) error { return e.Serve(ctx, l) })
}

// StopEngine ends the engine beside agent i as kill -9 does, and waits until it has ended.
func (c *Cluster) StopEngine(i int) {
	c.t.Helper()
	b := c.boxes[i]
	b.run.cancel()
	b.run.process.kill()
	if err := <-b.run.done; err != nil {
		c.t.Errorf("engine beside %s: %v", Name(i), err)
	}
	b.run = nil
}

// Engine returns the engine beside agent i: its statistics, and its faults.
func (c *Cluster) Engine(i int) *simengine.Engine { return c.boxes[i].engine }
