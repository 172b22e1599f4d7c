package engineagent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kvmesh/kvmesh/internal/engine"
)

// poller asks the engine. It belongs to the goroutine of Run.
type poller struct {
	a         *Agent
	describe  time.Time // when to ask next what the engine is
	readAgain time.Time // when to look again for a load route that was missing
	wasUp     bool
	complaint string // last logged
	follower  follower
	drained   drainer
	probed    engine.Generation // life in which the engine was examined

	probeAgain time.Time // when to examine it again
}

// poll is one round: is it alive, what is it, how busy is it. The first answer that fails ends the round, so that a
// hanging engine costs one timeout.
func (p *poller) poll(ctx context.Context) {
	_, err := p.a.get(ctx, "/health", maxInfoBytes)
	if ctx.Err() != nil {
		return
	}
	answer := answerOf(err)
	up := p.a.hear(answer)
	if up && !p.wasUp {
		p.describe, p.readAgain = time.Time{}, time.Time{}
	}
	p.wasUp = up
	if answer != answerGood {
		p.a.noteUnread(false)
		return
	}
	if now := p.a.cfg.Now(); !now.Before(p.describe) && !p.ask(ctx, now) {
		p.a.noteUnread(false)
		return
	}
	p.readLoad(ctx)
	p.drain(ctx)
	p.examine(ctx)
}

// pause is the time until the next round, spread by a tenth so that agents started together do not poll together.
func (p *poller) pause() time.Duration {
	period := p.a.cfg.PollPeriod
	if !p.wasUp {
		period = min(period, retryPeriod)
	}
	return time.Duration(float64(period) * (0.95 + 0.1*p.a.cfg.Jitter()))
}

// ask finds out what the engine is. Until it says which models it serves it is asked in every round. It returns false
// when the engine did not answer.
func (p *poller) ask(ctx context.Context, now time.Time) bool {
	cards, err := p.cards(ctx)
	if err != nil {
		p.complain("model list not read", err)
		_, answered := errors.AsType[*statusError](err)
		return answered
	}
	kind, info := p.detect(ctx, cards)
	if ctx.Err() != nil {
		return false
	}
	p.a.noteDescription(kind, cards, info)
	if len(cards) > 0 {
		p.describe = now.Add(describePeriod)
		p.discover(ctx)
	}
	return true
}

func (p *poller) cards(ctx context.Context) ([]card, error) {
	body, err := p.a.get(ctx, "/v1/models", maxModelsBytes)
	if err != nil {
		return nil, err
	}
	return parseModels(body)
}

// complain logs a fault once, until another one takes its place.
func (p *poller) complain(what string, err error) {
	if text := err.Error(); text != p.complaint {
		p.complaint = text
		p.a.log.Warn("engine not understood", "what", what, "error", err)
	}
}

// detect finds out which software the engine runs: what its model cards say, then the routes that only some have. The
// names on its metrics page are looked at when it is read. SGLang's configuration comes along.
func (p *poller) detect(ctx context.Context, cards []card) (engine.Kind, serverInfo) {
	kind := p.a.cfg.Kind
	for _, c := range cards {
		if k, ok := kindOfOwner(c.OwnedBy); ok && kind == "" {
			kind = k
		}
	}
	if kind == "" && p.hasVersion(ctx) {
		kind = engine.KindVLLM
	}
	if kind != "" && kind != engine.KindSGLang {
		return kind, serverInfo{}
	}
	body, err := p.a.get(ctx, "/server_info", maxInfoBytes)
	if err != nil {
		return kind, serverInfo{}
	}
	if info, ok := parseServerInfo(body); ok {
		return engine.KindSGLang, info
	}
	return kind, serverInfo{}
}

func (p *poller) hasVersion(ctx context.Context) bool {
	body, err := p.a.get(ctx, "/version", maxInfoBytes)
	return err == nil && hasVersion(body)
}

// readLoad asks how busy the engine is. No answer to this question says that the engine is dead.
func (p *poller) readLoad(ctx context.Context) {
	now := p.a.cfg.Now()
	if now.Before(p.readAgain) {
		p.a.noteUnread(true)
		p.a.noteBlind()
		return
	}
	asked := p.a.book.mark()
	r, kind, err := p.a.askLoad(ctx, p.a.Engine().Kind)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		p.complain("load not read", err)
		p.a.noteUnread(missing(err) || errors.Is(err, errNoLoad))
		p.a.noteBlind()
		if missing(err) {
			p.readAgain = now.Add(describePeriod)
		}
		return
	}
	if p.a.noteReading(&r, kind, asked) {
		p.describe = time.Time{}
	}
}

// examine looks, once in each life of an idle engine, at what it can be asked for and how it renders.
func (p *poller) examine(ctx context.Context) {
	e, now := p.a.Engine(), p.a.cfg.Now()
	if len(e.Models) == 0 || e.Generation == p.probed || now.Before(p.probeAgain) {
		return
	}
	p.probeAgain = now.Add(describePeriod)
	if p.a.examine(ctx) {
		p.probed, p.probeAgain = e.Generation, time.Time{}
	}
}

func (p *poller) close() {
	if t, ok := p.a.cfg.Transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}
