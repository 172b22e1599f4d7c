package simulate

import (
	"errors"

	"github.com/kvmesh/kvmesh/internal/workload"
)

// Recorded returns the requests that a run of recorded traffic plays, so that a real mesh can be sent the same. Policies are
// not looked at.
func Recorded(c Config) (workload.Trace, error) {
	if err := c.Validate(); err != nil {
		return workload.Trace{}, err
	}
	t, err := trafficOf(&c)
	if err != nil {
		return workload.Trace{}, err
	}
	if t.recorded == nil {
		return workload.Trace{}, errors.New("the " + c.Workload + " workload is no recorded traffic")
	}
	return t.recorded.trace(), nil
}

// trace writes the arrivals out.
func (p *replay) trace() workload.Trace {
	t := workload.Trace{BlockTokens: traceBlockTokens}
	for _, a := range p.arrivals {
		k := &p.kinds[a.kind]
		r := workload.TraceRequest{At: a.at, InputTokens: k.input, OutputTokens: k.output}
		for _, run := range k.runs {
			for id := range uint64(run.Count) {
				n, _ := p.block(k, run.First+id, a.copy)
				r.Blocks = extend(r.Blocks, n)
			}
		}
		t.Requests = append(t.Requests, r)
	}
	return t
}
