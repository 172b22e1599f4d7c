package simulate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/workload"
)

// Config is one run. Zero values of fields marked so mean the workload's own.
type Config struct {
	Workload  string                   // see Workloads
	Shape     string                   // of the sessions workload: two or six turns at most
	Trace     *workload.Trace          // recorded requests; nil for the slice of conversations that is in the binary
	Sessions  []workload.CodingSession // recorded sessions, for the coding-agent workload
	Policies  []string                 // see Policies
	Engines   int
	Ingresses int     // agents that clients reach; 0 is one beside each engine
	Load      float64 // factor on the rate of arrivals, or on the number of sessions
	Burst     int     // so many requests in a row arrive at one instant; 0 for none
	Seed      uint64

	Span        time.Duration // virtual time in which requests arrive; 0 is the workload's
	WarmUp      time.Duration // of it, what does not count; 0 is the workload's
	CacheBlocks int           // of an engine; 0 is the workload's

	Heartbeat time.Duration // period of loads; 0 follows the size of the mesh as agents do
	Digest    time.Duration // period of digests; likewise
	Probes    bool          // ask for loads before a decision
	Queue     bool          // owners keep a queue
	Geometry  cachestate.Geometry

	HopDelay       time.Duration // of a request on its way to another agent
	ProbeDelay     time.Duration // of a probe, there and back
	HeartbeatDelay time.Duration
	DigestDelay    time.Duration
	Jitter         float64 // mean of an exponential part of each delay, as a share of it

	HeartbeatLoss float64 // share that is lost of each
	ProbeLoss     float64
	DigestLoss    float64

	SlowShare  float64 // of engines
	SlowFactor float64 // their speed
	Failures   []Failure
	FailRate   float64       // deaths an engine and hour, beside those
	FailFor    time.Duration // how long each lasts
}

// DefaultConfig is a mesh of 64 agents on a LAN.
func DefaultConfig() Config {
	return Config{
		Workload: "conversation", Shape: "two", Policies: []string{"oracle", "kvmesh"}, Engines: 64, Load: 1, Seed: 1,
		Probes: true, Queue: true, Geometry: cachestate.DefaultGeometry(),
		// A hop takes a round trip and the transfer of the prompt. ROUTING.md part C has the same.
		HopDelay: time.Millisecond, ProbeDelay: time.Millisecond,
		HeartbeatDelay: time.Millisecond / 2, DigestDelay: time.Millisecond / 2,
		SlowFactor: 0.5, FailFor: 30 * time.Second,
	}
}

// Validate reports every violation, each with the name of its field.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	share := func(name string, v float64) { check(v >= 0 && v < 1, "%s (%v) must be from 0 to below 1", name, v) }
	check(c.Engines >= 1 && c.Engines <= maxEngines, "Engines (%d) must be from 1 to %d", c.Engines, maxEngines)
	check(c.Ingresses >= 0 && c.Ingresses <= maxEngines, "Ingresses (%d) must be from 0 to %d", c.Ingresses, maxEngines)
	check(c.Load > 0 && c.Load <= 100, "Load (%v) must be above 0 and at most 100", c.Load)
	check(c.Burst >= 0, "Burst (%d) must not be negative", c.Burst)
	check(c.Span >= 0 && c.WarmUp >= 0, "Span (%v) and WarmUp (%v) must not be negative", c.Span, c.WarmUp)
	check(c.Span == 0 || c.WarmUp < c.Span, "WarmUp (%v) must be below Span (%v)", c.WarmUp, c.Span)
	check(c.CacheBlocks >= 0, "CacheBlocks (%d) must not be negative", c.CacheBlocks)
	check(c.Heartbeat >= 0 && c.Digest >= 0, "Heartbeat (%v) and Digest (%v) must not be negative", c.Heartbeat, c.Digest)
	for _, d := range []time.Duration{c.HopDelay, c.ProbeDelay, c.HeartbeatDelay, c.DigestDelay} {
		check(d >= 0, "delay (%v) must not be negative", d)
	}
	check(c.Jitter >= 0, "Jitter (%v) must not be negative", c.Jitter)
	share("HeartbeatLoss", c.HeartbeatLoss)
	share("ProbeLoss", c.ProbeLoss)
	share("DigestLoss", c.DigestLoss)
	check(c.SlowShare >= 0 && c.SlowShare <= 1, "SlowShare (%v) must be from 0 to 1", c.SlowShare)
	check(c.SlowFactor > 0, "SlowFactor (%v) must be above 0", c.SlowFactor)
	check(c.FailRate >= 0 && c.FailFor >= 0, "FailRate (%v) and FailFor (%v) must not be negative", c.FailRate, c.FailFor)
	for _, f := range c.Failures {
		check(f.Engine >= 0 && f.Engine < c.Engines && f.From < f.To, "failure of engine %d from %v to %v cannot be", f.Engine, f.From, f.To)
	}
	check(len(c.Policies) > 0, "Policies must name at least one of %v", Policies())
	for _, p := range c.Policies {
		_, err := specOf(p)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, c.Geometry.Validate())...)
}

// rtt is the round trip that agents have measured on the mean.
func (c *Config) rtt() time.Duration { return time.Duration(float64(c.ProbeDelay) * (1 + c.Jitter)) }

// maxEngines is four times the largest mesh; it keeps an engine's number within 16 bits.
const maxEngines = 4096

// speedOf spreads the slow engines evenly.
func (c *Config) speedOf(i int) float64 {
	if math.Floor(float64(i+1)*c.SlowShare) > math.Floor(float64(i)*c.SlowShare) {
		return c.SlowFactor
	}
	return 1
}

// failures are those that were named and those drawn by the rate, in order of time.
func (c *Config) failures() []Failure {
	all := slices.Clone(c.Failures)
	if c.FailRate > 0 {
		rng := newRand(c.Seed, streamChannel)
		for i := range c.Engines {
			for at := time.Duration(0); ; {
				at += time.Duration(rng.ExpFloat64() / c.FailRate * float64(time.Hour))
				if at >= c.Span {
					break
				}
				all = append(all, Failure{Engine: i, From: at, To: at + c.FailFor})
				at += c.FailFor
			}
		}
	}
	return all
}
