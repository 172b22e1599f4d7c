package node

import (
	"errors"

	"github.com/kvmesh/kvmesh/engineagent"
	"github.com/kvmesh/kvmesh/forward"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// booker lets forward book load at an engine agent: the two packages do not know each other.
type booker struct {
	*engineagent.Agent
}

var _ forward.Booker = booker{}

// Admit implements forward.Booker.
func (b booker) Admit(a forward.Admission) (forward.Booking, engine.Load, error) {
	admission := engineagent.Admission{
		Prompt: a.Prompt, Bytes: a.Prompt.Bytes, Generation: a.Generation, QueuedAtProbe: a.QueuedAtProbe, Media: a.Media,
		Second: a.Second, Forced: a.Forced, Route: a.Route, Traits: a.Traits, Model: a.Model, Salt: a.Salt, LoRA: a.LoRA,
	}
	if len(a.Prompt.Keys) == 0 {
		admission.Prompt = nil
	}
	booking, load, err := b.Agent.Admit(admission)
	if refused, ok := errors.AsType[*engineagent.Refused](err); ok {
		return nil, load, forward.Refused(refused.Reason)
	}
	return ticket{booking}, load, nil
}

type ticket struct {
	*engineagent.Booking
}

// Finish implements forward.Booking.
func (t ticket) Finish(o forward.Outcome) {
	t.Booking.Finish(engineagent.Outcome{Usage: o.Usage, HasUsage: o.HasUsage, Refused: o.Refused, Failed: o.Failed, Whole: o.Whole})
}
