package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvmesh/kvmesh/internal/simscale"
)

// benchResult is what a mesh costs. Rates are per agent and second; how they spread is over agents.
type benchResult struct {
	Agents    int         `json:"agents"`
	Simulated bool        `json:"simulated"`
	Changes   float64     `json:"changes_per_s"` // at each engine
	Seconds   float64     `json:"seconds"`       // that changes were measured
	Rest      benchCost   `json:"rest"`
	Changing  benchCost   `json:"changing"`
	RSS       benchSpread `json:"rss_bytes"`
	Staleness benchSpread `json:"digest_staleness_s"` // over samples: age of the oldest change that is missing
	LoadAge   benchSpread `json:"heartbeat_age_s"`    // over samples
	Unknown   int         `json:"unknown_digests"`    // samples of digests that were not there
	Probe     *benchProbe `json:"probe,omitempty"`

	Memory      []simscale.Memory `json:"memory,omitempty"`           // of the model's process
	Connections int64             `json:"connection_bytes,omitempty"` // which the model has not, and an agent has beside that
}

// benchCost is what an agent needs while nothing, or something, changes.
type benchCost struct {
	CPU        benchSpread            `json:"cpu_share"`      // of one core
	BytesIn    map[string]benchSpread `json:"bytes_in_per_s"` // wire: with IP and UDP headers, then its parts; others: payload by kind
	BytesOut   map[string]benchSpread `json:"bytes_out_per_s"`
	PacketsIn  benchSpread            `json:"packets_in_per_s"`
	PacketsOut benchSpread            `json:"packets_out_per_s"`
}

// benchProbe is what asking another agent for its load takes.
type benchProbe struct {
	Probes    int         `json:"probes"`
	Missed    int         `json:"missed"`
	RoundTrip benchSpread `json:"round_trip_s"`
	CPU       float64     `json:"cpu_s"` // of a probe, both ends together
}

// benchSpread is how values spread.
type benchSpread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// spreadOf sorts values.
func spreadOf(values []float64) benchSpread {
	if len(values) == 0 {
		return benchSpread{}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(q float64) float64 { return values[min(int(q*float64(len(values))), len(values)-1)] }
	return benchSpread{Mean: sum / float64(len(values)), P50: at(0.5), P99: at(0.99), Max: values[len(values)-1]}
}

// benchRun is the marks of all agents around a phase.
type benchRun struct {
	order      benchOrder
	begin, end []benchMark
	versions   map[string][]benchVersion // by agent
}

// perSecond returns for each agent how fast a counter grew.
func (r *benchRun) perSecond(value func(*benchMark) float64) []float64 {
	out := make([]float64, len(r.begin))
	for i := range r.begin {
		b, e := &r.begin[i], &r.end[i]
		out[i] = (value(e) - value(b)) / time.Duration(e.Time-b.Time).Seconds()
	}
	return out
}

func cpuOf(m *benchMark) float64 { return m.Counters["cpu"] }

func (r *benchRun) cost() benchCost {
	c := benchCost{CPU: spreadOf(r.perSecond(cpuOf)), BytesIn: map[string]benchSpread{}, BytesOut: map[string]benchSpread{}}
	sum := func(what, direction string) benchSpread {
		return spreadOf(r.perSecond(func(m *benchMark) float64 {
			return m.Counters[what+" quic "+direction] + m.Counters[what+" gossip "+direction]
		}))
	}
	c.PacketsIn, c.PacketsOut = sum("packets", "in"), sum("packets", "out")
	for direction, bytes := range map[string]map[string]benchSpread{"in": c.BytesIn, "out": c.BytesOut} {
		bytes["wire"] = sum("wire", direction)
		for _, key := range r.counters() {
			if name, ok := strings.CutSuffix(key, " "+direction); ok && !strings.HasPrefix(key, "packets ") {
				bytes[name] = spreadOf(r.perSecond(func(m *benchMark) float64 { return m.Counters[key] }))
			}
		}
	}
	return c
}

// counters returns the names of all counters.
func (r *benchRun) counters() []string {
	names := map[string]bool{}
	for i := range r.end {
		for key := range r.end[i].Counters {
			names[key] = true
		}
	}
	return slices.Collect(maps.Keys(names))
}

func (r *benchRun) rss() benchSpread {
	var out []float64
	for i := range r.end {
		out = append(out, r.end[i].Counters["rss"])
	}
	return spreadOf(out)
}

// probes returns what probes cost: the CPU time is that of all agents, less what they needed at rest.
func (r *benchRun) probes(rest benchRun) *benchProbe {
	p := &benchProbe{}
	var trips []float64
	for i := range r.end {
		trips = append(trips, r.end[i].Probes...)
		p.Missed += r.end[i].Missed
	}
	if p.Probes = len(trips); p.Probes == 0 {
		return p
	}
	more := 0.0
	with, without := r.perSecond(cpuOf), rest.perSecond(cpuOf)
	for i := range with {
		more += (with[i] - without[i]) * time.Duration(r.end[i].Time-r.begin[i].Time).Seconds()
	}
	p.RoundTrip, p.CPU = spreadOf(trips), more/float64(p.Probes)
	return p
}

// ages returns how old what agents knew of each other was: how long ago the oldest change came that they lacked, and when
// the last load was heard. unknown counts digests that were missing altogether.
func (r *benchRun) ages() (staleness, loads benchSpread, unknown int) {
	lacks := map[string]map[uint64]int64{}
	for agent, versions := range r.versions {
		lacks[agent] = map[uint64]int64{}
		for _, v := range versions {
			lacks[agent][v.Version] = v.Lacks
		}
	}
	var stale, old []float64
	for i := range r.end {
		for _, s := range r.end[i].Samples {
			old = append(old, s.LoadAge)
			if since, ok := lacks[s.Agent][s.Version]; ok {
				stale = append(stale, max(0, time.Duration(s.Time-since).Seconds()))
			} else {
				unknown++
			}
		}
	}
	return spreadOf(stale), spreadOf(old), unknown
}

const mebi = 1 << 20

// print writes r as a table.
func (r *benchResult) print(out io.Writer) {
	what := "agents"
	if r.Simulated {
		what = "simulated agents"
	}
	fmt.Fprintf(out, "\n%d %s, %.0f changes/s at each engine for %.0f s\n\n", r.Agents, what, r.Changes, r.Seconds)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "per agent\tmean\tp50\tp99\tmax\t")
	row := func(name string, s benchSpread, factor float64, unit string) {
		if s == (benchSpread{Mean: s.Mean}) { // no more is known
			fmt.Fprintf(w, "%s\t%.2f\t\t\t\t%s\t\n", name, s.Mean*factor, unit)
			return
		}
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t\n", name, s.Mean*factor, s.P50*factor, s.P99*factor, s.Max*factor, unit)
	}
	if !r.Simulated {
		row("CPU at rest", r.Rest.CPU, 100, "% of a core")
		row("CPU with changes", r.Changing.CPU, 100, "% of a core")
	}
	r.Rest.print(row, "at rest", false)
	r.Changing.print(row, "with changes", true)
	if !r.Simulated {
		row("memory", r.RSS, 1.0/mebi, "MiB")
	}
	row("digest staleness", r.Staleness, 1, "s")
	row("heartbeat age", r.LoadAge, 1, "s")
	if r.Probe != nil {
		row("probe", r.Probe.RoundTrip, 1e3, "ms")
	}
	_ = w.Flush()
	if r.Probe != nil {
		fmt.Fprintf(out, "\nA probe costs both ends together %.0f µs of CPU; %d were sent, %d not answered.\n", 1e6*r.Probe.CPU, r.Probe.Probes+r.Probe.Missed, r.Probe.Missed)
	}
	for _, m := range r.Memory {
		fmt.Fprintf(out, "memory after %5.0f s: %6.1f MiB, and %.1f MiB for connections\n", m.After, float64(m.RSS)/mebi, float64(r.Connections)/mebi)
	}
	if r.Unknown > 0 {
		fmt.Fprintf(out, "\n%d times an agent had no digest of an engine.\n", r.Unknown)
	}
}

// print writes bytes and packets; with parts, those of each kind too.
func (c *benchCost) print(row func(name string, s benchSpread, factor float64, unit string), when string, parts bool) {
	const kilo = 1e-3
	if len(c.BytesIn) == 0 {
		return
	}
	row("packets in, "+when, c.PacketsIn, 1, "/s")
	row("packets out, "+when, c.PacketsOut, 1, "/s")
	row("bytes in, "+when, c.BytesIn["wire"], kilo, "kB/s")
	row("bytes out, "+when, c.BytesOut["wire"], kilo, "kB/s")
	if !parts {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.BytesIn)) {
		if s := c.BytesIn[name]; name != "wire" && s.Mean > 0 {
			row("in: "+name, s, kilo, "kB/s")
		}
	}
}
