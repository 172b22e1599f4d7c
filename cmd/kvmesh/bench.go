package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// benchCmd measures what kvmesh itself costs.
type benchCmd struct {
	Mesh  benchMeshCmd  `cmd:"" help:"Run a mesh of agents on this machine and report what each costs: bytes, packets, CPU, memory, and how old what it knows is."`
	Agent benchAgentCmd `cmd:"" hidden:"" help:"One agent of bench mesh."`
	Model benchModelCmd `cmd:"" hidden:"" help:"The model of bench mesh --simulated."`
}

type benchMeshCmd struct {
	Agents  int           `help:"Number of agents, each a process with an engine whose residency is made up." default:"32"`
	Changes float64       `help:"Changes of each engine's keys a second: half come, half go." default:"100"`
	For     time.Duration `help:"How long changes are measured." default:"60s"`
	Idle    time.Duration `help:"How long the mesh is measured at rest, and again with probes." default:"20s"`
	Probes  float64       `help:"Probes that each agent sends a second while they are measured: 15 go with 4 requests a second, as in a busy mesh." default:"15"`

	Simulated bool `help:"Model the mesh, which can be of any size then: the code that tells and hears is that of agents, the network between them is made up. There are no CPU times and no probes."`
	Hour      bool `help:"Of the model, one agent hears all others for an hour, and the memory of its process is looked at."`

	JSON bool `name:"json" help:"Print one line of JSON instead of the table."`
}

// benchPause is how long what was changed has to settle before it is measured: above the period of digests.
const benchPause = 3 * time.Second

// mostAgents is how many processes a machine may be asked to start.
const mostAgents = 256

// mostChanges bounds the rate of changes that an agent is asked to make up; the model has its own bound.
const mostChanges = 10_000

func (c *benchMeshCmd) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Agents >= 2 && (c.Agents <= mostAgents || c.Simulated), "agents (%d) must be 2 to %d, or simulated", c.Agents, mostAgents)
	check(c.Simulated || !c.Hour, "an hour is for simulated agents")
	check(c.Changes >= 0 && c.Changes <= mostChanges, "changes (%v) must be 0 to %d", c.Changes, mostChanges)
	check(c.Probes >= 0 && c.Probes <= 1000, "probes (%v) must be 0 to 1000", c.Probes)
	check(c.For > 0, "for (%v) must be above 0", c.For)
	check(c.Idle > 0, "idle (%v) must be above 0", c.Idle)
	if len(errs) == 0 && c.Simulated {
		model := c.model()
		return model.Validate()
	}
	return errors.Join(errs...)
}

// Run starts the agents, measures them at rest, with probes and with changes, and stops them.
func (c *benchMeshCmd) Run(ctx context.Context) error {
	if err := c.validate(); err != nil {
		return badConfig(err)
	}
	measure := c.measure
	if c.Simulated {
		measure = c.simulate
	}
	r, err := measure(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	r.print(os.Stdout)
	return nil
}

// benchPhase is what all agents do for a while: it is let settle, then measured.
type benchPhase struct {
	name  string
	order benchOrder
	long  time.Duration
}

func (c *benchMeshCmd) measure(ctx context.Context) (r benchResult, err error) {
	bar := newBenchBar(c)
	defer bar.end()
	m, err := startBenchMesh(ctx, c.Agents)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	r = benchResult{Agents: c.Agents, Changes: c.Changes, Seconds: c.For.Seconds()}
	rest, err := m.measure(ctx, benchPhase{"at rest", benchOrder{}, c.Idle}, bar)
	if err != nil {
		return r, err
	}
	r.Rest = rest.cost()
	if c.Probes > 0 {
		probed, err := m.measure(ctx, benchPhase{"probes", benchOrder{Probes: c.Probes}, c.Idle}, bar)
		if err != nil {
			return r, err
		}
		r.Probe = probed.probes(rest)
	}
	changing, err := m.measure(ctx, benchPhase{"changes", benchOrder{Changes: c.Changes, Sample: true}, c.For}, bar)
	if err != nil {
		return r, err
	}
	r.Changing, r.RSS = changing.cost(), changing.rss()
	r.Staleness, r.LoadAge, r.Unknown = changing.ages()
	return r, nil
}

// benchBar shows how far the measurement is.
type benchBar struct {
	show  func(done, total int)
	end   func()
	begin time.Time
	total time.Duration
}

// benchStart is about how long a mesh takes to start.
const benchStart = 5 * time.Second

func newBenchBar(c *benchMeshCmd) *benchBar {
	b := &benchBar{begin: time.Now(), total: benchStart + 2*benchPause + c.Idle + c.For}
	if c.Probes > 0 {
		b.total += benchPause + c.Idle
	}
	b.show, b.end = progress("bench", "seconds")
	return b
}

// sleep waits for d, and shows how the time goes by.
func (b *benchBar) sleep(ctx context.Context, d time.Duration) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	over := time.After(d)
	for {
		b.show(int(min(time.Since(b.begin), b.total).Seconds()), int(b.total.Seconds()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-over:
			return nil
		}
	}
}
