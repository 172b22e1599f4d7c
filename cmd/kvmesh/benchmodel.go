package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/kvmesh/kvmesh/internal/simscale"
)

// benchModelCmd is the scale model in a process of its own, as it wants to be. It reads its simscale.Config from its standard
// input, and gives up when that ends.
type benchModelCmd struct{}

// Run runs the model, prints its result and ends the process.
func (*benchModelCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := json.NewDecoder(os.Stdin)
	var c simscale.Config
	if err := in.Decode(&c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin) // the end of it is what counts
	}()
	os.Args = os.Args[:1] // package testing reads flags of its own
	simscale.Main(ctx, c, os.Stdout)
	return nil
}

// runModel runs the scale model in a child.
func runModel(ctx context.Context, c simscale.Config) (r simscale.Result, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self, "bench", "model")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	err = json.NewEncoder(stdin).Encode(c)
	err = errors.Join(cmd.Wait(), err) // Wait closes stdin
	if err == nil {
		err = json.NewDecoder(&out).Decode(&r) // what package testing prints comes after it
	}
	if err != nil {
		return r, fmt.Errorf("model of %d agents: %w: %s", c.Agents, err, &out)
	}
	return r, nil
}

// modelPairs is how many pairs of a teller and a listener are looked at: at which moments of a period is up to chance for
// each of them, and stays.
const modelPairs = 4000

// model returns the run that changes are measured in.
func (c *benchMeshCmd) model() simscale.Config {
	config := simscale.DefaultConfig(c.Agents)
	config.Listeners, config.For = min(max(modelPairs/c.Agents, config.Listeners), c.Agents), c.For
	if c.Hour {
		config = simscale.HourConfig(c.Agents)
	}
	config.Changes = c.Changes
	return config
}

// simulate models a mesh at rest and with changes, or an hour of them.
func (c *benchMeshCmd) simulate(ctx context.Context) (r benchResult, err error) {
	r = benchResult{Agents: c.Agents, Simulated: true, Changes: c.Changes}
	config := c.model()
	if !c.Hour {
		idle := config
		idle.For, idle.Changes = c.Idle, 0
		rest, err := runModel(ctx, idle)
		if err != nil {
			return r, err
		}
		r.Rest = modelCost(&rest)
	}
	m, err := runModel(ctx, config)
	if err != nil {
		return r, err
	}
	r.Seconds, r.Changing, r.Unknown = m.Seconds, modelCost(&m), m.Unknown
	r.Staleness, r.LoadAge = benchSpread(m.Staleness), benchSpread(m.HeartbeatAge)
	r.Memory, r.Connections = m.Memory, m.Connections
	return r, nil
}

// modelCost takes a model's means: its agents differ by chance only.
func modelCost(m *simscale.Result) benchCost {
	means := func(rates map[string]float64) map[string]benchSpread {
		out := map[string]benchSpread{}
		for name, v := range rates {
			out[name] = benchSpread{Mean: v}
		}
		return out
	}
	return benchCost{
		BytesIn: means(m.BytesIn), BytesOut: means(m.BytesOut),
		PacketsIn: benchSpread{Mean: m.PacketsIn}, PacketsOut: benchSpread{Mean: m.PacketsOut},
	}
}
