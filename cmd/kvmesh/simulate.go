package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/kvmesh/kvmesh/internal/simulate"
	"github.com/kvmesh/kvmesh/internal/workload"
)

type simulateCmd struct {
	Workload string   `help:"Traffic: conversation, synthetic, mixture (conversation and two streams below shared prompts), coding-agent, sessions." default:"conversation"`
	Trace    string   `help:"Recorded traffic: a file of Mooncake's or of coding sessions, or a folder that holds it under its usual name. Without it, the conversations in this binary." placeholder:"PATH"`
	Shape    string   `help:"Sessions of at most two or six turns." enum:"two,six" default:"two"`
	Policy   []string `help:"Who decides; can be given several times, and all get the same traffic." default:"oracle,kvmesh,round-robin"`

	Engines     int           `help:"Number of engines, each with its agent." default:"64"`
	Ingresses   int           `help:"Number of agents that clients reach, without engines of their own; 0 is all agents." default:"0"`
	Load        float64       `help:"Factor on the rate of requests." default:"1"`
	Burst       int           `help:"So many requests in a row come at the same instant." placeholder:"N"`
	Duration    time.Duration `help:"Virtual time in which requests arrive; by default the workload's." placeholder:"TIME"`
	WarmUp      time.Duration `help:"Of it, what does not count." placeholder:"TIME"`
	CacheBlocks int           `help:"KV blocks of an engine; by default the workload's." placeholder:"N"`
	SlowShare   float64       `help:"Share of engines that are slow." default:"0"`
	SlowFactor  float64       `help:"Their speed, as a factor." default:"0.5"`
	Fail        []string      `help:"An engine that dies with its agent and returns, as NUMBER@FROM-TO, such as 3@400s-460s." placeholder:"SPEC"`
	FailRate    float64       `help:"Deaths an engine and hour." default:"0"`
	FailFor     time.Duration `help:"How long each of them lasts." default:"30s"`
	Seed        uint64        `help:"Equal seeds give equal results." default:"1"`

	Heartbeat time.Duration `help:"Period of heartbeats; by default as agents choose it by the size of the mesh." placeholder:"TIME"`
	Digest    time.Duration `help:"Period of digests, likewise." placeholder:"TIME"`
	Probes    bool          `help:"Ask the best engines for their load before each decision." default:"true" negatable:""`
	Queue     bool          `help:"Owners keep a queue, shortest first." default:"true" negatable:""`

	Delay         time.Duration `help:"Of a request on its way to another agent, and of a probe there and back." default:"1ms"`
	GossipDelay   time.Duration `help:"Of heartbeats and digests." default:"500us"`
	Jitter        float64       `help:"Mean of an exponential part of every delay, as a share of it." default:"0"`
	HeartbeatLoss float64       `help:"Share of heartbeats that are lost." default:"0"`
	ProbeLoss     float64       `help:"Share of probes that are lost." default:"0"`
	DigestLoss    float64       `help:"Share of digests that are lost, and come with the next." default:"0"`

	JSON bool   `name:"json" help:"Print one line of JSON for each policy instead of the table."`
	Plot string `help:"Draw the distribution of times to first token, and hit ratios." placeholder:"FILE.svg" type:"path"`
}

// Help is what kong prints below the usage.
func (c *simulateCmd) Help() string {
	return "Policies: " + strings.Join(simulate.Policies(), ", ") + "."
}

// Run simulates a mesh in virtual time and prints what each policy gave.
func (c *simulateCmd) Run(ctx context.Context) error {
	config, err := c.config()
	if err != nil {
		return err
	}
	show, end := shareProgress()
	results, err := simulate.Run(ctx, config, show)
	end()
	if err != nil {
		return badConfig(err)
	}
	if c.Plot != "" {
		if err := writePlot(c.Plot, results); err != nil {
			return err
		}
	}
	if !c.JSON {
		printSimulation(os.Stdout, results)
		return nil
	}
	out := json.NewEncoder(os.Stdout)
	for i := range results {
		if err := out.Encode(&results[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *simulateCmd) config() (simulate.Config, error) {
	s := simulate.DefaultConfig()
	s.Workload, s.Shape, s.Policies = c.Workload, c.Shape, c.Policy
	s.Engines, s.Ingresses, s.Load, s.Burst, s.Seed = c.Engines, c.Ingresses, c.Load, c.Burst, c.Seed
	s.Span, s.WarmUp, s.CacheBlocks = c.Duration, c.WarmUp, c.CacheBlocks
	s.SlowShare, s.SlowFactor = c.SlowShare, c.SlowFactor
	s.FailRate, s.FailFor = c.FailRate, c.FailFor
	s.Heartbeat, s.Digest, s.Probes, s.Queue = c.Heartbeat, c.Digest, c.Probes, c.Queue
	s.HopDelay, s.ProbeDelay, s.HeartbeatDelay, s.DigestDelay, s.Jitter = c.Delay, c.Delay, c.GossipDelay, c.GossipDelay, c.Jitter
	s.HeartbeatLoss, s.ProbeLoss, s.DigestLoss = c.HeartbeatLoss, c.ProbeLoss, c.DigestLoss
	for _, spec := range c.Fail {
		f, err := parseFailure(spec)
		if err != nil {
			return s, err
		}
		s.Failures = append(s.Failures, f)
	}
	return s, c.read(&s)
}

// traceNames are the usual names of recorded traffic, by workload.
var traceNames = map[string]string{
	"conversation": "conversation_trace.jsonl.gz",
	"mixture":      "conversation_trace.jsonl.gz",
	"synthetic":    "synthetic_trace.jsonl.gz",
	"coding-agent": "cc_all_compact.jsonl.gz",
}

// read puts the recorded traffic in.
func (c *simulateCmd) read(s *simulate.Config) error {
	name, recorded := traceNames[c.Workload]
	if c.Trace == "" || !recorded {
		return nil
	}
	path := c.Trace
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, name)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read trace: %w", err)
	}
	defer f.Close()
	if c.Workload == "coding-agent" {
		s.Sessions, err = workload.ReadCodingSessions(f)
	} else {
		var t workload.Trace
		t, err = workload.ReadMooncake(f)
		s.Trace = &t
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// parseFailure reads NUMBER@FROM-TO.
func parseFailure(spec string) (simulate.Failure, error) {
	number, times, ok := strings.Cut(spec, "@")
	from, to, ok2 := strings.Cut(times, "-")
	if !ok || !ok2 {
		return simulate.Failure{}, fmt.Errorf("failure %q is not NUMBER@FROM-TO", spec)
	}
	engine, err := strconv.Atoi(number)
	f := simulate.Failure{Engine: engine}
	var err2, err3 error
	f.From, err2 = time.ParseDuration(from)
	f.To, err3 = time.ParseDuration(to)
	if err := errors.Join(err, err2, err3); err != nil {
		return f, fmt.Errorf("failure %q is not NUMBER@FROM-TO: %w", spec, err)
	}
	return f, nil
}

func writePlot(path string, results []simulate.Result) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return simulate.WritePlot(f, results)
}

// shareProgress shows how far the slowest policy is.
func shareProgress() (show func(policy string, share float64), end func()) {
	const steps = 1000
	bar, done := progress("simulate", "‰")
	var mu sync.Mutex
	shares := map[string]float64{}
	return func(policy string, share float64) {
		mu.Lock()
		defer mu.Unlock()
		shares[policy] = share
		least := 1.0
		for _, s := range shares {
			least = min(least, s)
		}
		bar(int(least*steps), steps)
	}, done
}

// printSimulation prints a line for each policy, with ratios to the first.
func printSimulation(out io.Writer, results []simulate.Result) {
	first := &results[0]
	fmt.Fprintf(out, "\n%s, %d engines, %d requests, utilisation %.2f (%s), seed %d\n\n",
		first.Workload, first.Engines, first.Requests, first.Utilisation, first.Policy, first.Seed)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "policy\thits\t\tTTFT mean\t\tp50\tp95\t\tp99\t\tload CoV\tserved CoV\tbounced\tprobes\tB/s in\t")
	for i := range results {
		r := &results[i]
		fmt.Fprintf(w, "%s\t%.1f %%\t%s\t%.3f s\t%s\t%.3f\t%.3f\t%s\t%.2f\t%s\t%.3f\t%.3f\t%.2f %%\t%.2f\t%.0f\t\n", r.Policy,
			100*r.HitRatio, times(r.HitRatio, first.HitRatio), r.TTFTMean, times(r.TTFTMean, first.TTFTMean), r.TTFTP50,
			r.TTFTP95, times(r.TTFTP95, first.TTFTP95), r.TTFTP99, times(r.TTFTP99, first.TTFTP99),
			r.LoadCoV, r.ServedCoV, 100*r.BounceRatio, r.Probes, r.BytesIn)
	}
	_ = w.Flush()
	if first.FollowUpRatio > 0 {
		fmt.Fprintln(out, "\ntokens from cache in turns after the first:")
		for i := range results {
			fmt.Fprintf(out, "  %s %.3f\n", results[i].Policy, results[i].FollowUpRatio)
		}
	}
}

func times(v, of float64) string {
	if of == 0 {
		return ""
	}
	return fmt.Sprintf("× %.3f", v/of)
}
