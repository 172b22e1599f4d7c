package simscale

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/internal/spread"
)

// Config is one run of the model.
type Config struct {
	Agents    int           // in the mesh, each with one engine
	Listeners int           // of them, those that hear all others; the rest hears nobody
	Changes   float64       // of residency, of each engine and second: half are keys that come, half keys that go
	Keys      int           // prompt keys in each digest
	Distinct  int           // digests; engines share them. As many as agents costs 200 KiB each
	WarmUp    time.Duration // before anything is counted
	For       time.Duration // counted
	Every     time.Duration // between two samples of the process's memory

	Delay  time.Duration // of a packet, one way
	Jitter time.Duration // mean of what comes on top, exponential
	Loss   float64       // share of packets

	Seed uint64 // of keys; delays, losses and the moments at which agents begin are drawn anew in each run
}

// DefaultConfig returns a minute of a mesh at work: engines of two million tokens, on a local network.
func DefaultConfig(agents int) Config {
	return Config{
		Agents: agents, Listeners: min(4, agents), Changes: 100, Keys: 6000, Distinct: agents,
		WarmUp: 4 * spread.DigestPeriod(agents), For: time.Minute, Every: 5 * time.Minute,
		Delay: 500 * time.Microsecond, Jitter: 500 * time.Microsecond, Seed: 1,
	}
}

// HourConfig returns an hour that one agent listens through: the memory of the process is nearly that of the agent.
func HourConfig(agents int) Config {
	c := DefaultConfig(agents)
	c.Listeners, c.Distinct, c.For = 1, min(16, agents), time.Hour
	return c
}

// Validate reports every way in which c cannot be used.
func (c *Config) Validate() error {
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	want(c.Agents >= 2, "Agents (%d) must be at least 2", c.Agents)
	want(c.Listeners >= 1 && c.Listeners <= c.Agents, "Listeners (%d) must be from 1 to Agents", c.Listeners)
	want(c.Distinct >= 1 && c.Distinct <= c.Agents, "Distinct (%d) must be from 1 to Agents", c.Distinct)
	want(c.Changes >= 0 && c.Changes <= maxChanges, "Changes (%v) must be from 0 to %d", c.Changes, maxChanges)
	want(c.Keys >= 0, "Keys (%d) must not be negative", c.Keys)
	want(c.WarmUp >= 0, "WarmUp (%v) must not be negative", c.WarmUp)
	want(c.For > 0, "For (%v) must be above 0", c.For)
	want(c.Every > 0, "Every (%v) must be above 0", c.Every)
	want(c.Delay >= 0 && c.Jitter >= 0, "Delay (%v) and Jitter (%v) must not be negative", c.Delay, c.Jitter)
	want(c.Loss >= 0 && c.Loss < 1, "Loss (%v) must be from 0 to below 1", c.Loss)
	return errors.Join(errs...)
}

// maxChanges bounds the rate of changes to what engines do: ten times that of a busy one.
const maxChanges = 1000
