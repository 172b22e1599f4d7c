package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// Report is what an owner says about the load of all its engines: the payload of a heartbeat and the answer to a probe.
type Report struct {
	Period time.Duration // of this owner's heartbeats: how soon its silence means something
	Loads  []EngineLoad
	Doubts []EngineDoubt // of the other engines that were named; not written
}

// EngineLoad is the load of one engine of the reporting owner.
type EngineLoad struct {
	Name string // the engine's name at its owner
	Load engine.Load
}

// EngineDoubt says of an engine of the reporting owner why its load is not believed.
type EngineDoubt struct {
	Name string // the engine's name at its owner
	Err  error
}

// AppendReport appends the wire form of r: the period in milliseconds, then name and load of each engine.
func AppendReport(b []byte, r Report) []byte {
	b = binary.AppendUvarint(b, uint64(r.Period.Milliseconds()))
	b = binary.AppendUvarint(b, uint64(len(r.Loads)))
	for _, l := range r.Loads {
		b = engine.AppendLoad(engine.AppendString(b, l.Name), l.Load)
	}
	return b
}

// ParseReport reads a Report. It returns an error on a period of zero or above a minute. A load out of range becomes a
// doubt, and the others stand.
func ParseReport(b []byte) (Report, error) {
	r := engine.NewReader(b)
	report := Report{Period: time.Duration(r.Int(60_000)) * time.Millisecond}
	n := r.Int(maxEngines)
	if err := r.Err(); err != nil {
		return Report{}, fmt.Errorf("parse report: %w", err)
	}
	if report.Period == 0 {
		return Report{}, fmt.Errorf("parse report: period is zero")
	}
	rest := r.Rest()
	for range n {
		r := engine.NewReader(rest)
		name := r.Name(256)
		if err := r.Err(); err != nil {
			return Report{}, fmt.Errorf("parse report: %w", err)
		}
		load, after, err := engine.ParseLoad(r.Rest())
		switch {
		case errors.Is(err, engine.ErrImplausible):
			report.Doubts = append(report.Doubts, EngineDoubt{name, err})
		case err != nil:
			return Report{}, fmt.Errorf("parse report: %w", err)
		default:
			report.Loads = append(report.Loads, EngineLoad{name, load})
		}
		rest = after
	}
	return report, nil
}
