package simulate

import (
	"testing"
	"time"

	"github.com/kvmesh/kvmesh/internal/workload"
)

// smallTrace is 300 requests in 60 s: 30 conversations of ten turns, of six blocks, one more each turn, below one
// system block.
func smallTrace() *workload.Trace {
	t := &workload.Trace{BlockTokens: traceBlockTokens}
	for turn := range 10 {
		for c := range 30 {
			t.Requests = append(t.Requests, workload.TraceRequest{
				At:          time.Duration(turn*30+c) * 200 * time.Millisecond,
				InputTokens: (turn + 7) * traceBlockTokens, OutputTokens: 20 + c,
				Blocks: []workload.BlockRun{{First: 0, Count: 1}, {First: uint64(1 + c*100), Count: turn + 6}},
			})
		}
	}
	return t
}

// smallConfig is a run of a second or less of CPU.
func smallConfig(policies ...string) Config {
	c := DefaultConfig()
	c.Trace, c.Policies, c.Engines = smallTrace(), policies, 4
	c.Span, c.WarmUp, c.CacheBlocks = 100*time.Second, 10*time.Second, 200
	c.Geometry.Bits = 1 << 14
	return c
}

// bench is a world without traffic, whose requests a test makes.
func bench(t *testing.T, policy string, engines int, machine Machine) *world {
	t.Helper()
	c := smallConfig(policy)
	c.Engines, c.WarmUp = engines, 0
	spec, err := specOf(policy)
	if err != nil {
		t.Fatal(err)
	}
	tr := &traffic{Machine: machine, blockTokens: traceBlockTokens, covered: true}
	if machine == MachineStep {
		tr.blockTokens, tr.covered = chatBlockTokens, false
	}
	tr.open = func(*world) source { return idle{} }
	c.settle(tr)
	return newWorld(&c, tr, spec)
}

// idle is a source of nothing.
type idle struct{}

func (idle) begin()           {}
func (idle) arrive() *request { return nil }
func (idle) ended(*request)   {}

// ask makes a request of so many blocks, named from first on.
func (w *world) ask(first block, blocks, output int) *request {
	r := w.request(uint64(first))
	r.input, r.output, r.user = blocks*w.blockTokens, output, uint64(first)
	for i := range blocks {
		r.chain = append(r.chain, first+block(i))
	}
	return r
}

// drain plays all that is scheduled.
func (w *world) drain() {
	for e, ok := w.agenda.next(); ok; e, ok = w.agenda.next() {
		w.now = e.at
		w.play(&e)
	}
}

// give hands requests to the first engine now, and returns what collects their times.
func (w *world) give(requests ...*request) *times {
	log := &times{w: w, began: map[*request]time.Duration{}, ended: map[*request]time.Duration{}}
	w.policy = log
	for _, r := range requests {
		w.nodes[0].accept(r)
	}
	return log
}

// times is a policy that only notes when requests have their first and last token.
type times struct {
	idlePolicy
	w            *world
	began, ended map[*request]time.Duration
}

func (l *times) first(r *request, _ *node) { l.began[r] = l.w.now }
func (l *times) done(r *request, _ *node)  { l.ended[r] = l.w.now }

type idlePolicy struct{}

func (idlePolicy) begin()          {}
func (idlePolicy) arrive(*request) {}
func (idlePolicy) lost(*request)   {}
func (idlePolicy) born(*node)      {}
func (idlePolicy) play(*event)     {}

func near(got time.Duration, seconds float64) bool {
	d := got.Seconds() - seconds
	return d < 1e-6 && d > -1e-6
}
