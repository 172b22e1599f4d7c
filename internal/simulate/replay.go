package simulate

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvmesh/kvmesh/internal/workload"
)

// enginesPerCopy is how many engines one copy of a recorded trace keeps busy: about 0.65 of the time on Mooncake's.
const enginesPerCopy = 4

// phases is the most time within which the copies begin, and phaseShare the most of a run: ten ticks of the traces' clocks.
// Longer smooths the traffic, since the copies' bursts meet each other's lulls: with 100 s nobody waits even at 1.25 times
// the load; with none all copies burst at once.
const (
	phases     = 30 * time.Second
	phaseShare = 10
)

// hotShare is the share of requests that hold a block from which on all copies of the trace share it: a system prompt.
const hotShare = 0.05

// replay is open-loop traffic: phase-shifted copies of a recorded trace, with blocks of their own but for those that most
// requests hold, and perhaps generated streams.
type replay struct {
	kinds    []template
	blocks   int    // ids of the trace, which are 0 to blocks-1
	shared   []bool // by id
	arrivals []arrival
	made     int // blocks of all copies and generated streams
}

// template is a request of which copies arrive.
type template struct {
	input, output int
	runs          []workload.BlockRun
	generated     bool // its blocks are its own, not the trace's
}

type arrival struct {
	at   time.Duration
	kind int32
	copy int32
}

// newReplay makes copies for the engines of c.
func newReplay(t *workload.Trace, c *Config) *replay {
	p := &replay{}
	for i := range t.Requests {
		r := &t.Requests[i]
		p.kinds = append(p.kinds, template{input: r.InputTokens, output: max(r.OutputTokens, 1), runs: r.Blocks})
	}
	p.renumber()
	copies := copiesFor(c)
	p.made = p.blocks * copies
	p.repeat(t, copies, c)
	return p
}

func copiesFor(c *Config) int { return max(c.Engines/enginesPerCopy, 1) }

// renumber makes the ids of the trace dense, in order of appearance, and finds the shared ones.
func (p *replay) renumber() {
	number := map[uint64]uint64{}
	var holders []int
	for i := range p.kinds {
		var runs []workload.BlockRun
		for _, run := range p.kinds[i].runs {
			for id := range uint64(run.Count) {
				n, known := number[run.First+id]
				if !known {
					n = uint64(len(holders))
					number[run.First+id] = n
					holders = append(holders, 0)
				}
				holders[n]++
				runs = extend(runs, n)
			}
		}
		p.kinds[i].runs = runs
	}
	p.blocks = len(holders)
	p.shared = make([]bool, p.blocks)
	for n, count := range holders {
		p.shared[n] = float64(count) > hotShare*float64(len(p.kinds))
	}
}

func extend(runs []workload.BlockRun, id uint64) []workload.BlockRun {
	if n := len(runs); n > 0 && runs[n-1].First+uint64(runs[n-1].Count) == id {
		runs[n-1].Count++
		return runs
	}
	return append(runs, workload.BlockRun{First: id, Count: 1})
}

// repeat lays the copies out in time: each begins at another moment.
func (p *replay) repeat(t *workload.Trace, copies int, c *Config) {
	rng := newRand(c.Seed, streamTraffic)
	quantum := tick(t)
	for n := range copies {
		shift := time.Duration(rng.Int64N(int64(min(phases, c.Span/phaseShare))))
		for i := range t.Requests {
			at := t.Requests[i].At
			if quantum > 0 {
				at += time.Duration(rng.Int64N(int64(quantum)))
			}
			p.add(at+shift, i, n, c)
		}
	}
	p.sort()
}

// add schedules a copy of a template at a time of the trace, unless it would come after the run's end.
func (p *replay) add(at time.Duration, kind, copies int, c *Config) {
	at = time.Duration(float64(at) / c.Load)
	if at < c.Span {
		p.arrivals = append(p.arrivals, arrival{at: at, kind: int32(kind), copy: int32(copies)})
	}
}

func (p *replay) sort() {
	slices.SortStableFunc(p.arrivals, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
}

// tick returns the quantum of a trace's clock when it is that of Mooncake's conversations, where many requests have one
// time, and 0 for a trace with finer times.
func tick(t *workload.Trace) time.Duration {
	times := 1
	for i := 1; i < len(t.Requests); i++ {
		if t.Requests[i].At != t.Requests[i-1].At {
			times++
		}
	}
	if times > len(t.Requests)/2 {
		return 0
	}
	return workload.MooncakeQuantum
}

// bunch has every n arrivals in a row come at the time of the first of them.
func (p *replay) bunch(n int) {
	for i := range p.arrivals {
		p.arrivals[i].at = p.arrivals[i-i%n].at
	}
}

// player is one run of a replay.
type player struct {
	*replay
	w    *world
	next int
}

func (p *player) begin() { p.schedule() }

func (p *player) schedule() {
	if p.next < len(p.arrivals) {
		p.w.at(p.arrivals[p.next].at, event{kind: onArrival})
	}
}

func (p *player) arrive() *request {
	a := p.arrivals[p.next]
	p.next++
	p.schedule()
	k := &p.kinds[a.kind]
	r := p.w.request(uint64(p.next))
	r.input, r.output = k.input, k.output
	found := false
	for _, run := range k.runs {
		for id := range uint64(run.Count) {
			n, own := p.block(k, run.First+id, a.copy)
			if own && !found && (!k.generated || len(r.chain) >= k.common()) {
				found, r.user = true, n
			}
			r.chain = append(r.chain, block(n))
		}
	}
	if !found {
		r.user = mix(uint64(p.next))
	}
	return r
}

// block returns the block that stands for an id of a template in one copy, and whether it is that copy's own.
func (p *replay) block(k *template, id uint64, copies int32) (n uint64, own bool) {
	switch {
	case k.generated:
		return id, true
	case p.shared[id]:
		return id, false
	}
	return id + uint64(copies)*uint64(p.blocks), true
}

// common is how many of a generated request's leading blocks are shared with others.
func (k *template) common() int {
	if len(k.runs) < 2 {
		return 0
	}
	return k.runs[0].Count
}

func (p *player) ended(*request) {}
