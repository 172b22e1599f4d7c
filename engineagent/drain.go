package engineagent

import (
	"context"
	"net/http"
	"time"

	"github.com/kvmesh/kvmesh/engineagent/kvevents"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// drainer reads TensorRT-LLM's KV events, which the engine hands out once: whoever else asks takes them away from here,
// which shows as a gap. It belongs to the goroutine of Run.
type drainer struct {
	events kvevents.Drainer
	again  time.Time // when to look again for a route that was missing
	heard  bool
	ranks  int // seen so far
}

// drainTimeout: up to 1.3.0rc9 the engine lets an asker wait two seconds when it has nothing to tell.
const drainTimeout = 4 * time.Second

// drain asks for the events since the last time.
func (p *poller) drain(ctx context.Context) {
	a, d := p.a, &p.drained
	if a.Engine().Kind != engine.KindTRTLLM || a.cfg.Events.Off || a.cfg.Now().Before(d.again) {
		return
	}
	body, err := a.fetch(ctx, question{
		method: http.MethodPost, path: "/kv_cache_events", limit: kvevents.MaxPayload, timeout: drainTimeout,
	})
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if refused(err) {
			d.again = a.cfg.Now().Add(describePeriod)
		} else {
			p.complain("KV events not read", err)
		}
		return
	}
	d.events.BlockTokens = a.Engine().BlockTokens
	got, err := d.events.Parse(body)
	if err != nil {
		p.complain("KV events not read", err)
		return
	}
	a.noteSkipped(got.Skipped)
	if !d.heard {
		if len(got.Ranks) == 0 {
			return
		}
		d.heard = true
		a.noteFollowed(1)
		for i := range got.Ranks {
			got.Ranks[i].Gap = false // nothing was known before
		}
	}
	p.applyDrained(got)
}

func (a *Agent) noteSkipped(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events.skipped += uint64(n)
}

func (p *poller) applyDrained(d kvevents.Drained) {
	s := (*sink)(p.a)
	if d.Restarted {
		for rank := range p.drained.ranks {
			s.Restarted(rank, "its KV events began again")
		}
	}
	for _, r := range d.Ranks {
		p.drained.ranks = max(p.drained.ranks, r.Rank+1)
		if r.Gap {
			s.Lost(r.Rank, "KV events were missing or not understood: the engine's buffer overflowed, somebody else reads them too, or its form of them is new")
		}
		s.Apply(r.Rank, r.Events)
	}
}
