package forward

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvmesh/kvmesh/cachestate"
	"github.com/kvmesh/kvmesh/internal/engine"
	"github.com/kvmesh/kvmesh/internal/openai"
)

// carry decides and tries engines until one has answered. The error is nil once the answer is complete.
func (x *exchange) carry() error {
	c := x.call()
	x.g.classes.with(x.class.Name, func(s *classState) {
		s.retries.request(x.start)
		s.hedges.request(x.start)
	})
	var last error
	absent := 0 // engines that do not have what the request goes on from
	for patience := 1; ; {
		ranked, err := x.settle()
		if err != nil {
			if absent > 0 && absent < x.serving() { // one that was not asked may have it
				return err
			}
			return errors.Join(err, last)
		}
		for i := range ranked {
			last = x.attempt(&ranked[i], c, patience)
			if errors.Is(last, errNotHere) {
				absent++
			}
			if last == nil || !x.again(last) {
				return last
			}
			if !undone(last) { // time has passed: decide anew
				break
			}
		}
		if undone(last) && !raced(last) {
			patience++
		}
		if undone(last) && !x.thread.breaks() {
			continue
		}
		if err := x.backOff(); err != nil {
			return errors.Join(err, last)
		}
	}
}

// others reports whether an engine other than id is left to try, or to wait for because it is full.
func (x *exchange) others(id engine.ID) bool {
	return slices.ContainsFunc(x.untried(nil, time.Now()), func(c Candidate) bool {
		c.Load.Flags &^= engine.Full
		return c.ID != id && c.Eligible()
	})
}

// serving returns the number of engines of the model, whatever their state.
func (x *exchange) serving() int { return len(x.g.View.Candidates(nil, x.request.Model, time.Now())) }

// untried appends the engines of the model that have not failed this request to all.
func (x *exchange) untried(all []Candidate, now time.Time) []Candidate {
	all = x.g.candidates(all, x.request.Model, now)
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.failed) > 0 || x.beside != "" {
		all = slices.DeleteFunc(all, func(c Candidate) bool { return x.failed[c.ID] || c.ID == x.beside })
	}
	Overrule(all)
	return all
}

// candidates appends the engines of the model to all. The load of own engines is read now: the view hears of it only with
// heartbeats.
func (g *Ingress) candidates(all []Candidate, model string, now time.Time) []Candidate {
	all = g.View.Candidates(all, model, now)
	for i := range all {
		if c := &all[i]; c.State == Own {
			c.Load, c.Known = g.Owner.load(c.ID.Name(), c.Load), true
		}
	}
	return all
}

// lack says why no engine can be chosen, in order of what is worth waiting for.
type lack uint8

const (
	none    lack = iota // none is left that may come back soon
	away                // one is behind an agent that is unreachable, but still connected
	full                // one is full, and takes requests again when it is not
	ejected             // one is ejected, which was not known before it was asked
)

func lackOf(all []Candidate) lack {
	why := none
	for i := range all {
		c := &all[i]
		switch {
		case c.State != Unreachable && c.Load.Flags&(engine.Full|engine.Down|engine.Draining) == engine.Full:
			return full
		case c.Away && c.Load.Usable():
			why = away
		}
	}
	return why
}

// candidateBuffers keeps the lists of all engines of a model: a quarter of a megabyte in a mesh of a thousand.
var candidateBuffers = sync.Pool{New: func() any { return new([]Candidate) }}

// decide ranks the candidates, and notes the decision.
func (x *exchange) decide() (ranked []Candidate, why lack) {
	ranked, why = x.rank()
	x.event.Candidates, x.ranked = candidateInfos(&x.q, ranked), ranked
	if len(ranked) > 0 && ranked[0].Forced {
		x.g.metrics.overruled.Inc()
	}
	if len(ranked) > 0 {
		x.event.Reason, x.event.TieBreak = Reason(&x.q, ranked), TieBreak(&x.q, ranked)
	}
	return ranked, why
}

// rank looks at the engines of the model and ranks the candidates; where there are none it says why.
func (x *exchange) rank() (ranked []Candidate, why lack) {
	start := time.Now()
	short, why := x.shortlist(start)
	spent := time.Since(start)
	x.probe(short)
	start = time.Now()
	ranked = Rank(&x.q, short, x.rng)
	x.event.Decision += spent + time.Since(start)
	if slices.ContainsFunc(short, func(c Candidate) bool { return c.State != Unreachable && c.Load.Usable() && !c.Eligible() }) {
		why = ejected
	}
	return ranked, max(why, lackOf(short)) // what answered probes tell may be newer
}

// shortlist returns the candidates of a decision, and why there may be none that can be chosen.
func (x *exchange) shortlist(now time.Time) ([]Candidate, lack) {
	buf := candidateBuffers.Get().(*[]Candidate)
	defer candidateBuffers.Put(buf)
	all := x.untried((*buf)[:0], now)
	*buf = all
	if x.q.Locality {
		if held := x.g.View.Overlaps(&x.prompt, all); x.prompt.Next != nil {
			x.g.cover(x.model, held[0], held[1])
		}
	}
	x.q.Learned = LearnedBy(all)
	short := Shortlist(&x.q, all, x.rng)
	x.g.View.Generations(short)
	return short, lackOf(all)
}

// requestPath is the path of a route, in its plain spelling, with the client's query.
func requestPath(u *url.URL) string {
	if u.RawQuery == "" {
		return u.Path
	}
	return u.Path + "?" + u.RawQuery
}

// call is the request as its owner gets it; the engine is filled in by each attempt.
func (x *exchange) call() call {
	prompt := x.prompt
	if x.batch { // the owner counts the load of all, and learns nothing from the sum
		prompt = cachestate.Prompt{Bytes: int64(len(x.body.bytes()))}
	}
	return call{
		ID: x.event.ID, Method: x.r.Method, Path: requestPath(x.r.URL), Header: engineHeader(x.r.Header),
		Prompt: prompt, Media: x.media, Once: x.request.Stored || x.request.Background, BodySize: len(x.body.bytes()),
		Traits: x.request.Traits, Model: passedOn(x.request.Model), Salt: x.request.Salt, LoRA: x.request.LoRA,
		Class: x.event.Class, Priority: x.priority, Hops: maxHops,
	}
}

// passedOn returns a name as owners are told it: one that is too long is no model's.
func passedOn(name string) string {
	if len(name) > openai.MaxNameBytes {
		return ""
	}
	return name
}

// attempt is one engine that is asked to serve a request.
type attempt struct {
	Candidate
	call     call
	patience int // multiplies the accept deadline
	hedge    bool
	lane     *lane
	asked    time.Time
	expected time.Duration // until its first content, as the decision saw it

	end ending
	err error
}

// attempt has one engine serve the request, and a second one beside when its class hedges and the first is late.
func (x *exchange) attempt(c *Candidate, k call, patience int) error {
	x.event.Engine, x.event.OverlapTokens = c.ID, int(c.OverlapTokens(&x.q))
	t := x.begin(&attempt{Candidate: *c, call: k, patience: patience})
	var err error
	if x.hedges() {
		err = x.race(t)
	} else {
		x.run(t)
		x.note(t)
		err = t.err
	}
	if x.conclude(err) {
		x.event.Status = http.StatusOK
		return nil
	}
	return err
}

// begin opens the lane of an attempt.
func (x *exchange) begin(t *attempt) *attempt {
	k, c := &t.call, &t.Candidate
	k.Engine, k.Generation, k.QueuedAtProbe = c.ID.Name(), c.Generation, -1
	k.Second, k.Forced, k.Left = x.countAttempt() > 1 && !t.hedge, c.Forced, left(x.ctx)
	if c.Probed {
		k.QueuedAtProbe = c.Load.QueuedSeconds
	}
	x.amend(k)
	t.expected = c.expected(&x.q)
	t.lane = x.answer.lane(x.ctx, lane{
		another: x.another(c.ID), onAccept: x.onAccept(c.ID), explain: x.explain(t), part: x.thread.newPart(),
	})
	x.g.View.Dispatch(c.ID, c.NewSeconds(&x.q))
	t.asked = time.Now()
	return t
}

// run asks the engine, and returns when the attempt has ended. Several attempts may run at once.
func (x *exchange) run(t *attempt) {
	defer t.lane.close()
	t.end, t.err = x.ask(t)
	if _, failed := errors.AsType[*failure](t.err); failed && t.lane.done {
		t.err = nil // only the owner's last word is missing: the client has all of the answer
	}
	switch {
	case t.err != nil:
	case t.end.Failed && !t.lane.claims:
		if t.err = t.lane.yield(); t.err == nil {
			t.err = t.lane.end()
		}
	default:
		if t.err = t.lane.end(); t.err == nil {
			x.answer.trailer(t.end.Trailer)
		}
	}
}

// left returns how long a request still has; 0 when there is no bound.
func left(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return max(time.Until(deadline), time.Microsecond)
}

// forgetDigest drops the digest that a decision was made by, because its life of the cache is over: the engine competes as
// empty until its new digest is here.
func (x *exchange) forgetDigest(c *Candidate) {
	if have, ok := x.g.Index.Have(c.ID); ok && have.Generation == c.Generation {
		x.g.Index.Remove(c.ID)
	}
}

func (x *exchange) ask(t *attempt) (ending, error) {
	agent, l := t.ID.Agent(), t.lane
	if agent == x.g.Agent {
		return x.g.Owner.serve(l.ctx, &t.call, func() ([]byte, error) { return x.body.bytes(), nil }, l)
	}
	alive := x.g.View.Alive(agent)
	defer context.AfterFunc(alive, func() { l.stop(context.Cause(alive)) })()
	return x.g.askPeer(l.ctx, agent, &t.call, x.body.bytes(), t.patience, l)
}

// onAccept takes in the owner's load and gives up the place in the wait room.
func (x *exchange) onAccept(id engine.ID) func(engine.Load) {
	return func(l engine.Load) {
		x.g.View.SetLoad(id, l, time.Now())
		x.leaveRoom(l.Flags&(engine.Full|engine.Ejected) == 0)
	}
}

// note records how an attempt ended, in the event and in the view.
func (x *exchange) note(t *attempt) {
	id, end, err, now := t.ID, t.end, t.err, time.Now()
	result := outcomeOK
	bounced, isBounce := errors.AsType[*bounce](err)
	failed, isFailure := errors.AsType[*failure](err)
	switch {
	case err == nil:
		if end.Load.Seq > 0 {
			x.g.View.SetLoad(id, end.Load, now)
		}
		x.g.room.freed(x.model)
		x.event.Status = t.lane.status()
		if end.Failed {
			result, x.broken = outcomeEngineError, true
		}
		x.usage(end)
	case x.r.Context().Err() != nil, errors.Is(err, errClient):
		result = outcomeCanceled
	case t.lane.lost():
		result = "lost"
	case isBounce:
		result = "bounce_" + bounced.Reason
		x.g.View.SetLoad(id, bounced.Load, now)
		if !passingBounce(bounced.Reason) {
			x.exclude(id)
		}
		if bounced.Reason == "generation" {
			x.forgetDigest(&t.Candidate)
		}
	case errors.Is(err, errMissed):
		result = "missed"
		x.g.View.Missed(id.Agent(), t.asked, now)
	case errors.Is(err, errUnreached):
		result = "unreached"
		x.exclude(id)
	case errors.Is(err, errTryNext), errors.Is(err, errConceded), errors.Is(err, errNotHere):
		result = "status"
		x.exclude(id)
	case isFailure:
		result = failed.Reason
		x.countDeath(result)
		if end.Load.Seq > 0 { // from the owner: it was not the way to it that failed
			x.g.View.SetLoad(id, end.Load, now)
		}
		x.exclude(id)
	default:
		result = "internal"
		x.exclude(id)
	}
	x.tried(Attempt{id, result, t.hedge}, err)
}

// maxRaces bounds the lost races that an event tells: one that waits for minutes may lose many.
const maxRaces = 64

// tried notes an attempt. One at an engine that another request has just filled does not count: the request goes back to wait,
// as often as it must.
func (x *exchange) tried(a Attempt, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if raced(err) {
		x.attempts--
		if x.races++; x.races > maxRaces {
			return
		}
	}
	x.event.Attempts = append(x.event.Attempts, a)
}

// raced reports whether an attempt ended because the engine had become full. Where the load does not say so too, the next decision
// would not know, and ask there for ever.
func raced(err error) bool {
	b, ok := errors.AsType[*bounce](err)
	return ok && b.Reason == "full" && b.Load.Flags&engine.Full != 0
}

// passingBounce reports whether the reason of a bounce is in what came with it, so that the next decision knows: the load,
// or that a digest is out of date.
func passingBounce(reason string) bool {
	return slices.Contains([]string{"down", "draining", "full", "ejected", "queue", "generation"}, reason)
}

func (x *exchange) exclude(id engine.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failed == nil {
		x.failed = map[engine.ID]bool{}
	}
	x.failed[id] = true
}

func (x *exchange) usage(end ending) {
	if !end.HasUsage || x.thread != nil && x.thread.parts > 0 { // a part's prompt is not the client's
		return
	}
	x.event.PromptTokens = end.Usage.PromptTokens
	if end.Usage.HasCached {
		x.event.CachedTokens = &end.Usage.CachedTokens
	}
}

// explain returns what sets the explain headers for an attempt.
func (x *exchange) explain(t *attempt) func(http.Header) {
	if len(x.policy.explain) == 0 {
		return nil
	}
	id, overlap, reason := string(t.ID), strconv.Itoa(int(t.OverlapTokens(&x.q))), x.event.Reason
	switch {
	case t.hedge:
		reason = "hedge"
	case t.call.Second:
		reason = "retry"
	}
	named := x.policy.explain
	return func(h http.Header) {
		for name, value := range map[string]string{"engine": id, "overlap": overlap, "reason": reason} {
			if named[name] {
				h.Set("X-Kvmesh-"+name, value)
			}
		}
	}
}

// lookUp serves GET /v1/responses/{id}: the engines are asked in turn, since only the one that made it knows it. It is
// not found only when every engine of the mesh has said so.
func (x *exchange) lookUp(route openai.Route) {
	defer x.open(route, false)()
	x.request = &openai.Request{Route: route}
	x.answer.skipNotFound = true
	engines, complete := x.reachable()
	err := errNoEngine
	for i := range engines {
		if err = x.attempt(&engines[i], x.call(), 1); err == nil || !x.again(err) {
			x.finish(err)
			return
		}
		complete = complete && errors.Is(err, errNotHere)
	}
	if !complete {
		err = errNoEngine // one that cannot be asked may have it
	}
	x.finish(err)
}

// reachable returns the engines that can be asked for what they stored, and whether those are all.
func (x *exchange) reachable() (engines []Candidate, all bool) {
	all = true
	for _, e := range x.g.View.Snapshot(x.start) {
		c, ok := x.g.View.Candidate(e.ID, x.start)
		if ok && c.State != Unreachable && c.Load.Flags&engine.Down == 0 && len(engines) < maxLookUps {
			engines = append(engines, c)
		} else {
			all = false
		}
	}
	return engines, all
}

// maxLookUps bounds the engines asked for one stored response.
const maxLookUps = 1024
