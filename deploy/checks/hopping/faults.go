package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/kvmesh/kvmesh/deploy/checks/internal/check"
	"github.com/kvmesh/kvmesh/deploy/checks/internal/lab"
	"github.com/kvmesh/kvmesh/internal/simengine"
)

// faultKind is one way to break a host, or a link between two.
type faultKind struct {
	name              string
	takesAgent        bool // and with it the connections of its clients
	renews            bool // starts the agent again
	network           bool // all that others and the agent tell each other
	link              bool // between two hosts
	shortest, longest time.Duration
	begin, end        func(ctx context.Context, c *chaos, hosts []int) error
}

// An engine that hangs is given up after some twenty seconds, a silent agent after three: faults last shorter and longer.
const (
	blink  = 200 * time.Millisecond
	moment = 8 * time.Second
	while  = 15 * time.Second
	long   = 40 * time.Second
)

var faultKinds = []faultKind{
	{name: "engine killed", shortest: blink, longest: while, begin: killEngine, end: startEngine},
	{name: "engine restarted", shortest: blink, longest: moment, begin: endEngine, end: startEngine},
	{name: "engine hung", shortest: blink, longest: long, begin: signalEngine(syscall.SIGSTOP), end: signalEngine(syscall.SIGCONT)},
	{name: "engine answers nothing", shortest: blink, longest: while, begin: faulty(simengine.Faults{Hang: true}), end: both(killEngine, startEngine)},
	{name: "engine unavailable", shortest: blink, longest: while, begin: faulty(simengine.Faults{Unavailable: true}), end: faulty(simengine.Faults{})},
	{name: "engine resets streams", shortest: blink, longest: moment, begin: faulty(simengine.Faults{DieAfterTokens: 20}), end: faulty(simengine.Faults{})},
	{name: "engine slowed", shortest: moment, longest: while, begin: faulty(simengine.Faults{Slow: 10}), end: faulty(simengine.Faults{})},
	{name: "agent killed", takesAgent: true, renews: true, shortest: blink, longest: while, begin: killAgent, end: startAgent},
	{name: "agent and engine killed", takesAgent: true, renews: true, shortest: blink, longest: while, begin: both(killAgent, killEngine), end: both(startEngine, startAgent)},
	{name: "agent restarted", takesAgent: true, renews: true, shortest: blink, longest: 2 * blink, begin: endAgent, end: startAgent},
	{name: "agent hung", takesAgent: true, shortest: blink, longest: while, begin: signalAgent(syscall.SIGSTOP), end: signalAgent(syscall.SIGCONT)},
	{name: "unplugged", takesAgent: true, network: true, shortest: blink, longest: while, begin: plug(false), end: plug(true)},
	{name: "cable slowed", takesAgent: true, network: true, shortest: moment, longest: while, begin: slow("512kbit"), end: slow("")},
	{name: "silenced", network: true, shortest: blink, longest: while, begin: both(deafen(true), mute(true)), end: both(deafen(false), mute(false))},
	{name: "deafened", network: true, shortest: blink, longest: while, begin: deafen(true), end: deafen(false)},
	{name: "muted", network: true, shortest: blink, longest: while, begin: mute(true), end: mute(false)},
	{name: "link cut", link: true, shortest: blink, longest: while, begin: cut(true), end: cut(false)},
}

type step = func(ctx context.Context, c *chaos, hosts []int) error

func both(steps ...step) step {
	return func(ctx context.Context, c *chaos, hosts []int) error {
		for _, s := range steps {
			if err := s(ctx, c, hosts); err != nil {
				return err
			}
		}
		return nil
	}
}

// onAgent makes a step of what is done to one agent.
func onAgent(do func(ctx context.Context, c *chaos, a *lab.Agent) error) step {
	return func(ctx context.Context, c *chaos, hosts []int) error { return do(ctx, c, c.agent(hosts[0])) }
}

var (
	killEngine  = onAgent(func(_ context.Context, _ *chaos, a *lab.Agent) error { a.EngineProcess.Kill(); return nil })
	startEngine = onAgent(func(_ context.Context, c *chaos, a *lab.Agent) error { return c.mesh.StartEngine(a) })
	killAgent   = onAgent(func(_ context.Context, _ *chaos, a *lab.Agent) error { a.Process.Kill(); return nil })
	startAgent  = onAgent(func(_ context.Context, c *chaos, a *lab.Agent) error { return c.mesh.StartAgent(a) })
	endEngine   = onAgent(func(ctx context.Context, _ *chaos, a *lab.Agent) error { return terminate(ctx, a.EngineProcess) })
	endAgent    = onAgent(func(ctx context.Context, _ *chaos, a *lab.Agent) error { return terminate(ctx, a.Process) })
)

// terminate asks a process to end, and waits for it.
func terminate(ctx context.Context, p *check.Process) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Done:
		return nil
	case <-time.After(time.Minute):
		return errors.New(p.Name + " does not end")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func signalEngine(s syscall.Signal) step {
	return onAgent(func(_ context.Context, _ *chaos, a *lab.Agent) error { return a.EngineProcess.Signal(s) })
}

func signalAgent(s syscall.Signal) step {
	return onAgent(func(_ context.Context, _ *chaos, a *lab.Agent) error { return a.Process.Signal(s) })
}

func faulty(f simengine.Faults) step {
	return onAgent(func(ctx context.Context, _ *chaos, a *lab.Agent) error { return a.SetFaults(ctx, f) })
}

func plug(in bool) step {
	return func(ctx context.Context, c *chaos, hosts []int) error { return c.net.Plug(ctx, hosts[0], in) }
}

func slow(rate string) step {
	return func(ctx context.Context, c *chaos, hosts []int) error { return c.net.Slow(ctx, hosts[0], rate) }
}

// deafen loses what others send to a host, and mute what it sends.
func deafen(on bool) step {
	return func(ctx context.Context, c *chaos, hosts []int) error {
		return c.others(hosts[0], func(x int) error { return c.net.Lose(ctx, on, x, hosts[0]) })
	}
}

func mute(on bool) step {
	return func(ctx context.Context, c *chaos, hosts []int) error {
		return c.others(hosts[0], func(x int) error { return c.net.Lose(ctx, on, hosts[0], x) })
	}
}

func cut(on bool) step {
	return func(ctx context.Context, c *chaos, hosts []int) error {
		return errors.Join(c.net.Lose(ctx, on, hosts[0], hosts[1]), c.net.Lose(ctx, on, hosts[1], hosts[0]))
	}
}
