package engineagent

import (
	"context"

	"github.com/kvmesh/kvmesh/engineagent/kvevents"
	"github.com/kvmesh/kvmesh/internal/engine"
)

// discover looks for the engine's KV events.
func (p *poller) discover(ctx context.Context) {
	sources, err := p.sources(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil: // sources that are followed already go on
		p.a.noteEventFault(err.Error())
	default:
		p.a.noteEventFault("")
		p.follower.follow(ctx, p.a, sources)
	}
}

func (a *Agent) noteCapability(c capability) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.capability = c
}

// sources returns where the engine's KV events come from, none when nobody says.
func (p *poller) sources(ctx context.Context) ([]kvevents.Source, error) {
	switch e := p.a.cfg.Events; {
	case e.Off:
		return nil, nil
	case e.Endpoint != "":
		sources, _ := kvevents.Expand(e.Endpoint, e.Replay, max(e.Ranks, 1)) // checked by Validate
		for i := range sources {
			sources[i].Topic, sources[i].Bind = e.Topic, e.Bind
		}
		return sources, nil
	}
	return p.named(ctx)
}

// named asks the engine for its sources.
func (p *poller) named(ctx context.Context) (sources []kvevents.Source, err error) {
	var body []byte
	switch p.a.Engine().Kind {
	case engine.KindVLLM:
		if body, err = p.a.get(ctx, "/kv_event_sources", maxInfoBytes); err == nil {
			sources, err = kvevents.ParseSources(body)
		}
	case engine.KindSGLang:
		if body, err = p.a.get(ctx, "/server_info", maxInfoBytes); err == nil {
			sources, err = kvevents.ParseServerInfo(body)
		}
	case engine.KindTRTLLM, engine.KindOther: // the one is drained, the others tell nothing
	}
	if missing(err) { // an older release
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range sources {
		if sources[i], err = sources[i].Resolve(p.a.cfg.URL.Hostname()); err != nil {
			return nil, err
		}
	}
	return sources, nil
}
